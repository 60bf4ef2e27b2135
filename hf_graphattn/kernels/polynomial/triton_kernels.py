"""The Triton kernels of `c_0 V + c_1 A V + c_2 A (A V)`; `triton` says what they compute.

One program makes a block of rows or of keys of one head and sweeps the other axis, so that no
N x N matrix is ever stored. Scores are over ln 2, for exp2. The softmax's greatest score
and 1 / denominator are kept apart: beside a score of 1e4 their sum would lose the digits of A. Only
blocks that causality or the last key cuts are masked, unless there is a mask.

Queries, keys, values and the output's gradient are read through the strides of (batch, head,
token); their width is contiguous. All else is laid out as (B, N, H, D), the layout that the next
layer needs.

Importing this file needs Triton. Only `triton` imports it, at its first call.
"""

# mypy: ignore-errors
# Triton's own language, not Python's.

from __future__ import annotations

import triton
import triton.language as tl

from hf_graphattn.kernels.triton_tiles import exp2, load, product, scores, store


@triton.jit
def _place(heads):
    """The batch and the head of a program."""
    program = tl.program_id(1)
    return (program // heads).to(tl.int64), (program % heads).to(tl.int64)


@triton.jit
def _numbers(base, tokens, limit):
    """A number a token; zeros beyond the last one."""
    return tl.load(base + tokens, mask=tokens < limit, other=0.0)


@triton.jit
def _keys(
    length, ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr,
    CUT: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """From where to where a program's rows attend: in blocks that are cut, or in the others."""
    first = tl.program_id(0) * ROW_BLOCK
    whole = 0 if MASK != "none" else (first if CAUSAL else length) // KEY_BLOCK * KEY_BLOCK
    if CUT:
        return whole, tl.minimum(length, first + ROW_BLOCK) if CAUSAL else length
    return 0, whole


@triton.jit
def _rows(
    length, ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr,
    CUT: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """From where to where rows attend to a program's keys: in blocks that are cut, or not."""
    first = tl.program_id(0) * KEY_BLOCK
    whole = length
    if MASK == "none":
        after = (first + KEY_BLOCK + ROW_BLOCK - 2) // ROW_BLOCK * ROW_BLOCK if CAUSAL else 0
        whole = tl.where(first + KEY_BLOCK > length, length, tl.minimum(length, after))
    if CUT:
        return first // ROW_BLOCK * ROW_BLOCK if CAUSAL else 0, whole
    return whole, length


@triton.jit
def first_pass(
    Q, K, V, MASK_AT, C, Y, TOP, NORM,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, m_b, m_h, m_x, m_y, heads, length, scaling,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y = A V for a block of rows; beside it the softmax's greatest score and 1 / denominator."""
    batch, head = _place(heads)
    x_at = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    columns = tl.arange(0, COLUMNS)
    keys, values = K + batch * k_b + head // GROUP * k_h, V + batch * v_b + head // GROUP * v_h
    q = load(Q + batch * q_b + head * q_h, x_at, columns, q_n, length, WIDTH)
    top = tl.full([ROW_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([ROW_BLOCK], tl.float32)
    y = tl.zeros([ROW_BLOCK, COLUMNS], tl.float32)
    mask = MASK_AT + batch * m_b + head * m_h
    for cut in tl.static_range(0 if MASK == "none" else 1, 2):
        begin, end = _keys(length, ROW_BLOCK, KEY_BLOCK, cut, CAUSAL, MASK)
        for start in range(begin, end, KEY_BLOCK):
            y_at = start + tl.arange(0, KEY_BLOCK)
            k = load(keys, y_at, columns, k_n, length, WIDTH)
            v = load(values, y_at, columns, v_n, length, WIDTH)
            s = scores(q, k, x_at[:, None], y_at[None, :], mask, m_x, m_y, scaling,
                       length, length, cut, CAUSAL, MASK, PRECISION)  # fmt: skip
            higher = tl.maximum(top, tl.max(s, 1))
            finite = tl.where(higher == float("-inf"), 0.0, higher)
            a = exp2(s - finite[:, None], FAST)
            shrink = tl.exp2(top - finite)
            total = total * shrink + tl.sum(a, 1)
            y = y * shrink[:, None]
            y += product(a.to(v.dtype), v, PRECISION)
            top = higher
    norm = tl.where(total > 0.0, 1.0 / tl.where(total > 0.0, total, 1.0), 0.0)
    first = (batch * length * heads + head) * WIDTH
    store(Y + first, x_at, columns, heads, y * norm[:, None], length, WIDTH)
    line = tl.program_id(1).to(tl.int64) * length
    tl.store(TOP + line + x_at, tl.where(top == float("-inf"), 0.0, top), mask=x_at < length)
    tl.store(NORM + line + x_at, norm, mask=x_at < length)


@triton.jit
def second_pass(
    Q, K, V, MASK_AT, C, Y, TOP, NORM, Z, OUT,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, m_b, m_h, m_x, m_y, heads, length, scaling,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """z = A y and c_0 v + c_1 y + c_2 z for a block of rows."""
    batch, head = _place(heads)
    x_at = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    columns = tl.arange(0, COLUMNS)
    keys, values = K + batch * k_b + head // GROUP * k_h, V + batch * v_b + head // GROUP * v_h
    first, step = (batch * length * heads + head) * WIDTH, heads * WIDTH
    line = tl.program_id(1).to(tl.int64) * length
    q = load(Q + batch * q_b + head * q_h, x_at, columns, q_n, length, WIDTH)
    top = _numbers(TOP + line, x_at, length)
    norm = _numbers(NORM + line, x_at, length)
    z = tl.zeros([ROW_BLOCK, COLUMNS], tl.float32)
    mask = MASK_AT + batch * m_b + head * m_h
    for cut in tl.static_range(0 if MASK == "none" else 1, 2):
        begin, end = _keys(length, ROW_BLOCK, KEY_BLOCK, cut, CAUSAL, MASK)
        for start in range(begin, end, KEY_BLOCK):
            y_at = start + tl.arange(0, KEY_BLOCK)
            k = load(keys, y_at, columns, k_n, length, WIDTH)
            y = load(Y + first, y_at, columns, step, length, WIDTH)
            s = scores(q, k, x_at[:, None], y_at[None, :], mask, m_x, m_y, scaling,
                       length, length, cut, CAUSAL, MASK, PRECISION)  # fmt: skip
            z += product(exp2(s - top[:, None], FAST).to(y.dtype), y, PRECISION)
    z = z * norm[:, None]
    v = load(values, x_at, columns, v_n, length, WIDTH)
    y = load(Y + first, x_at, columns, step, length, WIDTH)
    out = tl.load(C + 3 * head) * v + tl.load(C + 3 * head + 1) * y + tl.load(C + 3 * head + 2) * z
    store(Z + first, x_at, columns, heads, z, length, WIDTH)
    store(OUT + first, x_at, columns, heads, out, length, WIDTH)


@triton.jit
def inner_backward(
    Q, K, V, MASK_AT, C, Y, TOP, NORM, Z, GRAD, DY, DELTA, DC,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, m_b, m_h, m_x, m_y,
    g_b, g_h, g_n, heads, length, scaling,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dy = c_1 g + c_2 A^T g for a block of keys; of the same tokens delta, and g.v, g.y, g.z."""
    batch, head = _place(heads)
    y_at = tl.program_id(0) * KEY_BLOCK + tl.arange(0, KEY_BLOCK)
    columns = tl.arange(0, COLUMNS)
    queries, grads = Q + batch * q_b + head * q_h, GRAD + batch * g_b + head * g_h
    keys, values = K + batch * k_b + head // GROUP * k_h, V + batch * v_b + head // GROUP * v_h
    line = tl.program_id(1).to(tl.int64) * length
    k = load(keys, y_at, columns, k_n, length, WIDTH)
    back = tl.zeros([KEY_BLOCK, COLUMNS], tl.float32)
    mask = MASK_AT + batch * m_b + head * m_h
    for cut in tl.static_range(0 if MASK == "none" else 1, 2):
        begin, end = _rows(length, ROW_BLOCK, KEY_BLOCK, cut, CAUSAL, MASK)
        for start in range(begin, end, ROW_BLOCK):
            x_at = start + tl.arange(0, ROW_BLOCK)
            q = load(queries, x_at, columns, q_n, length, WIDTH)
            g = load(grads, x_at, columns, g_n, length, WIDTH)
            top = _numbers(TOP + line, x_at, length)
            norm = _numbers(NORM + line, x_at, length)
            s = scores(k, q, x_at[None, :], y_at[:, None], mask, m_x, m_y, scaling,
                       length, length, cut, CAUSAL, MASK, PRECISION)  # fmt: skip
            a = exp2(s - top[None, :], FAST) * norm[None, :]
            back += product(a.to(g.dtype), g, PRECISION)
    c_1, c_2 = tl.load(C + 3 * head + 1), tl.load(C + 3 * head + 2)
    first, step = (batch * length * heads + head) * WIDTH, heads * WIDTH
    g = load(grads, y_at, columns, g_n, length, WIDTH).to(tl.float32)
    v = load(values, y_at, columns, v_n, length, WIDTH)
    y = load(Y + first, y_at, columns, step, length, WIDTH)
    z = load(Z + first, y_at, columns, step, length, WIDTH)
    dy = (c_1 * g + c_2 * back).to(y.dtype)
    store(DY + first, y_at, columns, heads, dy, length, WIDTH)
    of_z = tl.sum(g * z, 1)
    delta = c_2 * of_z + tl.sum(dy.to(tl.float32) * y, 1)
    tl.store(DELTA + line + y_at, delta, mask=y_at < length)
    tl.store(DC + 3 * line + y_at, tl.sum(g * v, 1), mask=y_at < length)
    tl.store(DC + 3 * line + length + y_at, tl.sum(g * y, 1), mask=y_at < length)
    tl.store(DC + 3 * line + 2 * length + y_at, of_z, mask=y_at < length)


@triton.jit
def keys_backward(
    Q, K, V, MASK_AT, C, Y, TOP, NORM, GRAD, DY, DELTA, DQ, DK, DV, DMASK,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, m_b, m_h, m_x, m_y,
    g_b, g_h, g_n, heads, length, scaling,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    ADD_DQ: tl.constexpr, MASK_GRADIENT: tl.constexpr,
):  # fmt: skip
    """dK and dV for a block of keys, summed over a group's heads; dScores if asked.

    With ADD_DQ it adds into dQ too, in an order that differs from run to run.
    """
    groups = heads // GROUP
    batch, shared = _place(groups)
    y_at = tl.program_id(0) * KEY_BLOCK + tl.arange(0, KEY_BLOCK)
    columns = tl.arange(0, COLUMNS)
    k = load(K + batch * k_b + shared * k_h, y_at, columns, k_n, length, WIDTH)
    v = load(V + batch * v_b + shared * v_h, y_at, columns, v_n, length, WIDTH)
    dk = tl.zeros([KEY_BLOCK, COLUMNS], tl.float32)
    dv = tl.zeros([KEY_BLOCK, COLUMNS], tl.float32)
    step = heads * WIDTH
    for member in range(GROUP):
        head = shared * GROUP + member
        line, first = (batch * heads + head) * length, (batch * length * heads + head) * WIDTH
        grads = GRAD + batch * g_b + head * g_h
        c_2 = tl.load(C + 3 * head + 2)
        y = load(Y + first, y_at, columns, step, length, WIDTH)
        dv += tl.load(C + 3 * head) * load(grads, y_at, columns, g_n, length, WIDTH)
        mask = MASK_AT + batch * m_b + head * m_h
        for cut in tl.static_range(0 if MASK == "none" else 1, 2):
            begin, end = _rows(length, ROW_BLOCK, KEY_BLOCK, cut, CAUSAL, MASK)
            for start in range(begin, end, ROW_BLOCK):
                x_at = start + tl.arange(0, ROW_BLOCK)
                q = load(Q + batch * q_b + head * q_h, x_at, columns, q_n, length, WIDTH)
                g = load(grads, x_at, columns, g_n, length, WIDTH)
                dy = load(DY + first, x_at, columns, step, length, WIDTH)
                top = _numbers(TOP + line, x_at, length)
                norm = _numbers(NORM + line, x_at, length)
                delta = _numbers(DELTA + line, x_at, length)
                s = scores(k, q, x_at[None, :], y_at[:, None], mask, m_x, m_y, scaling,
                           length, length, cut, CAUSAL, MASK, PRECISION)  # fmt: skip
                a = exp2(s - top[None, :], FAST) * norm[None, :]
                da = c_2 * product(y, tl.trans(g), PRECISION)
                da += product(v, tl.trans(dy), PRECISION)
                ds = a * (da - delta[None, :])
                dv += product(a.to(dy.dtype), dy, PRECISION)
                dk += product(ds.to(q.dtype), q, PRECISION)
                if ADD_DQ:
                    dq = product(tl.trans(ds.to(k.dtype)), k, PRECISION) * scaling
                    inside = (x_at[:, None] < length) & (columns[None, :] < WIDTH)
                    at = first + x_at[:, None].to(tl.int64) * step + columns[None, :]
                    tl.atomic_add(DQ + at, dq, mask=inside, sem="relaxed")
                if MASK_GRADIENT:
                    inside = (x_at[None, :] < length) & (y_at[:, None] < length)
                    at = (line + x_at[None, :]) * length + y_at[:, None]
                    tl.store(DMASK + at, ds, mask=inside)
    first = (batch * length * groups + shared) * WIDTH
    store(DK + first, y_at, columns, groups, dk * scaling, length, WIDTH)
    store(DV + first, y_at, columns, groups, dv, length, WIDTH)


@triton.jit
def rows_backward(
    Q, K, V, MASK_AT, C, Y, TOP, NORM, GRAD, DY, DELTA, DQ,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, m_b, m_h, m_x, m_y,
    g_b, g_h, g_n, heads, length, scaling,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, KEY_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ for a block of rows: what `keys_backward` adds up, in one order at every run."""
    batch, head = _place(heads)
    x_at = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    columns = tl.arange(0, COLUMNS)
    keys, values = K + batch * k_b + head // GROUP * k_h, V + batch * v_b + head // GROUP * v_h
    line = tl.program_id(1).to(tl.int64) * length
    first, step = (batch * length * heads + head) * WIDTH, heads * WIDTH
    c_2 = tl.load(C + 3 * head + 2)
    q = load(Q + batch * q_b + head * q_h, x_at, columns, q_n, length, WIDTH)
    g = load(GRAD + batch * g_b + head * g_h, x_at, columns, g_n, length, WIDTH)
    dy = load(DY + first, x_at, columns, step, length, WIDTH)
    top = _numbers(TOP + line, x_at, length)
    norm = _numbers(NORM + line, x_at, length)
    delta = _numbers(DELTA + line, x_at, length)
    dq = tl.zeros([ROW_BLOCK, COLUMNS], tl.float32)
    mask = MASK_AT + batch * m_b + head * m_h
    for cut in tl.static_range(0 if MASK == "none" else 1, 2):
        begin, end = _keys(length, ROW_BLOCK, KEY_BLOCK, cut, CAUSAL, MASK)
        for start in range(begin, end, KEY_BLOCK):
            y_at = start + tl.arange(0, KEY_BLOCK)
            k = load(keys, y_at, columns, k_n, length, WIDTH)
            v = load(values, y_at, columns, v_n, length, WIDTH)
            y = load(Y + first, y_at, columns, step, length, WIDTH)
            s = scores(q, k, x_at[:, None], y_at[None, :], mask, m_x, m_y, scaling,
                       length, length, cut, CAUSAL, MASK, PRECISION)  # fmt: skip
            a = exp2(s - top[:, None], FAST) * norm[:, None]
            da = c_2 * product(g, tl.trans(y), PRECISION)
            da += product(dy, tl.trans(v), PRECISION)
            dq += product((a * (da - delta[:, None])).to(k.dtype), k, PRECISION)
    store(DQ + first, x_at, columns, heads, dq * scaling, length, WIDTH)
