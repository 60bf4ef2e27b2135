"""`triton`: p-LaT's Triton kernels (`kernels/plat/triton`); memory linear in the length.

On CUDA, or, for tests, in Triton's interpreter. Importing this file needs neither.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import ClassVar

import torch

from hf_graphattn.errors import GraphAttentionError, refusal

from .base import Attention, AttentionInputs

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 128  # of a head: what a block's shared memory holds
GRID = 2**16 - 1  # batch times heads: CUDA's limit of a grid's second axis
CAPABILITY = (8, 0)  # of the CUDA device: what Triton compiles for


class TritonAttention(Attention):
    """Leaves the work to a variant's Triton kernel."""

    name: ClassVar[str] = "triton"

    @classmethod
    def check_available(cls) -> None:
        why = _missing()
        if why is not None:
            raise GraphAttentionError(f"backend 'triton' cannot run: {why}. Use 'blockwise'.")

    @classmethod
    def automatic(cls, device: str, dropout: bool) -> bool:
        return device == "cuda" and _missing() is None

    @classmethod
    def takes(cls, inputs: AttentionInputs, passes: int) -> bool:
        query, mask = inputs.query, inputs.mask
        learned = mask is not None and mask.requires_grad  # its gradient is made whole
        batch, heads, _, width = query.shape
        fits = width <= WIDEST and batch * heads <= GRID
        return query.dtype in DTYPES and fits and not learned

    def __init__(self, inputs: AttentionInputs) -> None:
        super().__init__(inputs)
        query = inputs.query
        batch, heads, _, width = query.shape
        device = "cpu" if interpreted() else "cuda"
        for what, given, allowed, fits in (
            ("device", query.device.type, device, query.device.type == device),
            ("dtype", query.dtype, ", ".join(map(str, DTYPES)), query.dtype in DTYPES),
            ("head width", width, f"at most {WIDEST}", width <= WIDEST),
            ("batch times heads", batch * heads, f"at most {GRID}", batch * heads <= GRID),
        ):
            if not fits:
                raise refusal(f"the {what} under 'triton'", given, allowed, "Use 'blockwise'.")


@torch.compiler.assume_constant_result
def _missing() -> str | None:
    """Why the kernels cannot run on this machine; None where they can."""
    return _looked_up()


@cache  # "auto" asks at every call of every layer
def _looked_up() -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "there is no CUDA device (TRITON_INTERPRET=1 runs it slowly on the CPU)"
    if torch.cuda.get_device_capability() < CAPABILITY:
        return "the CUDA device is older than compute capability 8.0"
    return None


def interpreted() -> bool:
    """Whether Triton runs its kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"
