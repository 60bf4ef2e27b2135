"""A gain: one learned number for each head, the head scale of NormFormer, arXiv 2110.09456.

    H = beta A

NormFormer trains with it from nothing. It is the least that the other filters contain: what one of
them brings beyond a gain is what its graph filter brings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import TRAINABLE_HELP, Attend, GraphFilter, VariantConfig, combination, register, setting


@register("gain")
@dataclass(frozen=True)
class GainConfig(VariantConfig):
    """A gain (NormFormer's head scale, arXiv 2110.09456): `H = beta A`.

    It is plain attention at beta = 1, where it starts by default, learned.
    """

    title: ClassVar[str] = "gain a head"
    colour: ClassVar[int | None] = 12
    scalars: ClassVar[tuple[str, ...]] = ("beta",)
    neutral: ClassVar[tuple[float, ...]] = (1.0,)

    beta: float = setting(1.0, "weight of A")
    trainable: tuple[str, ...] = setting(("beta",), TRAINABLE_HELP, kw_only=True)

    def build(self, num_heads: int) -> GraphFilter:
        return GainFilter(self, num_heads)


class GainFilter(GraphFilter):
    """The filter of `GainConfig`: `beta A V`, by one pass of attention."""

    groups = True

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        return combination((self.scalar("beta"), attend(value)))
