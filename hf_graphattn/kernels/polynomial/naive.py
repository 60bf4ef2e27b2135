"""The reference of polynomials in A, and how they are computed by passes of attention.

y_0 = V,   y_k = A y_(k-1),   out = sum_k c_k y_k
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from hf_graphattn.kernels.combination import Scalar, combination


def naive(
    attend: Callable[[Tensor], Tensor], value: Tensor, coefficients: Sequence[Scalar]
) -> Tensor:
    """`sum_k c_k A^k V`, (B, H, N, D), by calls of `attend(x) = A x`, one a degree.

    Each coefficient is a number or (H, 1, 1).
    """
    powers = [value]
    for _ in coefficients[1:]:
        powers.append(attend(powers[-1]))
    first, *others = zip(coefficients, powers, strict=True)
    return combination(*others, first)  # from A V on, whose weight of 1 costs no pass
