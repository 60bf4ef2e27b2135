"""Value residual (arXiv 2410.17897) with two weights that are learned apart.

    out = A (keep V + share V_0)

V_0 are the values of the model's first layer, of the same token and head. The paper's weights are
fixed, and sum to 1: that is `value_residual`. Two learned ones are a habit of training records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hf_graphattn.kernels import Scalar

from .base import TRAINABLE_HELP, GraphFilter, VariantConfig, register, setting
from .value_residual import ValueResidualFilter


@register("value_pair")
@dataclass(frozen=True)
class ValuePairConfig(VariantConfig):
    """Value residual with a learned pair: `A (keep V + share V_0)`, V_0 the first layer's values.

    It is plain attention at keep = 1, share = 0, where it starts by default, both learned. It has
    no matrix H.
    """

    title: ClassVar[str] = "value pair"
    colour: ClassVar[int | None] = 18
    scalars: ClassVar[tuple[str, ...]] = ("keep", "share")
    neutral: ClassVar[tuple[float, ...]] = (1.0, 0.0)

    keep: float = setting(1.0, "weight of a layer's own values")
    share: float = setting(0.0, "weight of the first layer's values")
    trainable: tuple[str, ...] = setting(("keep", "share"), TRAINABLE_HELP, kw_only=True)

    def build(self, num_heads: int) -> GraphFilter:
        return ValuePairFilter(self, num_heads)


class ValuePairFilter(ValueResidualFilter):
    """The filter of `ValuePairConfig`: one pass of attention."""

    without_matrix = "A (keep V + share V_0), has another layer's values"

    def weights(self) -> tuple[Scalar, Scalar]:
        return self.scalar("keep"), self.scalar("share")
