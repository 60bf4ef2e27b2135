"""Sums of states times scalars: what filters and kernels end with."""

from __future__ import annotations

import torch
from torch import Tensor

Scalar = float | Tensor  # a number, (H, 1, 1) or (B, H, N, 1)
Term = tuple[Scalar, Tensor]  # times (B, H, N, D)


def combination(first: Term, *others: Term) -> Tensor:
    """`c_1 x_1 + c_2 x_2 + ...` in the dtype of x_1, by one elementwise pass for each term.

    Half precision times a float32 scalar is computed in float32 and rounded once, at the end.
    """
    scalar, x = first
    out = x if isinstance(scalar, float) and scalar == 1.0 else scalar * x
    for scalar, other in others:
        if isinstance(scalar, Tensor):
            out = torch.addcmul(out, other, scalar)
        elif scalar != 0.0:
            out = torch.add(out, other, alpha=scalar)
    return out.to(x.dtype)
