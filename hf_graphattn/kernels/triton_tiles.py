"""What the Triton kernels of all variants share: blocks of states, products, scores, base 2.

Importing this file needs Triton.
"""

# mypy: ignore-errors
# Triton's own language, not Python's.

from __future__ import annotations

import math

import triton
import triton.language as tl

from hf_graphattn.backends.triton import interpreted

LOWEST = tl.constexpr(-3.4028234663852886e38)
LOG2_E = tl.constexpr(math.log2(math.e))
# Triton's interpreter multiplies the bits of bfloat16 as if they were integers.
INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def load(base, tokens, columns, stride, limit, WIDTH: tl.constexpr):
    """A block of states, (tokens, columns); zeros beyond the last token and the width."""
    inside = (tokens[:, None] < limit) & (columns[None, :] < WIDTH)
    at = tokens[:, None].to(tl.int64) * stride + columns[None, :]
    return tl.load(base + at, mask=inside, other=0.0)


@triton.jit
def store(base, tokens, columns, heads, block, limit, WIDTH: tl.constexpr):
    """Write a block of one head into a (N, H, D) tensor."""
    inside = (tokens[:, None] < limit) & (columns[None, :] < WIDTH)
    at = tokens[:, None].to(tl.int64) * (heads * WIDTH) + columns[None, :]
    tl.store(base + at, block.to(base.dtype.element_ty), mask=inside)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """The product a b, in float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def scores(
    left, right, x_at, y_at, mask, mask_x, mask_y, scaling, rows, keys, edge,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Masked scores over ln 2, (left, right): minus infinity where a row may not attend.

    Beyond a mask given, only an `edge` is compared: the causal diagonal, and the last keys.
    """
    s = product(left, tl.trans(right), PRECISION) * (scaling * LOG2_E)
    if MASK != "none":
        inside = (x_at < rows) & (y_at < keys)
        at = x_at.to(tl.int64) * mask_x + y_at.to(tl.int64) * mask_y
    if MASK == "boolean":
        s = tl.where(tl.load(mask + at, mask=inside, other=0) != 0, s, float("-inf"))
    if MASK == "additive":
        bias = tl.load(mask + at, mask=inside, other=float("-inf")).to(tl.float32)
        s = tl.where(bias > float("-inf"), tl.maximum(s + bias * LOG2_E, LOWEST), bias)
    if edge:
        allowed = (y_at < keys) & (x_at >= y_at) if CAUSAL else y_at < keys
        s = tl.where(allowed, s, float("-inf"))
    return s


@triton.jit
def exp2(x, FAST: tl.constexpr):
    """2^x; FAST: by the hardware's instruction, with a relative error of 2^-22."""
    if FAST:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
        )
    return tl.exp2(x)


@triton.jit
def log2(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
        )
    return tl.log2(x)
