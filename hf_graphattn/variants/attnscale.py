"""AttnScale: "Anti-Oversmoothing in Deep Vision Transformers", arXiv 2203.05962.

    H = U + (1 + omega) (A - U) = (1 + omega) A - omega U

U is uniform attention, which leaves only the mean of the tokens, and A - U the rest of A: omega
scales what is not the mean. The paper learns omega, one for each head, from 0, in vision
transformers, where every token sees all others. U under masks is ours; see `shaped`.

It is shaped attention whose beta and gamma are tied by one scalar, beta = 1 + omega and
gamma = omega. Three scalars that are learned apart would not stay so, hence a variant of its own.

Attention dropout acts on A alone. The authors' code drops out H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import TRAINABLE_HELP, Attend, GraphFilter, VariantConfig, combination, register, setting
from .shaped import BACKENDS, uniform


@register("attnscale")
@dataclass(frozen=True)
class AttnScaleConfig(VariantConfig):
    """AttnScale (arXiv 2203.05962): `H = (1 + omega) A - omega U`, U uniform attention.

    It is plain attention at omega = 0, where it starts by default, learned, as in the paper.
    """

    title: ClassVar[str] = "AttnScale"
    colour: ClassVar[int | None] = 0
    scalars: ClassVar[tuple[str, ...]] = ("omega",)
    neutral: ClassVar[tuple[float, ...]] = (0.0,)

    omega: float = setting(0.0, "how much more weight A - U gets, U being uniform attention")
    trainable: tuple[str, ...] = setting(("omega",), TRAINABLE_HELP, kw_only=True)

    def build(self, num_heads: int) -> GraphFilter:
        return AttnScaleFilter(self, num_heads)


class AttnScaleFilter(GraphFilter):
    """The filter of `AttnScaleConfig`: `(1 + omega) A V - omega U V`."""

    backends = BACKENDS

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        omega = self.scalar("omega")
        return combination((1.0 + omega, attend(value)), (-omega, uniform(attend, value)))
