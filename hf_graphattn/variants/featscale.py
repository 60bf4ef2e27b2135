"""FeatScale: "Anti-Oversmoothing in Deep Vision Transformers", arXiv 2203.05962.

    out = x + dc D + hf (x - D) = (1 + hf) x + (dc - hf) D,    D = U x

x is the output of a layer's attention, after its projection, before it is added to the residual. D
is its mean over the tokens, the direct current, and x - D the high frequencies. The paper learns a
weight of either for each channel, from 0, in vision transformers. The mean of the tokens that each
may see, under masks, is ours; U is that of `shaped`.

A version of the authors' code adds `dc D + hf (x - D)` twice: that is this with weights of twice
the size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import (
    TOKENS_TRAINABLE_HELP,
    Attend,
    GraphFilter,
    TokenFilter,
    VariantConfig,
    combination,
    register,
    setting,
)
from .shaped import uniform


@register("featscale")
@dataclass(frozen=True)
class FeatScaleConfig(VariantConfig):
    """FeatScale (arXiv 2203.05962): `x + dc D + hf (x - D)`, D the mean of the tokens x.

    It acts on what a layer's attention adds to the residual. The model is plain at dc = hf = 0,
    where it starts by default, both learned for each channel, as in the paper. Where attention is
    causal, D is the mean of a token and earlier ones.
    """

    title: ClassVar[str] = "FeatScale"
    colour: ClassVar[int | None] = 2
    scalars: ClassVar[tuple[str, ...]] = ("dc", "hf")
    neutral: ClassVar[tuple[float, ...]] = (0.0, 0.0)
    place: ClassVar[str] = "branch"

    dc: float = setting(0.0, "how much more weight the mean of the tokens gets")
    hf: float = setting(0.0, "how much more weight gets what is not the mean of the tokens")
    trainable: tuple[str, ...] = setting(("dc", "hf"), TOKENS_TRAINABLE_HELP, kw_only=True)

    def build(self, num_heads: int) -> GraphFilter:
        return FeatScaleFilter(self, num_heads)


class FeatScaleFilter(TokenFilter):
    """The filter of `FeatScaleConfig`: one mean over the tokens."""

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        dc, hf = self.scalar("dc"), self.scalar("hf")
        return combination((1.0 + hf, value), (dc - hf, uniform(attend, value)))
