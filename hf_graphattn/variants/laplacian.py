"""A - I, the negative graph Laplacian as attention.

"Transformers as Unrolled Inference in Probabilistic Laplacian Eigenmaps" (arXiv 2507.21040),
sec. 3 and 4.2:

    H = A - step I

The paper has step = 1, in every head; another step, and learning it, are ours. step = 0 is plain
attention. The paper derives A - I as Laplacian smoothing, for one head at initialisation. It does
not claim that tokens stay more diverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import Attend, GraphFilter, VariantConfig, combination, register, setting


@register("laplacian")
@dataclass(frozen=True)
class LaplacianConfig(VariantConfig):
    """A - I (the negative Laplacian): `H = A - step I`.

    It is plain attention at step = 0. The paper trains from scratch with step = 1. A pretrained
    checkpoint has never seen its values subtracted, so start near 0 there and learn the step.
    """

    title: ClassVar[str] = "A - I"
    colour: ClassVar[int | None] = 4
    scalars: ClassVar[tuple[str, ...]] = ("step",)
    neutral: ClassVar[tuple[float, ...]] = (0.0,)

    step: float = setting(1.0, "weight of the identity that is subtracted from A")

    def build(self, num_heads: int) -> GraphFilter:
        return LaplacianFilter(self, num_heads)


class LaplacianFilter(GraphFilter):
    """The filter of `LaplacianConfig`: `A V - step V`, by one pass of attention."""

    groups = True

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        return combination((1.0, attend(value)), (-self.scalar("step"), value))
