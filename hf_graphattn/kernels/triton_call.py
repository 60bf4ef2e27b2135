"""How the Triton kernels of all variants are called: their limits, their blocks, their arguments.

Importing this file needs neither Triton nor a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_graphattn.backends.triton import interpreted
from hf_graphattn.errors import refusal

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 128  # the widest head, whose block fits into shared memory
GRID = 2**16 - 1  # the most of batch times heads: CUDA's limit of a grid's second axis

# What is limited, its value in this call, what is allowed, and whether it is.
Limit = tuple[str, object, str, bool]


class Block(NamedTuple):
    """The tokens that a program makes and those that it sweeps at once, powers of 2 from 16."""

    made: int
    swept: int
    warps: int = 4
    stages: int = 2  # how many sweeps ahead the states are loaded


def limits(query: Tensor) -> tuple[Limit, ...]:
    """Those of all kernels."""
    batch, heads, _, width = query.shape
    return (
        ("dtype", query.dtype, ", ".join(map(str, DTYPES)), query.dtype in DTYPES),
        ("head width", width, f"at most {WIDEST}", width <= WIDEST),
        ("batch times heads", batch * heads, f"at most {GRID}", batch * heads <= GRID),
    )


def check(found: Sequence[Limit], other: str) -> None:
    """Raise `GraphAttentionError` for a call beyond a limit; `other` is a backend without it."""
    for what, given, allowed, within in found:
        if not within:
            raise refusal(
                f"the {what} under backend 'triton'", given, allowed, f"Patch with {other!r}."
            )


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


class Call:
    """One call's arguments, in the order in which the kernels take them.

    A kernel takes `pointers`, tensors of its own, `strides` (of the output's gradient too, where it
    reads that), `numbers` and constants.
    """

    pointers: tuple[Tensor, ...]
    numbers: tuple[float, ...]

    def __init__(self, states: Sequence[Tensor], mask: Tensor | None, causal: bool) -> None:
        """`states` begin with the query, (B, H, Nq, D), and the key, (B, H or fewer, Nk, D)."""
        query, key = states[:2]
        heads, width = query.shape[1], query.shape[3]
        kind = "boolean" if mask is not None and mask.dtype == torch.bool else "additive"
        # Without a mask, a tensor that is not read.
        whole = query if mask is None else mask.expand(*query.shape[:3], key.shape[2])
        on_nvidia = torch.version.cuda is not None and not interpreted()
        self.device = query.device
        self.states = tuple(narrow(x) for x in states)
        self.mask = whole if mask is None or kind == "additive" else whole.view(torch.uint8)
        self.strides = [n for x in self.states for n in x.stride()[:3]] + list(whole.stride())
        self.constants = {
            "GROUP": heads // key.shape[1],
            "WIDTH": width,
            "COLUMNS": max(16, 1 << (width - 1).bit_length()),
            "CAUSAL": causal,
            "MASK": "none" if mask is None else kind,
            "FAST": query.dtype != torch.float32 and on_nvidia,
            "PRECISION": precision(),
        }

    def run(
        self,
        kernel: Any,
        of_keys: bool,
        heads: int,
        block: Block,
        others: Sequence[Tensor],
        grad: Tensor | None,
        constants: dict[str, Any],
    ) -> None:
        """Run a kernel whose programs make blocks of keys, or of rows, of batch times `heads`."""
        axes = ("KEY_BLOCK", "ROW_BLOCK") if of_keys else ("ROW_BLOCK", "KEY_BLOCK")
        constants |= self.constants | dict(zip(axes, block[:2], strict=True))
        strides = self.strides if grad is None else [*self.strides, *grad.stride()[:3]]
        batch, _, tokens, _ = self.states[1 if of_keys else 0].shape
        with torch.cuda.device(self.device if self.device.type == "cuda" else -1):
            kernel[-(-tokens // block.made), batch * heads](
                *self.pointers, *others, *strides, *self.numbers, **constants,
                num_warps=block.warps, num_stages=block.stages,
            )  # fmt: skip
