"""NeuTRENO: arXiv 2312.00751.

    out = A V + pull (V_0 - V)

V_0 are the values of the model's first layer, of the same token and head. The paper takes it from
a regulariser that keeps the layers' tokens near the first ones. In the first layer it is plain
attention. The paper fixes `pull` for a model: 0.6 for DeiT, 0.2 and 0.4 for language. Starting from
0 and learning it for each head is ours. Attention dropout acts on A alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import (
    Attend,
    GraphFilter,
    VariantConfig,
    combination,
    first_values,
    register,
    setting,
)


@register("neutreno")
@dataclass(frozen=True)
class NeuTRENOConfig(VariantConfig):
    """NeuTRENO (arXiv 2312.00751): `A V + pull (V_0 - V)`, V_0 the first layer's values.

    It is plain attention at pull = 0. The paper has 0.6 (images) and 0.4 or 0.2 (language) in
    training from scratch. For a pretrained checkpoint start at 0 and learn it:
    `NeuTRENOConfig(pull=0.0, trainable=("pull",))`. It has no matrix H.
    """

    title: ClassVar[str] = "NeuTRENO"
    colour: ClassVar[int | None] = 6
    scalars: ClassVar[tuple[str, ...]] = ("pull",)
    neutral: ClassVar[tuple[float, ...]] = (0.0,)

    pull: float = setting(0.4, "how much each value is pulled towards the first layer's")

    def build(self, num_heads: int) -> GraphFilter:
        return NeuTRENOFilter(self, num_heads)


class NeuTRENOFilter(GraphFilter):
    """The filter of `NeuTRENOConfig`: one pass of attention."""

    reads_first = True
    without_matrix = "A V + pull (V_0 - V), adds another layer's values"

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        pull = self.scalar("pull")
        return combination((1.0, attend(value)), (pull, first_values(attend).rows), (-pull, value))
