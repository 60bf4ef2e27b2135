"""p-LaT as Triton kernels: memory linear in the length, on CUDA or in Triton's interpreter.

They are registered as operators of torch, so that torch.compile takes them whole. Triton is
imported at the first call: importing this file needs neither Triton nor a GPU. The backward takes
eleven products instead of `blockwise`'s eight, since one kernel sweeps the rows and another the
keys. So no two programs add into the same place, and every run gives the same bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from hf_graphattn.backends import AttentionInputs
from hf_graphattn.kernels.triton_call import (
    Block,
    Call,
    check,
    common,
    empty_states,
    limits,
    narrow,
    precision,
)

from .naive import Values


def fits(inputs: AttentionInputs) -> bool:
    """Whether "auto" may use the kernels for this call.

    They could take a mask with a gradient too, but would make the gradient whole, (B, H, Nq, Nk).
    """
    learned_mask = inputs.mask is not None and inputs.mask.requires_grad
    return not learned_mask and all(within for *_, within in limits(inputs.query))


def triton(
    inputs: AttentionInputs,
    values: Values,
    p: float | Tensor,
    eps: float,
    blocks: tuple[Block, Block] | None = None,
) -> Tensor:
    """p-LaT of `values` under the attention of `inputs`, (B, H, Nq, D); p is a number or (H, 1, 1).

    Keys and `values.every` may have fewer heads than the queries; they need not be repeated. The
    gradient of an additive mask is made whole, (B, H, Nq, Nk), before it is summed to the mask's
    shape. `blocks` are those of the forward and of the backward, by default `default_blocks`.

    Raises:
        GraphAttentionError: the call is beyond the kernels' limits.
    """
    check(limits(inputs.query), "blockwise")
    query, dtype = inputs.query, common(inputs.query, values.every)
    assert values.every.shape[-1] == query.shape[-1], "the kernels know one width"
    heads = query.shape[1]
    exponent = p.view(-1) if isinstance(p, Tensor) else torch.full((heads,), p, device=query.device)
    states = (x.to(dtype) for x in (query, inputs.key, values.every, values.rows))
    forward, backward = blocks or default_blocks(dtype, query.shape[-1])
    out, *_ = _forward(
        *states, inputs.mask, exponent.float(), _seed(inputs), inputs.causal, inputs.scaling,
        inputs.dropout, eps, forward, backward,
    )  # fmt: skip
    return out.to(values.every.dtype)


def default_blocks(dtype: torch.dtype, width: int) -> tuple[Block, Block]:
    """Of the forward and the backward: few registers are spilled, and small GPUs can share enough.

    `tests/triton_compile.py` says so for an H100; `benchmarks/gpu.py` times these and others.
    """
    if dtype == torch.float32:
        return (Block(32, 32),) * 2 if width <= 64 else (Block(32, 16),) * 2
    return Block(64, 32), Block(64, 32, warps=4 if width <= 64 else 8)


def _seed(inputs: AttentionInputs) -> Tensor:
    """A number from torch's generator. It stays on the device, so that nothing waits for it."""
    device = inputs.query.device
    if inputs.dropout == 0.0:
        return torch.zeros(1, dtype=torch.int64, device=device)
    return torch.randint(2**31, (1,), device=device)


@cache
def _kernels() -> Any:
    from . import triton_kernels

    return triton_kernels


# The arguments of both operators, in the order of `_Call`.
ARGUMENTS = (
    "Tensor query, Tensor key, Tensor every, Tensor rows, Tensor? mask, Tensor p, Tensor seed, "
    "bool causal, float scaling, float dropout, float eps, int[] forward, int[] backward"
)


@torch.library.custom_op(
    "hf_graphattn::plat_forward",
    mutates_args=(),
    schema=f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _forward(query: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The output, what its rounding lost, and each row's greatest score and 1 / sum, (B, H, Nq)."""
    call = _Call(query, *rest[:-2])
    made = _empty_forward(query)
    call.launch("rows_forward", Block(*rest[-2]), made)
    return made


@_forward.register_fake
def _(query: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _empty_forward(query)


@torch.library.custom_op(
    "hf_graphattn::plat_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor out, Tensor lost, Tensor top, Tensor norm, {ARGUMENTS}, "
    "bool mask_gradient) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    grad: Tensor, out: Tensor, lost: Tensor, top: Tensor, norm: Tensor, query: Tensor, key: Tensor,
    *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of query, key, every and rows, of p by row (B, H, Nq), and dScores if asked."""
    *others, _, backward, mask_gradient = rest
    call, block = _Call(query, key, *others), Block(*backward)
    grad = narrow(grad.to(query.dtype))
    dq, dk, dv, dx, dp, ds = _empty_backward(query, key, mask_gradient)
    delta = torch.empty_like(top)
    call.launch(
        "rows_backward", block, (grad, out, lost, top, norm, delta, dq, dx, dp, ds), grad,
        MASK_GRADIENT=mask_gradient,
    )  # fmt: skip
    call.launch("columns_backward", block, (grad, top, norm, delta, dk, dv), grad)
    return dq, dk, dv, dx, dp, ds


@_backward.register_fake
def _(
    grad: Tensor, out: Tensor, lost: Tensor, top: Tensor, norm: Tensor, query: Tensor, key: Tensor,
    *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _empty_backward(query, key, rest[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:7])
    ctx.settings = inputs[7:]
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, grad: Tensor, *ignored: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    mask, wanted = saved[8], ctx.needs_input_grad[4]
    dq, dk, dv, dx, dp, ds = _backward(grad, *saved, *ctx.settings, wanted)
    dmask = ds.sum_to_size(mask.shape).to(mask.dtype) if wanted else None
    return (dq, dk, dv, dx, dmask, dp.sum((0, 2)), *[None] * 7)


_forward.register_autograd(_differentiate, setup_context=_keep)


def _empty_forward(query: Tensor) -> tuple[Tensor, ...]:
    out, top = empty_states(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    lost = query.new_empty(0) if query.dtype == torch.float32 else torch.empty_like(out)
    return out, lost, top, torch.empty_like(top)


def _empty_backward(query: Tensor, key: Tensor, mask_gradient: bool) -> Any:
    dq, dx, dk, dv = (empty_states(x) for x in (query, query, key, key))
    dp = query.new_empty(query.shape[:3], dtype=torch.float32)
    matrix = (*query.shape[:3], key.shape[2]) if mask_gradient else (0,)
    return dq, dk, dv, dx, dp, query.new_empty(matrix, dtype=torch.float32)


class _Call(Call):
    """One call's arguments, in the order in which the kernels take them."""

    def __init__(
        self, query: Tensor, key: Tensor, every: Tensor, rows: Tensor, mask: Tensor | None,
        p: Tensor, seed: Tensor, causal: bool, scaling: float, dropout: float, eps: float,
    ) -> None:  # fmt: skip
        super().__init__((query, key, every, rows), mask, causal)
        groups, keys, width = key.shape[1:]
        is_float32 = query.dtype == torch.float32
        centre = every.mean(-2) if is_float32 else query.new_zeros(len(query), groups, width)
        self.pointers = (*self.states, centre.contiguous(), self.mask, p, seed)
        self.numbers = (*query.shape[1:3], keys, scaling, eps, dropout)
        language = _kernels().tl
        # The precision of products: of float16's wide ones tf32.
        self.constants |= {
            "DROPOUT": dropout > 0.0,
            "CENTRED": is_float32,
            "WIDE": language.bfloat16 if query.dtype == torch.bfloat16 else language.float32,
            "WIDE_PRECISION": precision() if is_float32 else "tf32",
        }

    def launch(
        self,
        name: str,
        block: Block,
        others: tuple[Tensor, ...],
        grad: Tensor | None = None,
        **constants: Any,
    ) -> None:
        """Run a kernel; `others` are its own tensors, which follow those that all kernels take."""
        of_keys = name == "columns_backward"
        heads = self.states[of_keys].shape[1]
        self.run(getattr(_kernels(), name), of_keys, heads, block, others, grad, constants)
