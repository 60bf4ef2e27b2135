"""p-LaT, p-Laplacian attention: arXiv 2311.03235, eq. 11 and 12.

    out_x = sum_y A_xy (|v_x - v_y|^2 + eps)^((p - 2) / 2) v_y

Each attention weight is multiplied by a power of the distance between the two values; p = 2 is
plain attention. The paper gives half of the heads p = 1.5 and the others p = 2.5. The factor is
not in the softmax's denominator, so rows no longer sum to 1.

The paper's factor is |v_x - v_y|^(p - 2). Of a token and itself that is undefined for p < 2 and 0
for p > 2, and the paper does not say what it does there. eps is ours, and so is the diagonal's
factor, eps^((p - 2) / 2): at eps = 1e-3 it is 5.62 for p = 1.5 and 0.178 for p = 2.5.

Nor is it proven that this map lowers the p-Dirichlet functional. Theorem 3.4 says so of the outputs
of layers, for any p, but an exact step of the flow also has a term in v_x, which eq. 12 drops.

The map is not linear in the values, so passes of attention cannot compute it: `kernels.plat` does.
Attention dropout acts on A, before the factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_graphattn.errors import refusal
from hf_graphattn.kernels import Kernel, plat, plat_triton

from .base import (
    Attend,
    GraphFilter,
    VariantConfig,
    every_value,
    finite_number,
    is_sequence,
    register,
    setting,
)

# At p = 10 the factor is the distance's 8th power, which float32 holds up to 65000.
MOST = 10
MOST_DIGITS = 15  # of the greatest factor, 1e15: the layer norm that follows squares the output


@register("plat")
@dataclass(frozen=True)
class PLaTConfig(VariantConfig):
    """p-LaT (arXiv 2311.03235): each weight of A times `(|v_x - v_y|^2 + eps)^((p-2)/2)`.

    `p` is one number or several; the heads are split evenly among several, in order. It is plain
    attention at p = 2. For three heads the paper prints 1.5 for two and 2.5 for two others, which
    are four: (1.5, 1.5, 2.5) is our reading. eps is ours.
    """

    title: ClassVar[str] = "p-LaT"
    colour: ClassVar[int | None] = 7
    scalars: ClassVar[tuple[str, ...]] = ("p",)
    neutral: ClassVar[tuple[float, ...]] = (2.0,)

    p: float | tuple[float, ...] = setting(
        (1.5, 2.5), "exponent; several values split the heads evenly among them, in order"
    )
    eps: float = setting(1e-3, "added to the squared distance, so that p < 2 stays finite")

    def __post_init__(self) -> None:
        super().__post_init__()
        eps, least = finite_number("eps", self.eps), torch.finfo(torch.float32).tiny
        if eps < least:
            raise refusal("eps", self.eps, f"a number above 0, from {least:.2g}, float32's least")
        self._set("eps", eps)
        lowest = min(self.p) if isinstance(self.p, tuple) else self.p
        if (lowest - 2.0) / 2.0 * math.log10(eps) > MOST_DIGITS:
            raise refusal(
                "eps",
                self.eps,
                f"a number whose power (p - 2) / 2, the factor of equal values, is at most "
                f"1e{MOST_DIGITS}, whose square float32 holds with room; p is {self.p}",
                "Take a greater eps, or a greater p.",
            )

    def build(self, num_heads: int) -> GraphFilter:
        return PLaTFilter(self, num_heads)

    def _checked_scalar(self, name: str, value: Any) -> float | tuple[float, ...]:
        exponents = tuple(value) if is_sequence(value) else (value,)
        if not exponents or not all(-MOST <= finite_number(name, p) <= MOST for p in exponents):
            raise refusal(
                name,
                value,
                f"one number or several, from -{MOST} to {MOST}: float32 holds the factor of "
                f"values up to 65000 apart",
            )
        numbers = tuple(float(p) for p in exponents)
        return numbers if is_sequence(value) else numbers[0]


class PLaTFilter(GraphFilter):
    """The filter of `PLaTConfig`. Its kernels read the attention's inputs instead of `A x`."""

    kernels: ClassVar = {
        "triton": Kernel(plat_triton.triton, plat_triton.fits),
        "blockwise": Kernel(plat.blockwise),
    }
    backends = (*kernels, "eager")

    def __init__(self, config: PLaTConfig, num_heads: int) -> None:
        super().__init__(config, num_heads)
        self.eps = config.eps

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        p, values = self.scalar("p"), _values(attend, value)
        if attend.name in self.kernels:
            return self.kernels[attend.name].compute(attend.inputs, values, p, self.eps)
        return plat.naive(attend.matrix, values, p, self.eps)

    def matrix(self, attend: Attend, value: Tensor) -> Tensor:
        """A times the factor, (B, H, N, N); its product with the values is the output."""
        return plat.weights(attend.matrix, _values(attend, value), self.scalar("p"), self.eps)


def _values(attend: Attend, value: Tensor) -> plat.Values:
    return plat.Values(every=every_value(attend, value), rows=value)
