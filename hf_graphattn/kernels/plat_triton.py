"""p-LaT as Triton kernels: memory linear in the length, on CUDA or in Triton's interpreter.

They are registered as operators of torch, so that torch.compile takes them whole. Triton is
imported at the first call: importing this file needs neither Triton nor a GPU. The backward takes
eleven products instead of `blockwise`'s eight, since one kernel sweeps the rows and another the
keys. So no two programs add into the same place, and every run gives the same bits.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_graphattn.backends import AttentionInputs
from hf_graphattn.backends.kernels import interpreted
from hf_graphattn.errors import refusal

from .plat import Values

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 128  # the widest head, whose block fits into shared memory
GRID = 2**16 - 1  # the most of batch times heads: CUDA's limit of a grid's second axis


class Block(NamedTuple):
    """The tokens that a program makes and those that it sweeps at once, powers of 2 from 16."""

    made: int
    swept: int
    warps: int = 4
    stages: int = 2  # how many sweeps ahead the states are loaded


def limits(inputs: AttentionInputs) -> tuple[tuple[str, object, str, bool], ...]:
    """What is limited, its value in this call, what is allowed, and whether it is within."""
    query, mask = inputs.query, inputs.mask
    batch, heads, _, width = query.shape
    is_learned = mask is not None and mask.requires_grad
    return (
        ("dtype", query.dtype, ", ".join(map(str, DTYPES)), query.dtype in DTYPES),
        ("head width", width, f"at most {WIDEST}", width <= WIDEST),
        ("batch times heads", batch * heads, f"at most {GRID}", batch * heads <= GRID),
        ("mask's gradient", is_learned, "no gradient, which would be whole", not is_learned),
    )


def fits(inputs: AttentionInputs) -> bool:
    """Whether "auto" may use the kernels for this call."""
    return all(within for *_, within in limits(inputs))


def triton(
    inputs: AttentionInputs,
    values: Values,
    p: float | Tensor,
    eps: float,
    blocks: tuple[Block, Block] | None = None,
) -> Tensor:
    """p-LaT by Triton kernels.

    Keys and `values.every` may have fewer heads than the queries; they need not be repeated.

    Args:
        inputs: the attention's.
        values: the values of the keys and of the rows.
        p: a number or (H, 1, 1).
        eps: added to the squared distance.
        blocks: those of the forward and of the backward, by default `default_blocks`.

    Returns:
        The output, (B, H, Nq, D).

    Raises:
        GraphAttentionError: the call is beyond the kernels' limits.
    """
    for what, value, allowed, within in limits(inputs):
        if not within:
            remedy = "Patch with 'blockwise'."
            raise refusal(f"the {what} under backend 'triton'", value, allowed, remedy)
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


def _kernels() -> Any:
    from . import plat_triton_kernels

    return plat_triton_kernels


# The arguments of both operators; `forward` and `backward` are the blocks of these.
ARGUMENTS = (
    "Tensor query, Tensor key, Tensor every, Tensor rows, Tensor? mask, Tensor p, Tensor seed, "
    "bool causal, float scaling, float dropout, float eps, int[] forward, int[] backward"
)
_Arguments = namedtuple(
    "_Arguments",
    "query key every rows mask p seed causal scaling dropout eps forward backward",
)


@torch.library.custom_op(
    "hf_graphattn::plat_forward",
    mutates_args=(),
    schema=f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The output, what its rounding lost, and each row's greatest score and 1 / sum, (B, H, Nq)."""
    inputs = _Arguments(*arguments)
    outputs = _empty_forward(inputs.query)
    _Call(inputs).launch("rows_forward", Block(*inputs.forward), outputs)
    return outputs


@_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _empty_forward(_Arguments(*arguments).query)


@torch.library.custom_op(
    "hf_graphattn::plat_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor out, Tensor lost, Tensor top, Tensor norm, {ARGUMENTS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    grad: Tensor, out: Tensor, lost: Tensor, top: Tensor, norm: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """The gradients of query, key, every and rows, and of p by row, (B, H, Nq)."""
    inputs = _Arguments(*arguments)
    call, block = _Call(inputs), Block(*inputs.backward)
    grad = narrow(grad.to(inputs.query.dtype))
    dq, dk, dv, dx, dp = _empty_backward(inputs)
    delta = torch.empty_like(top)
    call.launch("rows_backward", block, (grad, out, lost, top, norm, delta, dq, dx, dp), grad)
    call.launch("columns_backward", block, (grad, top, norm, delta, dk, dv), grad)
    return dq, dk, dv, dx, dp


@_backward.register_fake
def _(
    grad: Tensor, out: Tensor, lost: Tensor, top: Tensor, norm: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    return _empty_backward(_Arguments(*arguments))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.settings = inputs[:7], inputs[7:]
    ctx.save_for_backward(*output, *tensors)
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, grad: Tensor, *ignored: Tensor) -> tuple[Tensor | None, ...]:
    outputs, tensors = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
    dq, dk, dv, dx, dp = _backward(grad, *outputs, *tensors, *ctx.settings)
    return (dq, dk, dv, dx, None, dp.sum((0, 2)), *[None] * 7)  # of the mask, seed and settings


_forward.register_autograd(_differentiate, setup_context=_keep)


def _empty_forward(query: Tensor) -> tuple[Tensor, ...]:
    out, top = empty_states(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    lost = query.new_empty(0) if query.dtype == torch.float32 else torch.empty_like(out)
    return out, lost, top, torch.empty_like(top)


def _empty_backward(inputs: _Arguments) -> Any:
    query, key = inputs.query, inputs.key
    dq, dx, dk, dv = (empty_states(x) for x in (query, query, key, key))
    dp = query.new_empty(query.shape[:3], dtype=torch.float32)
    return dq, dk, dv, dx, dp


def common(query: Tensor, value: Tensor) -> torch.dtype:
    """The dtype that the kernels take."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return torch.promote_types(query.dtype, value.dtype)


def empty_states(like: Tensor) -> Tensor:
    """Empty states of shape (B, H, N, D), laid out in memory as (B, N, H, D)."""
    batch, heads, length, width = like.shape
    return like.new_empty(batch, length, heads, width).transpose(1, 2)


def narrow(states: Tensor) -> Tensor:
    """The states with a contiguous width, as the kernels read them."""
    return states if states.stride(-1) == 1 else states.contiguous()


def precision() -> str:
    """That of float32 products; reading torch's old switch raises if the new one is set."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


class _Call:
    """One call's arguments, in the order in which the kernels take them.

    A kernel takes `pointers`, other tensors, `strides` (of the output's gradient too, where it
    reads that), `numbers` and `constants`.
    """

    def __init__(self, inputs: _Arguments) -> None:
        query, key, every, rows, mask, p, seed, causal, scaling, dropout, eps, *_ = inputs
        heads, width = query.shape[1], query.shape[3]
        groups, keys = key.shape[1:3]
        is_float32 = query.dtype == torch.float32
        kind = "boolean" if mask is not None and mask.dtype == torch.bool else "additive"
        # Without a mask, a tensor that is not read.
        whole = query if mask is None else mask.expand(*query.shape[:3], keys)
        read = whole if mask is None or kind == "additive" else whole.view(torch.uint8)
        centre = every.mean(-2) if is_float32 else query.new_zeros(len(query), groups, width)
        language = _kernels().tl
        self.device = query.device
        self.states = tuple(narrow(x) for x in (query, key, every, rows))
        self.pointers = (*self.states, centre.contiguous(), read, p, seed)
        self.strides = [n for x in self.states for n in x.stride()[:3]] + list(whole.stride())
        self.numbers = (heads, query.shape[2], keys, scaling, eps, dropout)
        self.constants = {
            "GROUP": heads // groups,
            "WIDTH": width,
            "COLUMNS": max(16, 1 << (width - 1).bit_length()),
            "CAUSAL": causal,
            "MASK": "none" if mask is None else kind,
            "FAST": not is_float32 and torch.version.cuda is not None and not interpreted(),
            "PRECISION": precision(),
            "DROPOUT": dropout > 0.0,
            "CENTRED": is_float32,
            # The precision of products: of float16's wide ones tf32.
            "WIDE": language.bfloat16 if query.dtype == torch.bfloat16 else language.float32,
            "WIDE_PRECISION": precision() if is_float32 else "tf32",
        }

    def launch(
        self,
        name: str,
        block: Block,
        tensors: tuple[Tensor, ...],
        grad: Tensor | None = None,
    ) -> None:
        """Run a kernel; `tensors` are those that follow the `pointers` of all kernels."""
        of_keys = name == "columns_backward"
        axes = ("KEY_BLOCK", "ROW_BLOCK") if of_keys else ("ROW_BLOCK", "KEY_BLOCK")
        constants = self.constants | dict(zip(axes, block[:2], strict=True))
        strides = self.strides if grad is None else [*self.strides, *grad.stride()[:3]]
        batch, heads, tokens, _ = self.states[of_keys].shape
        with torch.cuda.device(self.device if self.device.type == "cuda" else -1):
            getattr(_kernels(), name)[-(-tokens // block.made), batch * heads](
                *self.pointers, *tensors, *strides, *self.numbers, **constants,
                num_warps=block.warps, num_stages=block.stages,
            )  # fmt: skip
