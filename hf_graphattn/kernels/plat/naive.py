"""The reference of p-LaT: every matrix whole.

    out_x = sum_y A_xy f_xy v_y,    f_xy = (|v_x - v_y|^2 + eps)^((p - 2) / 2)

Shapes: A (B, H, Nq, Nk), values (B, H, Nk, D), out (B, H, Nq, D).
"""

from __future__ import annotations

import torch
from torch import Tensor


def naive(matrix: Tensor, value: Tensor, p: float | Tensor, eps: float) -> Tensor:
    """p-LaT of `matrix` (A, after dropout) and `value`; p a number or (H, 1, 1)."""
    return (weights(matrix, value, value, p, eps) @ value).to(value.dtype)


def weights(
    matrix: Tensor, query_value: Tensor, value: Tensor, p: float | Tensor, eps: float
) -> Tensor:
    """`A * f`, (B, H, Nq, Nk), in A's dtype; `query_value` holds the values of A's rows."""
    return matrix * distance_factor(query_value, value, p, eps).to(matrix.dtype)


def distance_factor(query_value: Tensor, value: Tensor, p: float | Tensor, eps: float) -> Tensor:
    """`f`, (B, H, Nq, Nk), in float32 (float64 for float64 values).

    `|x - y|^2 = |x|^2 + |y|^2 - 2 x.y` cancels badly: so it is computed in float32 outside
    autocast, the values are centred first (a common offset changes no distance, but costs
    digits), and rounding may not push it below 0.
    """
    precise = torch.promote_types(value.dtype, torch.float32)
    with torch.autocast(value.device.type, enabled=False):
        y = value.to(precise)
        centre = y.mean(dim=-2, keepdim=True).detach()
        x, y = query_value.to(precise) - centre, y - centre
        square = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
        square = torch.baddbmm(
            square.flatten(0, 1), x.flatten(0, 1), y.flatten(0, 1).mT, alpha=-2.0
        ).view(square.shape)
        return (square.clamp_min(0.0) + eps) ** ((p - 2.0) / 2.0)
