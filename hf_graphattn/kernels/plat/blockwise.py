"""p-LaT in blocks of query rows, forward and backward by hand: memory linear in the length.

For a block of rows x, with A0 the softmax, m the dropout mask over its keep rate, A = A0 m, and
u_xy = |v_x - v_y|^2 + eps, c = (p - 2) / 2:

    W = A u^c,   out = W V
    T = W * (dO V^T)                  the product that every gradient needs
    dScores = T - A0 rowsum(T)        since A0 dA0 = T; rowsum(T) = rowsum(dO * out)
    dV     += W^T dO
    E = T / u                         0 where v_x = v_y; 2 c E is the gradient of the distance
    dV_rows += 2 c (rowsum(E) x - E V),   dV += 2 c (colsum(E) y - E^T X)
    dp = sum(T log u) / 2

The forward takes three products and nine passes over a block's elements: the mask, softmax, u in
three, log, times c, exp2, and times A. The backward makes these matrices again, two products and
ten passes, u without its zeros the tenth, and takes six products and six passes more: T, dScores in
two, E and E's two sums, and two for a learned p. Short sequences keep the matrices. A block is
small enough for the processor's cache, and under causality it skips the later keys.

Everything is computed in float32 (float64 for float64 states), outside autocast. The squared
distance is one product of width D + 2, `[-2 x, |x|^2, 1] . [y, 1, |y|^2]`. It is made in units of
its rounding error, at most, where x and y are alike: what is then not above 1 is taken as 0, so
that equal values are at distance 0 (see `naive.distance_factor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import threshold
from torch.utils.checkpoint import checkpoint

from hf_graphattn.backends import AttentionInputs, attention_matrix
from hf_graphattn.kernels.parts import Part, part_of, parts, row_blocks

from .naive import ROUNDING, Values, naive

# The fastest from 64 to 256 rows and 2**20 to 2**22 elements, at 512 to 4096 tokens.
BLOCK_ROWS = 128
BLOCK_ELEMENTS = 2**22  # of one block's matrix (B, H, rows, Nk): 16 MB in float32
KEPT_ELEMENTS = 2**23  # whole matrices of at most so many are kept for the backward


def blockwise(
    inputs: AttentionInputs,
    values: Values,
    p: float | Tensor,
    eps: float,
    block_rows: int | None = None,
) -> Tensor:
    """p-LaT of `values` under the attention of `inputs`, (B, H, Nq, D); p is a number or (H, 1, 1).

    `block_rows` is the number of rows in a block, `BLOCK_ROWS` by default. A block has as many
    heads and sequences as stay under `BLOCK_ELEMENTS`. The matrices are kept for the backward where
    a whole one (B, H, Nq, Nk) is under `KEPT_ELEMENTS`.
    """
    if torch.compiler.is_compiling():
        return _traceable(inputs, values, p, eps)
    query, key, every, rows = inputs.query, inputs.key, values.every, values.rows
    precise = torch.promote_types(query.dtype, torch.float32)
    p = p.to(precise) if isinstance(p, Tensor) else query.new_full((1, 1, 1), p, dtype=precise)
    with torch.autocast(query.device.type, enabled=False):
        if rows.shape[-2] == 1:  # a new token of cached generation
            inputs = replace(inputs, query=query.to(precise), key=key.to(precise))
            values = Values(every.to(precise), rows.to(precise))
            return naive(attention_matrix(inputs), values, p, eps).to(every.dtype)
        learned = p.requires_grad and torch.is_grad_enabled()
        plan = _Plan.of(inputs, rows.shape, eps, learned, block_rows)
        return _Blockwise.apply(plan, query, key, every, rows, inputs.mask, p.unsqueeze(0))


@dataclass(frozen=True)
class _Plan:
    """The arguments of `_Blockwise` that are not tensors, and what is computed at once.

    groups: the sequences and heads of each group. blocks: the rows and keys of a group's blocks.
    """

    causal: bool
    scaling: float
    dropout: float
    eps: float
    learned: bool  # whether p has a gradient
    keep: bool  # whether the matrices are kept for the backward
    groups: list[Part]
    blocks: list[tuple[slice, slice]]

    @classmethod
    def of(
        cls,
        inputs: AttentionInputs,
        shape: torch.Size,
        eps: float,
        learned: bool,
        block_rows: int | None,
    ) -> _Plan:
        batch, heads, length, _ = shape
        keys, causal = inputs.key.shape[-2], inputs.causal
        rows = block_rows or max(16, min(BLOCK_ROWS, length, BLOCK_ELEMENTS // keys))
        keep = torch.is_grad_enabled() and batch * heads * length * keys <= KEPT_ELEMENTS
        groups = parts(batch, heads, BLOCK_ELEMENTS // (rows * keys))
        blocks = [(own, slice(own.stop if causal else keys)) for own in row_blocks(length, rows)]
        return cls(causal, inputs.scaling, inputs.dropout, eps, learned, keep, groups, blocks)


class _Tensors(NamedTuple):
    """The inputs of `_Blockwise`, or their gradients: None for a mask or a p that asks for none."""

    query: Tensor
    key: Tensor
    every: Tensor
    rows: Tensor
    mask: Tensor | None
    p: Any  # (1, H or 1, 1, 1)

    def of(self, group: Part) -> _Tensors:
        """The part of a group."""
        return _Tensors(*(part_of(x, group) for x in self))


class _Block(NamedTuple):
    """One block's matrices, (B, H, rows, keys): A0, u, log u if p is learned, W after dropout.

    u is infinite where the distance is 0: its gradient is 0 there, whatever T / eps rounds to.
    """

    softmax: Tensor
    distance: Tensor
    log: Tensor | None
    weights: Tensor


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *given: Any) -> Tensor:
        tensors = _Tensors(*given)
        device = tensors.query.device
        ctx.plan, ctx.seed = plan, int(torch.randint(2**62, ())) if plan.dropout > 0.0 else None
        random, keep = _generator(ctx.seed, device), plan.keep and any(ctx.needs_input_grad)
        out = torch.empty(tensors.rows.shape, dtype=tensors.p.dtype, device=device)
        kept: list[Tensor | None] = []
        for group in plan.groups:
            states, found = _States(tensors.of(group), plan, random), out[group]
            for rows, keys in plan.blocks:
                block = states.block(rows, keys, keep)
                found[:, :, rows] = block.weights @ states.every[:, :, keys]
                kept += block if keep else ()
        ctx.save_for_backward(*given, out, *kept)
        return out.to(tensors.every.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan, saved = ctx.plan, ctx.saved_tensors  # under checkpointing they are read only once
        (*given, out), kept = saved[:7], saved[7:]
        random = _generator(ctx.seed, grad.device)
        blocks = (_Block(*kept[i : i + 4]) for i in range(0, len(kept), 4))
        asked = (True, True, True, True, *ctx.needs_input_grad[5:])
        zeros: list[Any] = [
            torch.zeros_like(x, dtype=out.dtype) if needed else None
            for x, needed in zip(given, asked, strict=True)
        ]
        sums = _Tensors(*zeros)
        with torch.autocast(grad.device.type, enabled=False):
            for group in plan.groups:
                states = _States(_Tensors(*given).of(group), plan, random)
                states.backward(grad[group].to(out.dtype), out[group], blocks, sums.of(group))
        found = (None if g is None else g.to(x.dtype) for g, x in zip(sums, given, strict=True))
        return (None, *found)


def _generator(seed: int | None, device: torch.device) -> torch.Generator | None:
    """Of dropout's random numbers, which the backward draws again."""
    return None if seed is None else torch.Generator(device).manual_seed(seed)


class _States:
    """A group's inputs in the precision of the computation, and the distance's two factors."""

    def __init__(self, given: _Tensors, plan: _Plan, random: torch.Generator | None) -> None:
        p, self.mask, self.plan, self.random = given.p, given.mask, plan, random
        self.power = (p - 2.0) / 2.0  # c, (1, H or 1, 1, 1)
        self.query, self.key, self.every, rows = (x.to(p.dtype).contiguous() for x in given[:4])
        centre = self.every.mean(dim=-2, keepdim=True)  # a common offset changes no distance
        self.x, self.y = x, y = rows - centre, self.every - centre
        x_squares, y_squares = (z.square().sum(-1, keepdim=True) for z in (x, y))
        limits = torch.finfo(p.dtype)
        # That of |x|^2 + |y|^2, which is here 2 |x|^2; the bound keeps 1 / unit finite at x = 0.
        self.unit = (2.0 * ROUNDING * limits.eps * x_squares).clamp_min_(limits.tiny**0.5)
        self.left = torch.cat([-2.0 * x, x_squares, torch.ones_like(x_squares)], -1) / self.unit
        self.right = torch.cat([y, torch.ones_like(y_squares), y_squares], -1)

    def block(self, rows: slice, keys: slice, for_backward: bool = True) -> _Block:
        plan, key = self.plan, self.key[:, :, keys]
        inputs = AttentionInputs(self.query, key, self.mask, plan.causal, plan.scaling, 0.0)
        softmax = attention_matrix(inputs, rows)
        distance = threshold(self.left[:, :, rows] @ self.right[:, :, keys].mT, 1.0, 0.0, True)
        distance.mul_(self.unit[:, :, rows]).add_(plan.eps)
        logs = distance.log()
        exponent = self.power / log(2.0)  # of 2, since exp2 takes a third of exp's time
        weights = logs * exponent if plan.learned else logs.mul_(exponent)
        weights.exp2_().mul_(softmax)
        if plan.dropout > 0.0:
            kept = torch.empty_like(weights).bernoulli_(1.0 - plan.dropout, generator=self.random)
            weights.mul_(kept.div_(1.0 - plan.dropout))
        if for_backward:  # else nobody reads it
            threshold(distance, plan.eps, inf, inplace=True)
        return _Block(softmax, distance, logs if plan.learned else None, weights)

    def backward(self, grad: Tensor, out: Tensor, kept: Iterator[_Block], sums: _Tensors) -> None:
        """Add the gradients to `sums`, from the output and its gradient, (B, H, rows, D)."""
        plan, twice = self.plan, 2.0 * self.power
        row_sums = (grad * out).sum(-1, keepdim=True)  # of T
        columns = torch.zeros_like(self.y[..., :1])  # E's sums
        for rows, keys in plan.blocks:
            block = next(kept, None) or self.block(rows, keys)
            upstream, spare = grad[:, :, rows], None if plan.keep else block.softmax
            product = (upstream @ self.every[:, :, keys].mT).mul_(block.weights)  # T
            if block.log is not None:
                sums.p.add_((product * block.log).sum_to_size(sums.p.shape), alpha=0.5)
            # Not addcmul, which takes twice the time of both where it broadcasts.
            scores = torch.mul(block.softmax, -row_sums[:, :, rows], out=spare).add_(product)
            sums.query[:, :, rows] = (scores @ self.key[:, :, keys]).mul_(plan.scaling)
            sums.key[:, :, keys] += (scores.mT @ self.query[:, :, rows]).mul_(plan.scaling)
            if sums.mask is not None:
                target = sums.mask[:, :, rows if sums.mask.shape[-2] > 1 else slice(None)]
                target += scores.sum_to_size(target.shape)
            product.div_(block.distance)  # E
            x, y = twice * self.x[:, :, rows], self.y[:, :, keys]
            sums.rows[:, :, rows] = product.sum(-1, keepdim=True) * x - twice * (product @ y)
            sums.every[:, :, keys] += block.weights.mT @ upstream - product.mT @ x
            columns[:, :, keys] += product.sum(-2).unsqueeze(-1)
        sums.every.add_(twice * columns * self.y)


def _traceable(inputs: AttentionInputs, values: Values, p: float | Tensor, eps: float) -> Tensor:
    """The same in plain operations, which torch.compile can trace and fuse."""
    batch, heads, keys, _ = values.every.shape
    length = values.rows.shape[-2]
    rows = max(1, KEPT_ELEMENTS // (batch * heads * keys))
    if rows >= length:
        return _rows(inputs, values, p, eps, 0, length)
    blocks = []
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        blocks.append(checkpoint(_rows, inputs, values, p, eps, start, stop, use_reentrant=False))
    return torch.cat(blocks, dim=-2)


def _rows(
    inputs: AttentionInputs, values: Values, p: float | Tensor, eps: float, start: int, stop: int
) -> Tensor:
    matrix = attention_matrix(inputs, slice(start, stop))
    return naive(matrix, values.block(start, stop), p, eps)
