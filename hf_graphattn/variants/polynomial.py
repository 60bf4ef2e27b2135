"""Any polynomial in A.

    H = c_0 I + c_1 A + c_2 A^2 + ... + c_K A^K

No power of A is formed, since `A^k V = A (A^(k-1) V)`: each degree takes one pass of attention.
With c_K alone this is the exact A^K that GFSA approximates by `A + (K-1)(A^2 - A)` (arXiv
2312.04234, eq. 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_graphattn.errors import refusal

from .base import (
    TRAINABLE_HELP,
    Attend,
    GraphFilter,
    VariantConfig,
    combination,
    finite_number,
    is_sequence,
    setting,
)
from .registry import register


@register("polynomial")
@dataclass(frozen=True)
class PolynomialConfig(VariantConfig):
    """A polynomial in A: `H = c_0 I + c_1 A + ... + c_K A^K`, `coefficients` = (c_0, ..., c_K).

    It is plain attention at (0, 1, 0, ...), where it starts by default, with a learned A^2. Learned
    coefficients are one parameter of shape (num_heads, K + 1).
    """

    scalars: ClassVar[tuple[str, ...]] = ("coefficients",)

    coefficients: tuple[float, ...] = setting(
        (0.0, 1.0, 0.0), "weights of I, A, A^2 ...: one more than the degree"
    )
    trainable: tuple[str, ...] = setting(("coefficients",), TRAINABLE_HELP, kw_only=True)

    def build(self, num_heads: int) -> GraphFilter:
        return PolynomialFilter(self, num_heads)

    def _checked_scalar(self, name: str, value: Any) -> tuple[float, ...]:
        if not is_sequence(value) or len(value) < 2:
            raise refusal(name, value, "two or more numbers, the weights of I, A, A^2 ...")
        return tuple(finite_number(name, item) for item in value)


class PolynomialFilter(GraphFilter):
    """The filter of `PolynomialConfig`; `coefficients` is (num_heads, K + 1)."""

    coefficients: Tensor

    def __init__(self, config: PolynomialConfig, num_heads: int) -> None:
        super().__init__(config, num_heads)
        self.degree = len(config.coefficients) - 1
        self.operands = self.degree - 1

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        powers = [value]
        for _ in range(self.degree):
            powers.append(attend(powers[-1]))
        return combination(*((self._term(k), power) for k, power in enumerate(powers)))

    def _term(self, k: int) -> Tensor:
        return self.own("coefficients")[:, k].view(-1, 1, 1)

    def _per_head(self, name: str, value: float | tuple[float, ...]) -> Tensor:
        return torch.tensor(value, dtype=torch.float32).repeat(self.num_heads, 1)
