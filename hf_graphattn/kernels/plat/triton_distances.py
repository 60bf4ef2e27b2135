"""What p-LaT's Triton kernels have of their own: distances of values, and dropout.

Importing this file needs Triton.
"""

# mypy: ignore-errors
# Triton's own language, not Python's.

from __future__ import annotations

import triton
import triton.language as tl

from hf_graphattn.kernels.triton_tiles import product

from .naive import ROUNDING

# 2^-23 is float32's unit in the last place: see `naive.distance_factor`.
NOISE = tl.constexpr(ROUNDING * 2.0**-23)


@triton.jit
def distances(x, y):
    """u - eps = |x - y|^2, (rows, keys); 0 below the rounding error of the product."""
    x_squares = tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)
    y_squares = tl.sum(y.to(tl.float32) * y.to(tl.float32), 1)
    squares = x_squares[:, None] + y_squares[None, :]
    distance = squares - 2.0 * product(x, tl.trans(y), "ieee")
    return tl.where(distance <= NOISE * squares, 0.0, distance)


@triton.jit
def kept_of(seed, x_at, start, keys, dropout, KEY_BLOCK: tl.constexpr):
    """Which weights dropout keeps, (rows, keys): the same at every call with this seed.

    One call of the generator serves four keys in a row, so a block of keys starts at a multiple.
    """
    fours = start // 4 + tl.arange(0, KEY_BLOCK // 4)
    a, b, c, d = tl.rand4x(seed, x_at[:, None] * tl.cdiv(keys, 4) + fours[None, :])
    kept = tl.join(tl.join(a >= dropout, b >= dropout), tl.join(c >= dropout, d >= dropout))
    return tl.reshape(kept, [x_at.shape[0], KEY_BLOCK])


@triton.jit
def centred(block, centre, CENTRED: tl.constexpr):
    if CENTRED:  # float32 states: a common offset changes no distance, but costs digits
        return block - centre[None, :]
    return block
