"""Any polynomial in A.

    H = c_0 I + c_1 A + c_2 A^2 + ... + c_K A^K

No power of A is formed, since `A^k V = A (A^(k-1) V)`: each degree takes one pass of attention.
With c_K alone this is the exact A^K that GFSA approximates by `A + (K-1)(A^2 - A)` (arXiv
2312.04234, eq. 6). Two published filters are polynomials too: `PolynomialConfig.twicing` and
`PolynomialConfig.page_rank`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from hf_graphattn.errors import refusal
from hf_graphattn.kernels import Kernel, Scalar, polynomial

from .base import (
    TRAINABLE_HELP,
    Attend,
    GraphFilter,
    VariantConfig,
    finite_number,
    is_sequence,
    register,
    setting,
)


@register("polynomial")
@dataclass(frozen=True)
class PolynomialConfig(VariantConfig):
    """A polynomial in A: `H = c_0 I + c_1 A + ... + c_K A^K`, `coefficients` = (c_0, ..., c_K).

    It is plain attention at (0, 1, 0, ...), where it starts by default, with a learned A^2. Learned
    coefficients are one parameter of shape (num_heads, K + 1).
    """

    title: ClassVar[str] = "polynomial"
    colour: ClassVar[int | None] = 8
    scalars: ClassVar[tuple[str, ...]] = ("coefficients",)

    coefficients: tuple[float, ...] = setting(
        (0.0, 1.0, 0.0), "weights of I, A, A^2 ...: one more than the degree"
    )
    trainable: tuple[str, ...] = setting(("coefficients",), TRAINABLE_HELP, kw_only=True)

    @classmethod
    def twicing(cls, **settings: Any) -> Self:
        """Twicing attention (arXiv 2503.00687): `H = 2 A - A^2`, in which nothing is learned.

        It is not plain attention. `trainable=("coefficients",)` learns from this start, which is
        ours.
        """
        return cls(**{"coefficients": (0.0, 2.0, -1.0), "trainable": ()} | settings)

    @classmethod
    def page_rank(cls, a: float, degree: int, **settings: Any) -> Self:
        """PageRank attention (ParaFormer, arXiv 2512.14619): `H = sum_k c_k A^k`, up to `degree`.

        The coefficients are learned from `c_k = a (1 - a)^k`, the last one from `(1 - a)^degree`,
        as in the authors' code, so that their sum is 1. There A is a linear attention between the
        nodes of a graph. Taking the model's own A, and coefficients for each head, are ours. It is
        plain attention at a = 0, degree = 1.

        Raises:
            GraphAttentionError: `a` is not from 0 to 1, or `degree` is below 1.
        """
        if not 0.0 <= finite_number("a", a) <= 1.0:
            raise refusal("a", a, "a number from 0 to 1")
        first = (a * (1.0 - a) ** k for k in range(degree))
        return cls(**{"coefficients": (*first, (1.0 - a) ** degree)} | settings)

    def at_neutral(self) -> Self:
        higher = (0.0,) * (len(self.coefficients) - 2)
        return replace(self, coefficients=(0.0, 1.0, *higher))

    def build(self, num_heads: int) -> GraphFilter:
        return PolynomialFilter(self, num_heads)

    def _checked_scalar(self, name: str, value: Any) -> tuple[float, ...]:
        if not is_sequence(value) or len(value) < 2:
            raise refusal(name, value, "two or more numbers, the weights of I, A, A^2 ...")
        return tuple(finite_number(name, item) for item in value)


class PassesFilter(GraphFilter):
    """A filter `sum_k c_k A^k`, of one pass of attention a degree, or of a kernel."""

    kernels: ClassVar = {"shared": Kernel(polynomial.blockwise, polynomial.fits)}
    backends = ("shared", *GraphFilter.backends)

    def weights(self) -> list[Scalar]:
        """The weights c_0, c_1, ... of I, A ...: numbers, or (H, 1, 1)."""
        raise NotImplementedError

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        # A plain function may stand for `attend`: only backends have a name.
        kernel, weights = self.kernels.get(getattr(attend, "name", "")), self.weights()
        if kernel and kernel.fits(attend.inputs) and (attend.every_value is None or attend.store):
            return kernel.compute(attend.inputs, value, weights, store=attend.store)
        return polynomial.naive(attend, value, weights)


class PolynomialFilter(PassesFilter):
    """The filter of `PolynomialConfig`; `coefficients` is (num_heads, K + 1)."""

    coefficients: Tensor

    def __init__(self, config: PolynomialConfig, num_heads: int) -> None:
        super().__init__(config, num_heads)
        self.degree = len(config.coefficients) - 1
        self.operands = self.degree - 1

    def weights(self) -> list[Scalar]:
        return [column.view(-1, 1, 1) for column in self.own("coefficients").unbind(-1)]

    def _per_head(self, name: str, value: float | tuple[float, ...]) -> Tensor:
        return torch.tensor(value, dtype=torch.float32).repeat(self.num_heads, 1)
