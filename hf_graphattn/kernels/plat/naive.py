"""The reference of p-LaT: every matrix whole.

    out_x = sum_y A_xy f_xy v_y,    f_xy = (|v_x - v_y|^2 + eps)^((p - 2) / 2)

Shapes: A (B, H, Nq, Nk), values (B, H, Nk, D), out (B, H, Nq, D).
"""

from __future__ import annotations

import torch
from torch import Tensor


def naive(matrix: Tensor, value: Tensor, p: float | Tensor, eps: float) -> Tensor:
    """p-LaT of `matrix` (A, after dropout) and `value`; p a number or (H, 1, 1)."""
    return (weights(matrix, value, p, eps) @ value).to(value.dtype)


def weights(matrix: Tensor, value: Tensor, p: float | Tensor, eps: float, start: int = 0) -> Tensor:
    """`A * f`, (B, H, rows, Nk), in A's dtype; the rows of `matrix` begin with row `start` of A."""
    rows = slice(start, start + matrix.shape[-2])
    return matrix * distance_factor(value, rows, p, eps).to(matrix.dtype)


def distance_factor(value: Tensor, rows: slice, p: float | Tensor, eps: float) -> Tensor:
    """These rows of `f`, (B, H, rows, Nk), in float32 (float64 for float64 values).

    `|x - y|^2 = |x|^2 + |y|^2 - 2 x.y` cancels badly: so it is computed in float32 outside
    autocast, the values are centred first (a common offset changes no distance, but costs
    digits), the diagonal is 0 by definition, and rounding may push nothing below 0.
    """
    precise = torch.promote_types(value.dtype, torch.float32)
    with torch.autocast(value.device.type, enabled=False):
        y = value.to(precise)
        y = y - y.mean(dim=-2, keepdim=True).detach()
        x = y[:, :, rows]
        square = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
        square = torch.baddbmm(
            square.flatten(0, 1), x.flatten(0, 1), y.flatten(0, 1).mT, alpha=-2.0
        ).view(square.shape)
        square.diagonal(rows.start, -2, -1).zero_()
        return (square.clamp_min(0.0) + eps) ** ((p - 2.0) / 2.0)
