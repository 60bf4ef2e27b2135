"""The polynomials of degree 1 in A, GFSA (arXiv 2312.04234, eq. 6) without its last term.

    H = w_0 I + w_1 A

It takes one pass of attention where GFSA takes two: what GFSA brings beyond it is what A^2 brings.
`PolynomialConfig(coefficients=(0, 1))` is the same with both weights in one parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import TRAINABLE_HELP, Attend, GraphFilter, VariantConfig, combination, register, setting


@register("degree1")
@dataclass(frozen=True)
class Degree1Config(VariantConfig):
    """A polynomial of degree 1 in A: `H = w_0 I + w_1 A`, GFSA's first two terms.

    It is plain attention at w_0 = 0, w_1 = 1, where it starts by default, both learned.
    """

    title: ClassVar[str] = "degree 1"
    colour: ClassVar[int | None] = 13
    scalars: ClassVar[tuple[str, ...]] = ("w_0", "w_1")
    neutral: ClassVar[tuple[float, ...]] = (0.0, 1.0)

    w_0: float = setting(0.0, "weight of the identity")
    w_1: float = setting(1.0, "weight of A")
    trainable: tuple[str, ...] = setting(("w_0", "w_1"), TRAINABLE_HELP, kw_only=True)

    def build(self, num_heads: int) -> GraphFilter:
        return Degree1Filter(self, num_heads)


class Degree1Filter(GraphFilter):
    """The filter of `Degree1Config`: `w_0 V + w_1 A V`, by one pass of attention."""

    groups = True

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        return combination((self.scalar("w_1"), attend(value)), (self.scalar("w_0"), value))
