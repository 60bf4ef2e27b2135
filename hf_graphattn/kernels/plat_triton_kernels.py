"""p-LaT's Triton kernels. `plat` has the formulas, `plat_triton` launches the kernels.

One program makes a block of rows (in `columns_backward`, of keys) of one head and sweeps the other
axis, so that no N x N matrix is ever stored. Its own tokens are a tile's first axis: the matrix
units multiply 64 of them at once. Scores, softmax and the distance factor are float32, to base 2,
whose exponential and logarithm are single instructions; the products take their operands in the
states' dtype. `WIDE` is the dtype of the products with W and with gradients: the states' own, but
float32 for float16, which cannot hold a weight at a small distance.

States are read through the strides of (batch, head, token); their width is contiguous. What the
kernels write is laid out as (B, N, H, D), the layout that the next layer needs.

Importing this file needs Triton. Only `plat_triton` imports it, at its first call.
"""

# mypy: ignore-errors
# Triton's own language, not Python's.

from __future__ import annotations

import math

import triton
import triton.language as tl

from hf_graphattn.backends.kernels import interpreted

from .plat import ROUNDING

LOWEST = tl.constexpr(-3.4028234663852886e38)
LOG2_E = tl.constexpr(math.log2(math.e))
# Triton's interpreter multiplies the bits of bfloat16 as if they were integers.
INTERPRETED = tl.constexpr(interpreted())
LN_2 = tl.constexpr(math.log(2.0))
# 2^-23 is float32's unit in the last place: see `plat.distance_factor`.
NOISE = tl.constexpr(ROUNDING * 2.0**-23)


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


@triton.jit
def rows_forward(
    Q, K, V, X, CENTRE, MASK_AT, P, SEED, OUT, LOST, TOP, NORM,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, x_b, x_h, x_n, m_b, m_h, m_x, m_y,
    heads, rows, keys, scaling, eps, dropout,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    DROPOUT: tl.constexpr, CENTRED: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr, WIDE_PRECISION: tl.constexpr,
):  # fmt: skip
    """out = W V for a block of rows, what its rounding lost, the softmax's maximum and 1 / sum."""
    batch, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    shared = head // GROUP
    x_at = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    columns = tl.arange(0, COLUMNS)
    centre = tl.load(
        CENTRE + (batch * (heads // GROUP) + shared) * WIDTH + columns,
        mask=columns < WIDTH, other=0.0,
    )  # fmt: skip
    q = load(Q + batch * q_b + head * q_h, x_at, columns, q_n, rows, WIDTH)
    x = centred(load(X + batch * x_b + head * x_h, x_at, columns, x_n, rows, WIDTH),
                 centre, CENTRED)  # fmt: skip
    power = (tl.load(P + head) - 2.0) / 2.0
    seed = tl.load(SEED) + tl.program_id(1)
    top = tl.full([ROW_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([ROW_BLOCK], tl.float32)
    out = tl.zeros([ROW_BLOCK, COLUMNS], tl.float32)
    seen_by_all = tl.minimum(keys, tl.program_id(0) * ROW_BLOCK + 1) if CAUSAL else keys
    stop = tl.minimum(keys, (tl.program_id(0) + 1) * ROW_BLOCK) if CAUSAL else keys
    for start in range(0, stop, KEY_BLOCK):
        y_at = start + tl.arange(0, KEY_BLOCK)
        k = load(K + batch * k_b + shared * k_h, y_at, columns, k_n, keys, WIDTH)
        v = load(V + batch * v_b + shared * v_h, y_at, columns, v_n, keys, WIDTH)
        s = scores(
            q, k, x_at[:, None], y_at[None, :], MASK_AT + batch * m_b + head * m_h, m_x, m_y,
            scaling, rows, keys, start + KEY_BLOCK > seen_by_all, CAUSAL, MASK, PRECISION,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(s, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        a = exp2(s - finite[:, None], FAST)
        shrink = tl.exp2(top - finite)
        total = total * shrink + tl.sum(a, 1)
        if DROPOUT:
            a = tl.where(kept_of(seed, x_at, start, keys, dropout, KEY_BLOCK), a, 0.0)
        u = distances(x, centred(v, centre, CENTRED)) + eps
        w = a * exp2(power * log2(u, FAST), FAST)
        out = out * shrink[:, None]
        out += product(w.to(WIDE), v.to(WIDE), WIDE_PRECISION)
        top = higher
    norm = tl.where(total > 0.0, 1.0 / total, 0.0)
    first = (batch * rows * heads + head) * WIDTH
    out *= (norm / (1.0 - dropout))[:, None]
    rounded = out.to(OUT.dtype.element_ty)
    store(OUT + first, x_at, columns, heads, rounded, rows, WIDTH)
    if OUT.dtype.element_ty != tl.float32:
        store(LOST + first, x_at, columns, heads, out - rounded.to(tl.float32), rows, WIDTH)
    at = tl.program_id(1).to(tl.int64) * rows + x_at
    tl.store(TOP + at, tl.where(top == float("-inf"), 0.0, top), mask=x_at < rows)
    tl.store(NORM + at, norm, mask=x_at < rows)


@triton.jit
def _again(s, distance, product, top, norm, delta, kept, power, eps, dropout, FAST: tl.constexpr):
    """A tile of the backward, of its scores and dO V^T: W, dScores, T log2 u, and T / u."""
    softmax = exp2(s - top, FAST) * norm
    log = log2(distance + eps, FAST)
    w = tl.where(kept, softmax * exp2(power * log, FAST) * (1.0 / (1.0 - dropout)), 0.0)
    t = w * product
    pull = tl.where(distance > 0.0, t * exp2(-log, FAST), 0.0)
    return w, t - softmax * delta, t * log, pull


@triton.jit
def rows_backward(
    Q, K, V, X, CENTRE, MASK_AT, P, SEED, GRAD, OUT, LOST, TOP, NORM, DELTA, DQ, DX, DP,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, x_b, x_h, x_n, m_b, m_h, m_x, m_y, g_b, g_h, g_n,
    heads, rows, keys, scaling, eps, dropout,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    DROPOUT: tl.constexpr, CENTRED: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr, WIDE_PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients that belong to rows: of the queries, of the rows' values, of p.

    Beside them delta = rowsum(T) = dO . out, for `columns_backward` too. The rounded `out` would
    double the worst error of the queries' gradient, so what its rounding lost is added.

    The sums of `pull` are taken from its rounded form, which the product with y uses: else a large
    common offset of the values would not cancel.
    """
    batch, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    shared = head // GROUP
    x_at = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    columns = tl.arange(0, COLUMNS)
    centre = tl.load(
        CENTRE + (batch * (heads // GROUP) + shared) * WIDTH + columns,
        mask=columns < WIDTH, other=0.0,
    )  # fmt: skip
    q = load(Q + batch * q_b + head * q_h, x_at, columns, q_n, rows, WIDTH)
    x = centred(load(X + batch * x_b + head * x_h, x_at, columns, x_n, rows, WIDTH),
                 centre, CENTRED)  # fmt: skip
    grad = load(GRAD + batch * g_b + head * g_h, x_at, columns, g_n, rows, WIDTH)
    at = tl.program_id(1).to(tl.int64) * rows + x_at
    top = tl.load(TOP + at, mask=x_at < rows, other=0.0)
    norm = tl.load(NORM + at, mask=x_at < rows, other=0.0)
    first = (batch * rows * heads + head) * WIDTH
    out = load(OUT + first, x_at, columns, heads * WIDTH, rows, WIDTH).to(tl.float32)
    if OUT.dtype.element_ty != tl.float32:
        out += load(LOST + first, x_at, columns, heads * WIDTH, rows, WIDTH).to(tl.float32)
    delta = tl.sum(grad.to(tl.float32) * out, 1)
    tl.store(DELTA + at, delta, mask=x_at < rows)
    exponent = tl.load(P + head) - 2.0
    seed = tl.load(SEED) + tl.program_id(1)
    dq = tl.zeros([ROW_BLOCK, COLUMNS], tl.float32)
    dx = tl.zeros([ROW_BLOCK, COLUMNS], tl.float32)
    pulls = tl.zeros([ROW_BLOCK], tl.float32)
    dp = tl.zeros([ROW_BLOCK], tl.float32)
    seen_by_all = tl.minimum(keys, tl.program_id(0) * ROW_BLOCK + 1) if CAUSAL else keys
    stop = tl.minimum(keys, (tl.program_id(0) + 1) * ROW_BLOCK) if CAUSAL else keys
    for start in range(0, stop, KEY_BLOCK):
        y_at = start + tl.arange(0, KEY_BLOCK)
        k = load(K + batch * k_b + shared * k_h, y_at, columns, k_n, keys, WIDTH)
        v = load(V + batch * v_b + shared * v_h, y_at, columns, v_n, keys, WIDTH)
        y = centred(v, centre, CENTRED)
        s = scores(
            q, k, x_at[:, None], y_at[None, :], MASK_AT + batch * m_b + head * m_h, m_x, m_y,
            scaling, rows, keys, start + KEY_BLOCK > seen_by_all, CAUSAL, MASK, PRECISION,
        )  # fmt: skip
        kept = kept_of(seed, x_at, start, keys, dropout, KEY_BLOCK) if DROPOUT else True
        _, ds, logs, pull = _again(
            s, distances(x, y), product(grad, tl.trans(v), PRECISION),
            top[:, None], norm[:, None], delta[:, None], kept, exponent / 2.0, eps, dropout, FAST,
        )  # fmt: skip
        dq += product(ds.to(WIDE), k.to(WIDE), WIDE_PRECISION)
        rounded = pull.to(WIDE)
        dx -= product(rounded, y.to(WIDE), WIDE_PRECISION)
        pulls += tl.sum(rounded.to(tl.float32), 1)
        dp += tl.sum(logs, 1)
    store(DQ + first, x_at, columns, heads, dq * scaling, rows, WIDTH)
    dx = exponent * (dx + pulls[:, None] * x.to(tl.float32))
    store(DX + first, x_at, columns, heads, dx, rows, WIDTH)
    tl.store(DP + at, dp * (LN_2 / 2.0), mask=x_at < rows)


@triton.jit
def columns_backward(
    Q, K, V, X, CENTRE, MASK_AT, P, SEED, GRAD, TOP, NORM, DELTA, DK, DV,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, x_b, x_h, x_n, m_b, m_h, m_x, m_y, g_b, g_h, g_n,
    heads, rows, keys, scaling, eps, dropout,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    DROPOUT: tl.constexpr, CENTRED: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr, WIDE_PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients that belong to keys: of them and of their values, summed over a group's heads."""
    groups = heads // GROUP
    batch, shared = (
        (tl.program_id(1) // groups).to(tl.int64),
        (tl.program_id(1) % groups).to(tl.int64),
    )
    y_at = tl.program_id(0) * KEY_BLOCK + tl.arange(0, KEY_BLOCK)
    columns = tl.arange(0, COLUMNS)
    centre = tl.load(CENTRE + tl.program_id(1) * WIDTH + columns, mask=columns < WIDTH, other=0.0)
    k = load(K + batch * k_b + shared * k_h, y_at, columns, k_n, keys, WIDTH)
    v = load(V + batch * v_b + shared * v_h, y_at, columns, v_n, keys, WIDTH)
    y = centred(v, centre, CENTRED)
    dk = tl.zeros([KEY_BLOCK, COLUMNS], tl.float32)
    dv = tl.zeros([KEY_BLOCK, COLUMNS], tl.float32)
    pulls = tl.zeros([KEY_BLOCK], tl.float32)
    past = (tl.program_id(0) + 1) * KEY_BLOCK
    begin = (tl.program_id(0) * KEY_BLOCK) // ROW_BLOCK * ROW_BLOCK if CAUSAL else 0
    for member in range(GROUP):
        head = shared * GROUP + member
        row = batch * heads + head
        exponent = tl.load(P + head) - 2.0
        seed = tl.load(SEED) + row
        for start in range(begin, rows, ROW_BLOCK):
            x_at = start + tl.arange(0, ROW_BLOCK)
            q = load(Q + batch * q_b + head * q_h, x_at, columns, q_n, rows, WIDTH)
            x = centred(load(X + batch * x_b + head * x_h, x_at, columns, x_n, rows, WIDTH),
                         centre, CENTRED)  # fmt: skip
            grad = load(GRAD + batch * g_b + head * g_h, x_at, columns, g_n, rows, WIDTH)
            at = row * rows + x_at
            top = tl.load(TOP + at, mask=x_at < rows, other=0.0)
            norm = tl.load(NORM + at, mask=x_at < rows, other=0.0)
            delta = tl.load(DELTA + at, mask=x_at < rows, other=0.0)
            s = scores(
                k, q, x_at[None, :], y_at[:, None], MASK_AT + batch * m_b + head * m_h, m_x, m_y,
                scaling, rows, keys, CAUSAL and start + 1 < past, CAUSAL, MASK, PRECISION,
            )  # fmt: skip
            kept = True
            if DROPOUT:
                kept = tl.trans(kept_of(seed, x_at, past - KEY_BLOCK, keys, dropout, KEY_BLOCK))
            w, ds, _, pull = _again(
                s, distances(y, x), product(v, tl.trans(grad), PRECISION),
                top[None, :], norm[None, :], delta[None, :], kept, exponent / 2.0, eps, dropout,
                FAST,
            )  # fmt: skip
            dk += product(ds.to(WIDE), q.to(WIDE), WIDE_PRECISION)
            dv += product(w.to(WIDE), grad.to(WIDE), WIDE_PRECISION)
            rounded = pull.to(WIDE)
            dv -= exponent * product(rounded, x.to(WIDE), WIDE_PRECISION)
            pulls += exponent * tl.sum(rounded.to(tl.float32), 1)
    first = (batch * keys * groups + shared) * WIDTH
    store(DK + first, y_at, columns, groups, dk * scaling, keys, WIDTH)
    dv += pulls[:, None] * y.to(tl.float32)
    store(DV + first, y_at, columns, groups, dv, keys, WIDTH)
