"""p-LaT in blocks of query rows, forward and backward by hand: memory linear in the length.

For a block of rows x, with A0 the softmax, m the dropout mask over its keep rate, A = A0 m, and
u_xy = |v_x - v_y|^2 + eps, c = (p - 2) / 2:

    W = A u^c,   out = W V
    T = W * (dO V^T)                  the product that every gradient needs
    dScores = T - A0 rowsum(T)        since A0 dA0 = T
    dV     += W^T dO
    E = c T / u                       the gradient of the squared distance
    dV_rows += 2 (rowsum(E) x - E V),   dV += 2 (colsum(E) y - E^T X)
    dp = sum(T log u) / 2

The forward takes three products and the backward eight, since it makes each block's matrices again.
A sequence short enough for one block keeps its matrices. Under causality a block skips the later
keys.

Everything is computed in float32 (float64 for float64 states), outside autocast. The squared
distance plus eps is one product of width D + 2, `[-2 x, |x|^2 + eps, 1] . [y, 1, |y|^2]`. A
distance below its rounding error is taken as 0, so that equal values are at distance 0 (see
`naive.distance_factor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from hf_graphattn.backends import AttentionInputs, attention_matrix

from .naive import ROUNDING, Values, naive

# Of one block's matrix (B, H, rows, Nk): 16 MB in float32, the fastest size from 2 to 32 MB.
BLOCK_ELEMENTS = 2**22
KEPT_ELEMENTS = 2**23  # a whole matrix of at most so many is kept for the backward


def blockwise(
    inputs: AttentionInputs,
    values: Values,
    p: float | Tensor,
    eps: float,
    block_rows: int | None = None,
) -> Tensor:
    """p-LaT of `values` under the attention of `inputs`, (B, H, Nq, D); p is a number or (H, 1, 1).

    `block_rows` is the number of rows in a block. By default one matrix of a block stays under
    `BLOCK_ELEMENTS`, and there is one block if the whole matrix is under `KEPT_ELEMENTS`.
    """
    if torch.compiler.is_compiling():
        return _traceable(inputs, values, p, eps)
    plan = _Plan(inputs.causal, inputs.scaling, inputs.dropout, eps, block_rows or 0)
    return _Blockwise.apply(
        inputs.query, inputs.key, values.every, values.rows, inputs.mask, p, plan
    )


@dataclass(frozen=True)
class _Plan:
    """The arguments of `_Blockwise` that are not tensors. block_rows: 0 for the default."""

    causal: bool
    scaling: float
    dropout: float
    eps: float
    block_rows: int


@dataclass
class _Block:
    """One block's matrices, (B, H, rows, keys): A0, u, log u, and W (after dropout)."""

    softmax: Tensor
    distance: Tensor
    log: Tensor
    weights: Tensor


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query, key, every, rows, mask, p, plan: _Plan) -> Tensor:  # type: ignore[no-untyped-def]
        precise = torch.promote_types(query.dtype, torch.float32)
        states = _States.of(query, key, every, rows, mask, p, plan, precise)
        random = _random_state(query.device) if plan.dropout > 0.0 else None
        out = torch.empty(states.rows.shape, dtype=precise, device=query.device)
        blocks = states.blocks()
        keep = len(blocks) == 1 and any(ctx.needs_input_grad)
        kept: tuple[Tensor, ...] = ()
        with torch.autocast(query.device.type, enabled=False):
            for start, stop in blocks:
                block = states.block(start, stop)
                out[:, :, start:stop] = block.weights @ states.every[:, :, : states.keys(stop)]
                if keep:
                    kept = (block.softmax, block.distance, block.log, block.weights)
        learned = p if isinstance(p, Tensor) else None
        ctx.save_for_backward(query, key, every, rows, mask, learned, *kept)
        ctx.p, ctx.plan, ctx.random = p, plan, random
        return out.to(every.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, every, rows, mask, p, *kept = ctx.saved_tensors
        precise = torch.promote_types(query.dtype, torch.float32)
        p = ctx.p if p is None else p
        states = _States.of(query, key, every, rows, mask, p, ctx.plan, precise)
        sums = _Gradients.zeros(states, ctx.needs_input_grad)
        with torch.autocast(query.device.type, enabled=False), _repeated(ctx.random, query.device):
            for start, stop in states.blocks():
                block = _Block(*kept) if kept else states.block(start, stop)
                sums.add(states, block, grad[:, :, start:stop].to(precise), start, stop)
        return sums.finish(states, (query, key, every, rows, mask, p))


@dataclass
class _States:
    """The inputs in the precision of the computation, and the two factors of the distance."""

    query: Tensor
    key: Tensor
    every: Tensor
    rows: Tensor
    mask: Tensor | None
    power: float | Tensor  # c = (p - 2) / 2, a number or (H, 1, 1)
    plan: _Plan
    left: Tensor  # (B, H, rows, D + 2)
    right: Tensor  # (B, H, keys, D + 2)
    x_noise: Tensor  # (B, H, rows, 1): x_noise + y_noise is eps plus the rounding error
    y_noise: Tensor  # (B, H, 1, keys)
    centre: Tensor

    @classmethod
    def of(cls, query, key, every, rows, mask, p, plan, precise) -> _States:  # type: ignore[no-untyped-def]
        query, key, every, rows = (x.to(precise) for x in (query, key, every, rows))
        centre = every.mean(dim=-2, keepdim=True)  # a common offset changes no distance
        x, y = rows - centre, every - centre
        x_squares, y_squares = (z.square().sum(-1, keepdim=True) for z in (x, y))
        left = torch.cat([-2.0 * x, x_squares + plan.eps, torch.ones_like(x_squares)], dim=-1)
        right = torch.cat([y, torch.ones_like(y_squares), y_squares], dim=-1)
        rounding = ROUNDING * torch.finfo(precise).eps
        x_noise, y_noise = rounding * x_squares + plan.eps, (rounding * y_squares).mT
        power = (p.to(precise) - 2.0) / 2.0 if isinstance(p, Tensor) else (p - 2.0) / 2.0
        return cls(
            query, key, every, rows, mask, power, plan, left, right, x_noise, y_noise, centre
        )

    def blocks(self) -> list[tuple[int, int]]:
        """(start, stop) of each block of rows."""
        batch, heads, length, _ = self.rows.shape
        elements = batch * heads * self.key.shape[-2]
        rows = self.plan.block_rows
        if not rows:
            whole = elements * length <= KEPT_ELEMENTS
            rows = length if whole else max(16, BLOCK_ELEMENTS // elements)
        return [(start, min(start + rows, length)) for start in range(0, length, max(rows, 1))]

    def keys(self, stop: int) -> int:
        """How many keys the rows before `stop` may see."""
        length = self.key.shape[-2]
        return min(stop, length) if self.plan.causal else length

    def block(self, start: int, stop: int) -> _Block:
        keys = self.keys(stop)
        key, plan = self.key[:, :, :keys], self.plan
        inputs = AttentionInputs(self.query, key, self.mask, plan.causal, plan.scaling, 0.0)
        softmax = attention_matrix(inputs, slice(start, stop))
        distance = self.left[:, :, start:stop] @ self.right[:, :, :keys].mT
        noise = self.x_noise[:, :, start:stop] + self.y_noise[..., :keys]
        distance.masked_fill_(distance <= noise, plan.eps)
        log = distance.log()
        weights = (log * self.power).exp_().mul_(softmax)
        if plan.dropout > 0.0:
            weights.mul_(dropout(torch.ones_like(weights), plan.dropout))
        return _Block(softmax, distance, log, weights)


@dataclass
class _Gradients:
    """The gradients, summed over the blocks; None for a mask or a p that asks for none."""

    query: Tensor
    key: Tensor
    every: Tensor
    rows: Tensor
    mask: Tensor | None
    p: Tensor | None

    @classmethod
    def zeros(cls, states: _States, needed: tuple[bool, ...]) -> _Gradients:
        mask = p = None
        if states.mask is not None and needed[4]:
            mask = torch.zeros(states.mask.shape, dtype=states.key.dtype, device=states.key.device)
        if isinstance(states.power, Tensor) and needed[5]:
            p = torch.zeros_like(states.power)
        q, k, e, r = (
            torch.zeros_like(x) for x in (states.query, states.key, states.every, states.rows)
        )
        return cls(q, k, e, r, mask, p)

    def add(self, states: _States, block: _Block, grad: Tensor, start: int, stop: int) -> None:
        keys, scaling = states.keys(stop), states.plan.scaling
        every = states.every[:, :, :keys]
        self.every[:, :, :keys] += block.weights.mT @ grad
        product = (grad @ every.mT).mul_(block.weights)  # T
        if self.p is not None:
            self.p += (product * block.log).sum(dim=(0, 2, 3)).view_as(self.p) / 2
        scores = torch.addcmul(product, block.softmax, product.sum(-1, keepdim=True), value=-1.0)
        self.query[:, :, start:stop] = (scores @ states.key[:, :, :keys]).mul_(scaling)
        self.key[:, :, :keys] += (scores.mT @ states.query[:, :, start:stop]).mul_(scaling)
        if self.mask is not None:
            rows = slice(start, stop) if self.mask.shape[-2] > 1 else slice(None)
            target = self.mask[..., rows, :]
            target += scores.sum_to_size(target.shape)
        # Where the distance is 0 its gradient is 0 too, whatever T / eps rounds to.
        product.div_(block.distance).masked_fill_(block.distance <= states.plan.eps, 0.0)
        c = 2.0 * states.power
        x, y = states.rows[:, :, start:stop] - states.centre, every - states.centre
        self.rows[:, :, start:stop] += c * (product.sum(-1, keepdim=True) * x - product @ y)
        self.every[:, :, :keys] += c * (product.sum(-2).unsqueeze(-1) * y - product.mT @ x)

    def finish(self, states: _States, of: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        found = (self.query, self.key, self.every, self.rows, self.mask, self.p)
        return (
            *(None if g is None else g.to(x.dtype) for g, x in zip(found, of, strict=True)),
            None,
        )


def _random_state(device: torch.device) -> Tensor:
    on_gpu = device.type == "cuda"
    return torch.cuda.get_rng_state(device) if on_gpu else torch.get_rng_state()


@contextmanager
def _repeated(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """In this context the random numbers of the forward are drawn again."""
    if state is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
        yield


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
