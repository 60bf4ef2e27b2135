"""Polynomials of degree 2 in A as Triton kernels, whose backward of both passes shares A.

    y = A V    z = A y    out = c_0 V + c_1 y + c_2 z
    dy = c_1 g + c_2 A^T g    dV = c_0 g + A^T dy    dA = c_2 g y^T + dy V^T
    dS = A * (dA - delta)    delta = c_2 g.z + dy.y a row

g is the output's gradient, S the scores. The forward is two passes that share the softmax's
denominator, the second with the combination at its end: four products of N x N x D. The backward
takes eight: two for dy, and six for dV, dK and dQ at once. That makes 12, where two passes of flash
attention take 14 and one takes 7: 1.71 times plain attention instead of 2. The programs, one a
block of keys, add into dQ in any order, as flash attention's do. Where torch is asked for
deterministic algorithms, programs of rows make dQ, and 15 products: every run gives the same bits.

Under causality `blockwise` needs one sweep, from the last rows to the first; here all blocks run at
once. Triton is imported at the first call. No GPU has timed it yet, so "auto" never takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hf_graphattn.backends import AttentionInputs
from hf_graphattn.kernels.combination import Scalar
from hf_graphattn.kernels.triton_call import (
    Block,
    Call,
    Limit,
    check,
    common,
    empty_states,
    limits,
    narrow,
)


def _limits(inputs: AttentionInputs, value: Tensor, degree: int) -> tuple[Limit, ...]:
    """The kernels' limits."""
    query, keys, own = inputs.query, inputs.key.shape[2], value.shape[3]
    length, width = query.shape[2:]
    return (
        ("degree of a polynomial", degree, "2", degree == 2),
        *limits(query),
        ("width of the values", own, f"that of the queries, {width}", own == width),
        ("number of keys", keys, f"that of the queries, {length}", keys == length),
        ("attention dropout", inputs.dropout, "0", inputs.dropout == 0.0),
    )


def triton(
    inputs: AttentionInputs,
    value: Tensor,
    coefficients: Sequence[Scalar],
    blocks: tuple[Block, Block] | None = None,
    deterministic: bool | None = None,
) -> Tensor:
    """`c_0 V + c_1 A V + c_2 A^2 V`, (B, H, N, D); a coefficient is a number or (H, 1, 1).

    Keys and values may have fewer heads than the queries; they need not be repeated. The gradient
    of an additive mask is made whole, (B, H, N, N), before it is summed to the mask's shape.
    `blocks` are those of the forward and of the backward, by default `default_blocks`.
    `deterministic`: see above; None asks torch.

    Raises:
        GraphAttentionError: the call is beyond the kernels' limits.
    """
    check(_limits(inputs, value, len(coefficients) - 1), "sdpa")
    query, dtype = inputs.query, common(inputs.query, value)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    additive = inputs.mask is not None and inputs.mask.dtype != torch.bool
    forward, backward = blocks or default_blocks(dtype, query.shape[-1], additive)
    out, *_ = _forward(
        *(x.to(dtype) for x in (query, inputs.key, value)), inputs.mask,
        torch.stack([_of_heads(c, query) for c in coefficients], 1), inputs.causal, inputs.scaling,
        forward, backward, deterministic,
    )  # fmt: skip
    return out.to(value.dtype)


def _of_heads(coefficient: Scalar, query: Tensor) -> Tensor:
    """A coefficient of each head, (H,)."""
    if isinstance(coefficient, Tensor):
        return coefficient.view(-1).float()
    return torch.full((query.shape[1],), coefficient, dtype=torch.float32, device=query.device)


def default_blocks(dtype: torch.dtype, width: int, additive: bool) -> tuple[Block, Block]:
    """Of the forward and the backward: on an H100 no kernel spills registers.

    They take at most 90 KB of shared memory up to width 64, as small GPUs have, and 128 KB above.
    """
    if dtype == torch.float32:
        return (Block(32, 32),) * 2 if width <= 64 else (Block(16, 16),) * 2
    if width <= 64:
        return Block(64, 64), Block(64, 32 if additive else 64)
    return (Block(64, 32, warps=8),) * 2


@cache
def _kernels() -> Any:
    from . import triton_kernels

    return triton_kernels


# The arguments of both operators, in the order of `_Call`.
ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor c, bool causal, float scaling, "
    "int[] forward, int[] backward, bool deterministic"
)


@torch.library.custom_op(
    "hf_graphattn::polynomial_forward",
    mutates_args=(),
    schema=f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _forward(query: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The output, y, each row's greatest score and 1 / denominator (B, H, N), and z."""
    *given, forward, _, _ = rest
    call = _Call(query, *given)
    out, *kept = _empty_forward(query)
    call.launch("first_pass", Block(*forward), kept[:3])
    call.launch("second_pass", Block(*forward), [*kept, out])
    return out, *kept


@_forward.register_fake
def _empty_forward(query: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    out, y = (empty_states(query) for _ in range(2))
    top, norm = (query.new_empty(query.shape[:3], dtype=torch.float32) for _ in range(2))
    return out, y, top, norm, torch.empty_like(y, dtype=torch.float32)


@torch.library.custom_op(
    "hf_graphattn::polynomial_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor y, Tensor top, Tensor norm, Tensor z, "
    f"{ARGUMENTS}, bool mask_gradient) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    grad: Tensor, y: Tensor, top: Tensor, norm: Tensor, z: Tensor,
    query: Tensor, key: Tensor, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of query, key and value, of c by token (B, H, 3, N), and dScores if asked."""
    *given, _, backward, deterministic, mask_gradient = rest
    call, block = _Call(query, key, *given), Block(*backward)
    grad = narrow(grad.to(query.dtype))
    dq, dk, dv, dc, ds = _empty_backward(grad, y, top, norm, z, query, key, *rest)
    dy, delta = torch.empty_like(y), torch.empty_like(top)
    call.launch("inner_backward", block, (y, top, norm, z, grad, dy, delta, dc), grad)
    shared = (y, top, norm, grad, dy, delta)
    added = dq if deterministic else torch.zeros_like(z)
    call.launch(
        "keys_backward", block, (*shared, added, dk, dv, ds), grad,
        ADD_DQ=not deterministic, MASK_GRADIENT=mask_gradient,
    )  # fmt: skip
    if deterministic:
        call.launch("rows_backward", block, (*shared, dq), grad)
    else:
        dq.copy_(added)
    return dq, dk, dv, dc, ds


@_backward.register_fake
def _empty_backward(
    grad: Tensor, y: Tensor, top: Tensor, norm: Tensor, z: Tensor,
    query: Tensor, key: Tensor, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    dq, dk, dv = (empty_states(x) for x in (query, key, key))
    batch, heads, length = top.shape
    matrix = (*top.shape, length) if rest[-1] else (0,)
    return dq, dk, dv, top.new_empty(batch, heads, 3, length), top.new_empty(matrix)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], *inputs[:5])
    ctx.settings = inputs[5:]
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, grad: Tensor, *ignored: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    mask, wanted = saved[7], ctx.needs_input_grad[3]
    dq, dk, dv, dc, ds = _backward(grad, *saved, *ctx.settings, wanted)
    dmask = ds.sum_to_size(mask.shape).to(mask.dtype) if wanted else None
    return (dq, dk, dv, dmask, dc.sum((0, 3)), *[None] * 5)


_forward.register_autograd(_differentiate, setup_context=_keep)


class _Call(Call):
    """One call's arguments, in the order in which the kernels take them."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, c: Tensor,
        causal: bool, scaling: float,
    ) -> None:  # fmt: skip
        super().__init__((query, key, value), mask, causal)
        self.pointers = (*self.states, self.mask, c)
        self.numbers = (*query.shape[1:3], scaling)

    def launch(
        self,
        name: str,
        block: Block,
        others: Sequence[Tensor],
        grad: Tensor | None = None,
        **constants: Any,
    ) -> None:
        """Run a kernel; `others` are its own tensors, which follow those that all kernels take."""
        of_keys = name in ("inner_backward", "keys_backward")
        heads = self.states[name == "keys_backward"].shape[1]
        self.run(getattr(_kernels(), name), of_keys, heads, block, others, grad, constants)
