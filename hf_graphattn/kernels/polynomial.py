"""Polynomials in A: passes of attention (`naive`), and blocks of A (`blockwise`).

    y_0 = V,   y_k = A y_(k-1),   out = sum_k c_k y_k

`blockwise` computes the forward and the backward by hand, with memory linear in the length:

    d_K = c_K dO,   d_k = c_k dO + A^T d_(k+1),   dV = d_0,   dc_k = sum dO y_k
    dA = [d_1 | ... | d_K] [y_0 | ... | y_(K-1)]^T,   dScores = A (dA - rowsum(sum_k d_k y_k))

A block of A is made once in the forward and once in the backward, for all degrees: at degree 2
that is ten products, where two fused passes take fourteen and one takes seven. So a block's rows of
y_(k-1) must be there before those of y_k. Under causality they need no later rows: the forward
walks the blocks of rows from the first to the last, and the backward, whose d_k needs no earlier
rows of d_(k+1), from the last to the first. Without it, a block has all rows of some heads.

Where A is not much larger than the states, its blocks are kept for the backward: nine products.
Everything is computed in float32 (float64 for float64 states), outside autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hf_graphattn.backends import AttentionInputs, attention_matrix
from hf_graphattn.backends.fused import KEPT_STATES

from . import (
    Part,
    Scalar,
    combination,
    part_of,
    parts,
    refuse_second_derivatives,
    row_blocks,
    traced,
)

BLOCK_ROWS = 128  # under causality: fewer make narrow products, more make more that is hidden
BLOCK_ELEMENTS = 2**20  # of a block's matrices, 4 MB in float32 a thread, or one head a thread


def naive(
    attend: Callable[[Tensor], Tensor], value: Tensor, coefficients: Sequence[Scalar]
) -> Tensor:
    """The reference: one pass of attention a degree.

    Args:
        attend: x -> A x.
        value: V, (B, H, N, D).
        coefficients: c_0, c_1 ...: each is a number or (H, 1, 1).

    Returns:
        `sum_k c_k A^k V`, (B, H, N, D).
    """
    powers = [value]
    for _ in coefficients[1:]:
        powers.append(attend(powers[-1]))
    first, *others = zip(coefficients, powers, strict=True)
    return combination(*others, first)  # from A V on, whose weight of 1 costs no pass


def blockwise(
    inputs: AttentionInputs,
    value: Tensor,
    coefficients: Sequence[Scalar],
    block_rows: int = BLOCK_ROWS,
    block_elements: int = BLOCK_ELEMENTS,
    kept_states: int = KEPT_STATES,
    store: Callable[[int, Tensor], object] | None = None,
) -> Tensor:
    """The polynomial in blocks of A, without dropout.

    Args:
        inputs: the attention's.
        value: V, (B, H, N, D).
        coefficients: c_0, c_1 ...: each is a number or (H, 1, 1).
        block_rows: the most rows of a block, under causality.
        block_elements: about how many elements a block has for each thread.
        kept_states: A is kept for the backward if it is not larger than so many states.
        store: called with k - 1 and y_k for each k >= 1 but the last, for cached generation;
            without gradients.

    Returns:
        `sum_k c_k A^k V`, (B, H, N, D).
    """
    query, precise = inputs.query, torch.promote_types(inputs.query.dtype, torch.float32)
    batch, heads, length, width = query.shape
    rows = min(block_rows, length) if inputs.causal else length
    blocks = row_blocks(length, rows)
    # Heads for every thread: products of fewer, transposed, are many times slower.
    at_once = max(1, block_elements // (rows * length)) * torch.get_num_threads()
    elements = sum((block.stop - block.start) * block.stop for block in blocks)
    learns = torch.is_grad_enabled()
    keep = learns and elements <= kept_states * length * width
    plan = _Plan(inputs.causal, inputs.scaling, keep, parts(batch, heads, at_once), blocks)
    scalars = (torch.as_tensor(c, dtype=precise, device=query.device) for c in coefficients)
    tensors: Any = (query, inputs.key, inputs.mask, value, *(c.view(1, -1, 1, 1) for c in scalars))
    if learns:
        return _Blockwise.apply(plan, *tensors)
    out, powers, _ = _forward(plan, *tensors)
    if store is not None:
        for index, power in enumerate(powers[1:-1]):
            store(index, power)
    return out


def fits(inputs: AttentionInputs) -> bool:
    """Whether `blockwise` computes the call.

    It has no dropout and needs tokens. It does not run in a graph that must serve all lengths, nor
    in torch.func's transforms and forward mode, which take no gradient by hand.
    """
    return inputs.dropout == 0.0 and not traced() and inputs.query.numel() > 0


@dataclass(frozen=True)
class _Plan:
    """The arguments of `_Blockwise` that are not tensors, and what is computed at once.

    A block has some rows, and the keys up to the last of these rows.
    """

    causal: bool
    scaling: float
    keep: bool  # whether A is kept for the backward
    parts: list[Part]
    blocks: list[slice]

    def space(self, query: Tensor) -> Tensor:
        """Room for the greatest block of A of a part."""
        return query.new_empty(math.prod(query.shape[:3]) * self.blocks[0].stop)

    def matrix(
        self, query: Tensor, key: Tensor, mask: Tensor | None, rows: slice, space: Tensor | None
    ) -> Tensor:
        """These rows of A, (b, h, rows, keys), in `space` if there is one."""
        key = key[:, :, : rows.stop]
        inputs = AttentionInputs(query, key, mask, self.causal, self.scaling, 0.0)
        shape = *query.shape[:2], rows.stop - rows.start, rows.stop
        out = query.new_empty(shape) if space is None else _shaped(space, *shape)
        return attention_matrix(inputs, rows, out)


def _shaped(space: Tensor, *shape: int) -> Tensor:
    return space[: math.prod(shape)].view(shape)


def _precise(x: Tensor, part: Part) -> Tensor:
    """A part of states, in float32 or float64, laid out so that `flatten(0, 1)` is a view."""
    x = part_of(x, part).to(torch.promote_types(x.dtype, torch.float32))
    return x.flatten(0, 1).unflatten(0, x.shape[:2])


def _into(out: Tensor, matrix: Tensor, x: Tensor) -> None:
    """`out = matrix x`. Into what is not contiguous torch makes products one at a time."""
    torch.bmm(matrix, x, out=out) if out.is_contiguous() else out.copy_(matrix @ x)


def _forward(
    plan: _Plan, query: Tensor, key: Tensor, mask: Tensor | None, value: Tensor, *scalars: Tensor
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """(out, the powers y_0 ... y_K, the blocks of A if the plan keeps them)."""
    precise = torch.promote_types(query.dtype, torch.float32)
    powers = [torch.empty(value.shape, dtype=precise, device=value.device) for _ in scalars]
    out, kept, space = torch.empty_like(value), [], None
    with torch.autocast(query.device.type, enabled=False):
        for part in plan.parts:
            q, k, *ys = (_precise(x, part) for x in (query, key, *powers))
            if space is None and not plan.keep:
                space = plan.space(q)
            ys[0].copy_(part_of(value, part))
            for rows in plan.blocks:
                matrix = plan.matrix(q, k, part_of(mask, part), rows, space)
                for x, y in pairwise(y.flatten(0, 1) for y in ys):
                    _into(y[:, rows], matrix.flatten(0, 1), x[:, : rows.stop])
                if plan.keep:
                    kept.append(matrix)
            weights = (part_of(c, part) for c in scalars)
            out[part] = combination(*zip(weights, ys, strict=True))
    return out, powers, kept


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, query, key, mask, value, *scalars: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        out, powers, kept = _forward(plan, query, key, mask, value, *scalars)
        ctx.save_for_backward(query, key, mask, *scalars, *powers, *kept)
        ctx.plan = plan
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("shared")
        plan, needed = ctx.plan, ctx.needs_input_grad[1:]
        query, key, mask, *saved = ctx.saved_tensors  # under checkpointing they are read only once
        count = len(needed) - 4
        scalars, powers, kept = saved[:count], saved[count : 2 * count], saved[2 * count :]
        inputs = (query, key, mask, grad, *scalars)  # grad is shaped as the values
        sums: list[Any] = [None] * len(inputs)
        for i, x in enumerate(inputs):
            if needed[i]:  # those of states are written part by part, the others are added to
                make = torch.empty_like if i in (0, 1, 3) else torch.zeros_like
                sums[i] = make(x, dtype=powers[0].dtype)
        with torch.autocast(query.device.type, enabled=False):
            for part in plan.parts:
                matrices, kept = kept[: len(plan.blocks)], kept[len(plan.blocks) :]
                states = [_precise(x, part) for x in (grad, query, key, *powers)]
                shared = [part_of(x, part) for x in (mask, *scalars)]
                _add(plan, states, shared, matrices, [part_of(x, part) for x in sums])
        grads = (None if g is None else g.to(x.dtype) for g, x in zip(sums, inputs, strict=True))
        return None, *grads


def _add(
    plan: _Plan,
    states: list[Tensor],
    shared: list[Any],
    kept: list[Tensor],
    sums: list[Tensor | None],
) -> None:
    """Add a part's gradients to `sums`: of query, key, mask, value and scalars."""
    grad, query, key, *powers = states
    mask, *scalars = shared
    d_query, d_key, d_mask, d_value, *d_scalars = sums
    ds = []
    for scalar, power, total in zip(scalars, powers, d_scalars, strict=True):
        d = torch.empty_like(power)
        if total is not None:
            total += torch.mul(grad, power, out=d).sum_to_size(total.shape)
        ds.append(torch.mul(grad, scalar, out=d).flatten(0, 1))
    q, k, *ys = (x.flatten(0, 1) for x in (query, key, *powers))
    dq, dk = q.new_empty(q.shape), k.new_zeros(k.shape)
    spaces = plan.space(query), plan.space(query)
    for rows in reversed(plan.blocks):
        keys = slice(rows.stop)
        matrix = kept.pop() if kept else plan.matrix(query, key, mask, rows, spaces[0])
        a = matrix.flatten(0, 1)
        for later, d in pairwise(reversed(ds)):
            d[:, keys].baddbmm_(a.mT, later[:, rows])
        delta = sum(
            (d[:, rows] * y[:, rows]).sum(-1, keepdim=True)
            for d, y in zip(ds[1:], ys[1:], strict=True)
        )
        scores = _shaped(spaces[1], *a.shape)
        for i, (d, y) in enumerate(zip(ds[1:], ys[:-1], strict=True)):
            torch.baddbmm(scores, d[:, rows], y[:, keys].mT, beta=min(i, 1), out=scores)
        scores.sub_(delta).mul_(a)
        _into(dq[:, rows], scores, k[:, keys])
        dk[:, keys].baddbmm_(scores.mT, q[:, rows])
        if d_mask is not None:
            d_mask += scores.view_as(matrix).sum_to_size(d_mask.shape)
    grads = dq.mul_(plan.scaling), dk.mul_(plan.scaling), ds[0]
    for total, part in zip((d_query, d_key, d_value), grads, strict=True):
        if total is not None:
            total.copy_(part.unflatten(0, grad.shape[:2]))
