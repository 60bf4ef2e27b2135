"""Value residual, of ResFormer and SVFormer: arXiv 2410.17897.

    out = A ((1 - share) V + share V_0)

V_0 are the values of the model's first layer, of the same token and head. ResFormer has share = 1/2
in every layer but the first, where V_0 = V; SVFormer has share = 1, so that all layers attend to
the first one's values. The authors' code learns nothing. Any other share, and learning it for each
head, are ours.

`value_pair` learns the two weights apart, A (keep V + share V_0): a habit of training records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from hf_graphattn.errors import GraphAttentionError
from hf_graphattn.kernels import Scalar

from .base import (
    TRAINABLE_HELP,
    Attend,
    GraphFilter,
    VariantConfig,
    attend_all,
    combination,
    every_value,
    first_values,
    register,
    setting,
)


@register("value_residual")
@dataclass(frozen=True)
class ValueResidualConfig(VariantConfig):
    """Value residual (arXiv 2410.17897): `A ((1 - share) V + share V_0)`, V_0 the first layer's.

    It is plain attention at share = 0. ResFormer trains from scratch with share = 0.5. For a
    pretrained checkpoint start at 0 and learn it:
    `ValueResidualConfig(share=0.0, trainable=("share",))`. It has no matrix H.
    """

    title: ClassVar[str] = "value residual"
    colour: ClassVar[int | None] = 10
    scalars: ClassVar[tuple[str, ...]] = ("share",)
    neutral: ClassVar[tuple[float, ...]] = (0.0,)

    share: float = setting(0.5, "the share of the first layer's values, 1 is all")

    @classmethod
    def svformer(cls, **settings: Any) -> Self:
        """SVFormer: every layer attends to the first one's values, share = 1."""
        return cls(**{"share": 1.0} | settings)

    def build(self, num_heads: int) -> GraphFilter:
        return ValueResidualFilter(self, num_heads)


class ValueResidualFilter(GraphFilter):
    """The filter of `ValueResidualConfig`: one pass of attention."""

    reads_first = True
    without_matrix = "A ((1 - share) V + share V_0), has another layer's values"

    def weights(self) -> tuple[Scalar, Scalar]:
        """The weights of V and of V_0: numbers, or (H, 1, 1)."""
        share = self.scalar("share")
        return 1.0 - share, share

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        values, first = every_value(attend, value), first_values(attend).every
        if first.shape != values.shape:
            raise GraphAttentionError(
                f"the first layer keeps the values of {first.shape[-2]} tokens, and this one of "
                f"{values.shape[-2]}: variant {self.variant_config.variant!r} needs a cache that "
                f"keeps as many in each layer. Pass use_cache=False."
            )
        own, share = self.weights()
        return attend_all(attend, combination((own, values), (share, first)))


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
