"""The reference of p-LaT, which forms every matrix whole.

    out_x = sum_y A_xy f_xy v_y,    f_xy = (|v_x - v_y|^2 + eps)^((p - 2) / 2)

Shapes: A (B, H, Nq, Nk), values (B, H, Nk, D), out (B, H, Nq, D).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# The rounding error of |x|^2 + |y|^2 - 2 x.y, at most, in units in the last place of |x|^2 + |y|^2.
ROUNDING = 8


@dataclass(frozen=True)
class Values:
    """The values of all keys, (B, H, Nk, D), and of A's rows, (B, H, rows, D).

    The rows are all of the keys, a block of them, or, in cached generation, the new tokens.
    """

    every: Tensor
    rows: Tensor

    def block(self, start: int, stop: int) -> Values:
        """The values of all keys and of the rows from `start` to `stop`."""
        return Values(self.every, self.rows[:, :, start:stop])


def naive(matrix: Tensor, values: Values, p: float | Tensor, eps: float) -> Tensor:
    """p-LaT of `matrix` (A, after dropout), (B, H, rows, D); p is a number or (H, 1, 1)."""
    return (weights(matrix, values, p, eps) @ values.every).to(values.every.dtype)


def weights(matrix: Tensor, values: Values, p: float | Tensor, eps: float) -> Tensor:
    """`A * f`, (B, H, rows, Nk), in A's dtype."""
    return matrix * distance_factor(values, p, eps).to(matrix.dtype)


def distance_factor(values: Values, p: float | Tensor, eps: float) -> Tensor:
    """`f`, (B, H, rows, Nk), in float32 (float64 for float64 values).

    `|x - y|^2 = |x|^2 + |y|^2 - 2 x.y` loses digits by cancellation. So it is computed in float32
    outside autocast; the values are centred first, since a common offset changes no distance but
    costs digits; and a distance below the rounding error of the sum is taken as 0, so that equal
    values (of a token and itself, of repeated tokens) are at distance 0. One row, as of a new token
    in cached generation, is few enough for the differences themselves.
    """
    precise = torch.promote_types(values.every.dtype, torch.float32)
    with torch.autocast(values.every.device.type, enabled=False):
        if values.rows.shape[-2] == 1:
            between = values.rows.to(precise) - values.every.to(precise)
            distance = torch.linalg.vector_norm(between, dim=-1).square().unsqueeze(-2)
            return (distance + eps) ** ((p - 2.0) / 2.0)
        every = values.every.to(precise)
        centre = every.mean(dim=-2, keepdim=True).detach()
        x, y = values.rows.to(precise) - centre, every - centre
        squares = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
        distance = torch.baddbmm(
            squares.flatten(0, 1), x.flatten(0, 1), y.flatten(0, 1).mT, alpha=-2.0
        ).view(squares.shape)
        noise = ROUNDING * torch.finfo(precise).eps * squares.detach()
        return (distance.masked_fill(distance <= noise, 0.0) + eps) ** ((p - 2.0) / 2.0)
