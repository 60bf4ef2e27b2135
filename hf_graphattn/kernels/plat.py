"""p-LaT: the reference, which forms every matrix whole, and blocks of query rows.

    out_x = sum_y A_xy f_xy v_y,    f_xy = (|v_x - v_y|^2 + eps)^((p - 2) / 2)

`blockwise` computes the forward and the backward by hand, with memory linear in the length. For a
block of rows x, with A0 the softmax, m the dropout mask over its keep rate, A = A0 m, and
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
that equal values are at distance 0 (see `distance_factor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import threshold
from torch.utils.checkpoint import checkpoint

from hf_graphattn.backends import AttentionInputs, attention_matrix

from . import Part, part_of, parts, refuse_second_derivatives, row_blocks

# The rounding error of |x|^2 + |y|^2 - 2 x.y, at most, in units in the last place of |x|^2 + |y|^2.
ROUNDING = 8
# The fastest from 64 to 256 rows and 2**20 to 2**22 elements, at 512 to 4096 tokens.
BLOCK_ROWS = 128
BLOCK_ELEMENTS = 2**22  # of one block's matrix (B, H, rows, Nk): 16 MB in float32
KEPT_ELEMENTS = 2**23  # whole matrices of at most so many are kept for the backward


@dataclass(frozen=True)
class Values:
    """The values that a kernel reads.

    Attributes:
        every: those of all keys, (B, H, Nk, D).
        rows: those of A's rows, (B, H, rows, D): of all keys, of a block of them or, in cached
            generation, of the new tokens.
    """

    every: Tensor
    rows: Tensor


def naive(matrix: Tensor, values: Values, p: float | Tensor, eps: float) -> Tensor:
    """The reference of p-LaT.

    Args:
        matrix: A after dropout, (B, H, rows, Nk).
        values: the values of the keys and of the rows.
        p: a number or (H, 1, 1).
        eps: added to the squared distance.

    Returns:
        The output, (B, H, rows, D).
    """
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


def blockwise(
    inputs: AttentionInputs,
    values: Values,
    p: float | Tensor,
    eps: float,
    block_rows: int | None = None,
) -> Tensor:
    """p-LaT in blocks of query rows.

    A block has as many heads and sequences as stay under `BLOCK_ELEMENTS`. The matrices are kept
    for the backward where a whole one (B, H, Nq, Nk) is under `KEPT_ELEMENTS`.

    Args:
        inputs: the attention's.
        values: the values of the keys and of the rows.
        p: a number or (H, 1, 1).
        eps: added to the squared distance.
        block_rows: how many rows a block has, by default `BLOCK_ROWS`.

    Returns:
        The output, (B, H, Nq, D).
    """
    if torch.compiler.is_compiling():
        return _traceable(inputs, values, p, eps)
    query, key, every, rows = inputs.query, inputs.key, values.every, values.rows
    (batch, heads, length, _), keys = rows.shape, key.shape[-2]
    precise = torch.promote_types(query.dtype, torch.float32)
    p = torch.as_tensor(p, dtype=precise, device=query.device).view(1, -1, 1, 1)
    with torch.autocast(query.device.type, enabled=False):
        if length == 1:  # a new token of cached generation
            inputs = replace(inputs, query=query.to(precise), key=key.to(precise))
            values = Values(every.to(precise), rows.to(precise))
            return naive(attention_matrix(inputs), values, p, eps).to(every.dtype)
        size = block_rows or max(16, min(BLOCK_ROWS, length, BLOCK_ELEMENTS // keys))
        learns = torch.is_grad_enabled()
        plan = _Plan(
            causal=inputs.causal,
            scaling=inputs.scaling,
            dropout=inputs.dropout,
            eps=eps,
            learned=p.requires_grad and learns,
            keep=learns and batch * heads * length * keys <= KEPT_ELEMENTS,
            groups=parts(batch, heads, BLOCK_ELEMENTS // (size * keys)),
            blocks=[
                (block, slice(block.stop if inputs.causal else keys))
                for block in row_blocks(length, size)
            ],
        )
        return _Blockwise.apply(plan, query, key, every, rows, inputs.mask, p)


@dataclass(frozen=True)
class _Plan:
    """The arguments of `_Blockwise` that are not tensors, and what is computed at once."""

    causal: bool
    scaling: float
    dropout: float
    eps: float
    learned: bool  # whether p has a gradient
    keep: bool  # whether the matrices are kept for the backward
    groups: list[Part]
    blocks: list[tuple[slice, slice]]  # the rows and keys of a group's blocks


class _Tensors(NamedTuple):
    """The inputs of `_Blockwise`, or their gradients: None for a mask or a p that needs none."""

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
    def forward(ctx: Any, plan: _Plan, *inputs: Any) -> Tensor:
        tensors = _Tensors(*inputs)
        device = tensors.query.device
        ctx.plan, ctx.seed = plan, int(torch.randint(2**62, ())) if plan.dropout > 0.0 else None
        random, keep = _generator(ctx.seed, device), plan.keep and any(ctx.needs_input_grad)
        out = torch.empty(tensors.rows.shape, dtype=tensors.p.dtype, device=device)
        kept: list[Tensor | None] = []
        for group in plan.groups:
            states, part = _States(tensors.of(group), plan, random), out[group]
            for rows, keys in plan.blocks:
                block = states.block(rows, keys, keep)
                part[:, :, rows] = block.weights @ states.every[:, :, keys]
                kept += block if keep else ()
        ctx.save_for_backward(*inputs, out, *kept)
        return out.to(tensors.every.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("blockwise")
        plan, saved = ctx.plan, ctx.saved_tensors  # under checkpointing they are read only once
        (*inputs, out), kept = saved[:7], saved[7:]
        random = _generator(ctx.seed, grad.device)
        blocks = (_Block(*kept[i : i + 4]) for i in range(0, len(kept), 4))
        needed = (True, True, True, True, *ctx.needs_input_grad[5:])
        zeros: list[Any] = [
            torch.zeros_like(x, dtype=out.dtype) if need else None
            for x, need in zip(inputs, needed, strict=True)
        ]
        sums = _Tensors(*zeros)
        with torch.autocast(grad.device.type, enabled=False):
            for group in plan.groups:
                states = _States(_Tensors(*inputs).of(group), plan, random)
                states.backward(grad[group].to(out.dtype), out[group], blocks, sums.of(group))
        grads = (None if g is None else g.to(x.dtype) for g, x in zip(sums, inputs, strict=True))
        return (None, *grads)


def _generator(seed: int | None, device: torch.device) -> torch.Generator | None:
    """Of dropout's random numbers, which the backward draws again."""
    return None if seed is None else torch.Generator(device).manual_seed(seed)


class _States:
    """A group's inputs in the precision of the computation, and the distance's two factors."""

    def __init__(self, part: _Tensors, plan: _Plan, random: torch.Generator | None) -> None:
        p, self.mask, self.plan, self.random = part.p, part.mask, plan, random
        self.power = (p - 2.0) / 2.0  # c, (1, H or 1, 1, 1)
        self.query, self.key, self.every, rows = (x.to(p.dtype).contiguous() for x in part[:4])
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
        return naive(attention_matrix(inputs), values, p, eps)

    def block(rows: slice) -> Tensor:
        of_rows = Values(values.every, values.rows[:, :, rows])
        return naive(attention_matrix(inputs, rows), of_rows, p, eps)

    blocks = [checkpoint(block, b, use_reentrant=False) for b in row_blocks(length, rows)]
    return torch.cat(blocks, dim=-2)
