"""p-LaT's Triton kernels. `blockwise` says what they compute, `triton` calls them.

One program makes a block of rows (in `columns_backward`, of keys) of one head and sweeps the other
axis, so that no N x N matrix is ever stored. Scores, softmax and the distance factor are float32;
the products take their operands in the states' dtype. `WIDE` is the dtype of the products with W
and with gradients: the states' own, but float32 for float16, which cannot hold a weight at a small
distance.

States are read through the strides of (batch, head, token); their width is contiguous. What the
kernels write is laid out as (B, N, H, D), the layout that the next layer needs.

Importing this file needs Triton. Only `triton` imports it, at its first call.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hf_graphattn.backends.triton import interpreted

from .naive import ROUNDING

# 2^-23 is float32's unit in the last place: see `naive.distance_factor`.
NOISE = tl.constexpr(ROUNDING * 2.0**-23)
LOWEST = tl.constexpr(-3.4028234663852886e38)
# Triton's interpreter multiplies the bits of bfloat16 as if they were integers.
INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def _load(base, tokens, columns, stride, limit, WIDTH: tl.constexpr):
    """A block of states, (tokens, columns); zeros beyond the last token and the width."""
    inside = (tokens[:, None] < limit) & (columns[None, :] < WIDTH)
    at = tokens[:, None].to(tl.int64) * stride + columns[None, :]
    return tl.load(base + at, mask=inside, other=0.0)


@triton.jit
def _store(base, tokens, columns, heads, block, limit, WIDTH: tl.constexpr):
    """Write a block of one head into a (N, H, D) tensor."""
    inside = (tokens[:, None] < limit) & (columns[None, :] < WIDTH)
    at = tokens[:, None].to(tl.int64) * (heads * WIDTH) + columns[None, :]
    tl.store(base + at, block.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    """The product a b, in float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _scores(
    q, k, x_at, y_at, mask, mask_x, mask_y, scaling, rows, keys,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Masked scores, (rows, keys): minus infinity where a row may not attend."""
    s = _product(q, tl.trans(k), PRECISION) * scaling
    allowed = (x_at[:, None] < rows) & (y_at[None, :] < keys)
    if MASK != "none":
        at = x_at[:, None].to(tl.int64) * mask_x + y_at[None, :].to(tl.int64) * mask_y
    if MASK == "boolean":
        allowed = allowed & (tl.load(mask + at, mask=allowed, other=0) != 0)
    if MASK == "additive":
        bias = tl.load(mask + at, mask=allowed, other=0.0).to(tl.float32)
        allowed = allowed & (bias != float("-inf"))
        s = tl.maximum(s + bias, LOWEST)
    if CAUSAL:
        allowed = allowed & (x_at[:, None] >= y_at[None, :])
    return tl.where(allowed, s, float("-inf"))


@triton.jit
def _distances(x, y):
    """u - eps = |x - y|^2, (rows, keys); 0 below the rounding error of the product."""
    x_squares = tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)
    y_squares = tl.sum(y.to(tl.float32) * y.to(tl.float32), 1)
    squares = x_squares[:, None] + y_squares[None, :]
    distance = squares - 2.0 * _product(x, tl.trans(y), "ieee")
    return tl.where(distance <= NOISE * squares, 0.0, distance)


@triton.jit
def _dropped(weights, seed, x_at, y_at, keys, dropout):
    """A after dropout, which is the same at every call with these positions and this seed."""
    drawn = tl.rand(seed, x_at[:, None] * keys + y_at[None, :])
    return tl.where(drawn >= dropout, weights / (1.0 - dropout), 0.0)


@triton.jit
def _centred(block, centre, CENTRED: tl.constexpr):
    if CENTRED:  # float32 states: a common offset changes no distance, but costs digits
        return block - centre[None, :]
    return block


@triton.jit
def rows_forward(
    Q, K, V, X, CENTRE, MASK_AT, P, SEED, OUT, TOP, NORM,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, x_b, x_h, x_n, m_b, m_h, m_x, m_y,
    heads, rows, keys, scaling, eps, dropout,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    DROPOUT: tl.constexpr, CENTRED: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr, WIDE_PRECISION: tl.constexpr,
):  # fmt: skip
    """out = W V for a block of rows; beside it the softmax's maximum and 1 / denominator."""
    batch, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    shared = head // GROUP
    x_at = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    columns = tl.arange(0, COLUMNS)
    centre = tl.load(
        CENTRE + (batch * (heads // GROUP) + shared) * WIDTH + columns,
        mask=columns < WIDTH, other=0.0,
    )  # fmt: skip
    q = _load(Q + batch * q_b + head * q_h, x_at, columns, q_n, rows, WIDTH)
    x = _centred(_load(X + batch * x_b + head * x_h, x_at, columns, x_n, rows, WIDTH),
                 centre, CENTRED)  # fmt: skip
    power = (tl.load(P + head) - 2.0) / 2.0
    seed = tl.load(SEED) + tl.program_id(1)
    top = tl.full([ROW_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([ROW_BLOCK], tl.float32)
    out = tl.zeros([ROW_BLOCK, COLUMNS], tl.float32)
    stop = tl.minimum(keys, (tl.program_id(0) + 1) * ROW_BLOCK) if CAUSAL else keys
    for start in range(0, stop, KEY_BLOCK):
        y_at = start + tl.arange(0, KEY_BLOCK)
        k = _load(K + batch * k_b + shared * k_h, y_at, columns, k_n, keys, WIDTH)
        v = _load(V + batch * v_b + shared * v_h, y_at, columns, v_n, keys, WIDTH)
        s = _scores(q, k, x_at, y_at, MASK_AT + batch * m_b + head * m_h, m_x, m_y,
                    scaling, rows, keys, CAUSAL, MASK, PRECISION)  # fmt: skip
        higher = tl.maximum(top, tl.max(s, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        a = tl.exp(s - finite[:, None])
        shrink = tl.exp(top - finite)
        total = total * shrink + tl.sum(a, 1)
        if DROPOUT:
            a = _dropped(a, seed, x_at, y_at, keys, dropout)
        u = _distances(x, _centred(v, centre, CENTRED)) + eps
        w = a * tl.exp(power * tl.log(u))
        out = out * shrink[:, None]
        out += _product(w.to(WIDE), v.to(WIDE), WIDE_PRECISION)
        top = higher
    norm = tl.where(total > 0.0, 1.0 / total, 0.0)
    first = (batch * rows * heads + head) * WIDTH
    _store(OUT + first, x_at, columns, heads, out * norm[:, None], rows, WIDTH)
    at = tl.program_id(1).to(tl.int64) * rows + x_at
    tl.store(TOP + at, tl.where(top == float("-inf"), 0.0, top), mask=x_at < rows)
    tl.store(NORM + at, norm, mask=x_at < rows)


@triton.jit
def _again(
    q, k, x, y, v, grad, top, norm, delta, x_at, y_at, mask, m_x, m_y, seed, power,
    scaling, eps, dropout, rows, keys,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of the backward: W, dScores, T log u, and T / u, each (rows, keys)."""
    s = _scores(q, k, x_at, y_at, mask, m_x, m_y, scaling, rows, keys, CAUSAL, MASK, PRECISION)
    softmax = tl.exp(s - top[:, None]) * norm[:, None]
    distance = _distances(x, y)
    log = tl.log(distance + eps)
    w = softmax * tl.exp(power * log)
    if DROPOUT:
        w = _dropped(w, seed, x_at, y_at, keys, dropout)
    t = w * _product(grad, tl.trans(v), PRECISION)
    pull = tl.where(distance > 0.0, t / (distance + eps), 0.0)
    return w, t - softmax * delta[:, None], t * log, pull


@triton.jit
def rows_backward(
    Q, K, V, X, CENTRE, MASK_AT, P, SEED, GRAD, TOP, NORM, DELTA, DQ, DX, DP, DMASK,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, x_b, x_h, x_n, m_b, m_h, m_x, m_y, g_b, g_h, g_n,
    heads, rows, keys, scaling, eps, dropout,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    DROPOUT: tl.constexpr, CENTRED: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr, WIDE_PRECISION: tl.constexpr,
    MASK_GRADIENT: tl.constexpr,
):  # fmt: skip
    """Gradients that belong to rows: of the queries, of the rows' values, of p; dScores if asked.

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
    q = _load(Q + batch * q_b + head * q_h, x_at, columns, q_n, rows, WIDTH)
    x = _centred(_load(X + batch * x_b + head * x_h, x_at, columns, x_n, rows, WIDTH),
                 centre, CENTRED)  # fmt: skip
    grad = _load(GRAD + batch * g_b + head * g_h, x_at, columns, g_n, rows, WIDTH)
    at = tl.program_id(1).to(tl.int64) * rows + x_at
    top = tl.load(TOP + at, mask=x_at < rows, other=0.0)
    norm = tl.load(NORM + at, mask=x_at < rows, other=0.0)
    delta = tl.load(DELTA + at, mask=x_at < rows, other=0.0)
    exponent = tl.load(P + head) - 2.0
    seed = tl.load(SEED) + tl.program_id(1)
    dq = tl.zeros([ROW_BLOCK, COLUMNS], tl.float32)
    dx = tl.zeros([ROW_BLOCK, COLUMNS], tl.float32)
    pulls = tl.zeros([ROW_BLOCK], tl.float32)
    dp = tl.zeros([ROW_BLOCK], tl.float32)
    stop = tl.minimum(keys, (tl.program_id(0) + 1) * ROW_BLOCK) if CAUSAL else keys
    for start in range(0, stop, KEY_BLOCK):
        y_at = start + tl.arange(0, KEY_BLOCK)
        k = _load(K + batch * k_b + shared * k_h, y_at, columns, k_n, keys, WIDTH)
        v = _load(V + batch * v_b + shared * v_h, y_at, columns, v_n, keys, WIDTH)
        y = _centred(v, centre, CENTRED)
        _, ds, logs, pull = _again(
            q, k, x, y, v, grad, top, norm, delta, x_at, y_at,
            MASK_AT + batch * m_b + head * m_h, m_x, m_y, seed, exponent / 2.0,
            scaling, eps, dropout, rows, keys, CAUSAL, MASK, DROPOUT, PRECISION,
        )  # fmt: skip
        dq += _product(ds.to(WIDE), k.to(WIDE), WIDE_PRECISION)
        rounded = pull.to(WIDE)
        dx -= _product(rounded, y.to(WIDE), WIDE_PRECISION)
        pulls += tl.sum(rounded.to(tl.float32), 1)
        dp += tl.sum(logs, 1)
        if MASK_GRADIENT:
            inside = (x_at[:, None] < rows) & (y_at[None, :] < keys)
            tl.store(DMASK + at[:, None] * keys + y_at[None, :], ds, mask=inside)
    first = (batch * rows * heads + head) * WIDTH
    _store(DQ + first, x_at, columns, heads, dq * scaling, rows, WIDTH)
    dx = exponent * (dx + pulls[:, None] * x.to(tl.float32))
    _store(DX + first, x_at, columns, heads, dx, rows, WIDTH)
    tl.store(DP + at, dp / 2.0, mask=x_at < rows)


@triton.jit
def columns_backward(
    Q, K, V, X, CENTRE, MASK_AT, P, SEED, GRAD, TOP, NORM, DELTA, DK, DV,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, x_b, x_h, x_n, m_b, m_h, m_x, m_y, g_b, g_h, g_n,
    heads, rows, keys, scaling, eps, dropout,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    DROPOUT: tl.constexpr, CENTRED: tl.constexpr, PRECISION: tl.constexpr,
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
    k = _load(K + batch * k_b + shared * k_h, y_at, columns, k_n, keys, WIDTH)
    v = _load(V + batch * v_b + shared * v_h, y_at, columns, v_n, keys, WIDTH)
    y = _centred(v, centre, CENTRED)
    dk = tl.zeros([KEY_BLOCK, COLUMNS], tl.float32)
    dv = tl.zeros([KEY_BLOCK, COLUMNS], tl.float32)
    begin = (tl.program_id(0) * KEY_BLOCK) // ROW_BLOCK * ROW_BLOCK if CAUSAL else 0
    for member in range(GROUP):
        head = shared * GROUP + member
        row = batch * heads + head
        exponent = tl.load(P + head) - 2.0
        seed = tl.load(SEED) + row
        for start in range(begin, rows, ROW_BLOCK):
            x_at = start + tl.arange(0, ROW_BLOCK)
            q = _load(Q + batch * q_b + head * q_h, x_at, columns, q_n, rows, WIDTH)
            x = _centred(_load(X + batch * x_b + head * x_h, x_at, columns, x_n, rows, WIDTH),
                         centre, CENTRED)  # fmt: skip
            grad = _load(GRAD + batch * g_b + head * g_h, x_at, columns, g_n, rows, WIDTH)
            at = row * rows + x_at
            top = tl.load(TOP + at, mask=x_at < rows, other=0.0)
            norm = tl.load(NORM + at, mask=x_at < rows, other=0.0)
            delta = tl.load(DELTA + at, mask=x_at < rows, other=0.0)
            w, ds, _, pull = _again(
                q, k, x, y, v, grad, top, norm, delta, x_at, y_at,
                MASK_AT + batch * m_b + head * m_h, m_x, m_y, seed, exponent / 2.0,
                scaling, eps, dropout, rows, keys, CAUSAL, MASK, DROPOUT, PRECISION,
            )  # fmt: skip
            dk += _product(tl.trans(ds.to(WIDE)), q.to(WIDE), WIDE_PRECISION)
            dv += _product(tl.trans(w.to(WIDE)), grad.to(WIDE), WIDE_PRECISION)
            rounded = pull.to(WIDE)
            dv -= exponent * _product(tl.trans(rounded), x.to(WIDE), WIDE_PRECISION)
            dv += exponent * tl.sum(rounded.to(tl.float32), 0)[:, None] * y.to(tl.float32)
    first = (batch * keys * groups + shared) * WIDTH
    _store(DK + first, y_at, columns, groups, dk * scaling, keys, WIDTH)
    _store(DV + first, y_at, columns, groups, dv, keys, WIDTH)
