"""Backends that leave the work to a variant's kernel: `blockwise`, `shared` and `triton`.

Each holds the call's inputs, from which the kernel computes the output; see `kernels/`.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from hf_graphattn.errors import GraphAttentionError

from .base import Attention, AttentionInputs
from .fused import SdpaAttention

SHORTEST = 129  # of fewer rows `shared` has one block, and a kept A is faster
MOST_ELEMENTS = 2**24  # 64 MB of float32: without causality a block has all rows, a head a thread
CAPABILITY = (8, 0)  # the lowest of a CUDA device that Triton compiles for


class BlockwiseAttention(Attention):
    """For variants with a kernel in torch's operations, on any device."""

    name = "blockwise"


class SharedAttention(SdpaAttention):
    """For filters of several passes that have a kernel in which all passes share A.

    What the kernel does not compute (attention dropout, a cache that holds earlier tokens, a graph
    that torch.compile or torch.jit.trace makes, torch.func, forward mode, no tokens) is done by
    fused passes, as in `sdpa`. It has first derivatives alone, and no batched gradients.
    """

    name = "shared"
    groups = False  # its kernel reads a key of each head

    @classmethod
    def automatic(cls, device: str, passes: int) -> bool:
        return device == "cpu" and passes > 1

    @classmethod
    def takes(cls, inputs: AttentionInputs, passes: int) -> bool:
        query, length = inputs.query, inputs.query.shape[-2]
        precise = query.dtype.itemsize > 2 and not torch.is_autocast_enabled(query.device.type)
        square = length == inputs.key.shape[-2]  # not the new tokens of a cache that holds others
        fits = inputs.causal or length**2 * torch.get_num_threads() <= MOST_ELEMENTS
        return inputs.dropout == 0.0 and precise and square and length >= SHORTEST and fits


class TritonAttention(Attention):
    """For variants with a Triton kernel, on CUDA or, for tests, in Triton's interpreter.

    The limits of a kernel (dtypes, head widths) are stated beside the kernel.
    """

    name = "triton"

    @classmethod
    def check_available(cls) -> None:
        obstacle = _obstacle()
        if obstacle is not None:
            raise GraphAttentionError(
                f"backend 'triton' cannot run: {obstacle}. Use backend='auto', which takes what "
                f"can run."
            )

    @classmethod
    def automatic(cls, device: str, passes: int) -> bool:
        return device == "cuda" and _obstacle() is None

    def __call__(self, x: Tensor) -> Tensor:
        raise GraphAttentionError(
            "backend 'triton' computes whole sequences, and no A x of new tokens alone, as cached "
            "generation needs it. Pass use_cache=False, or patch the model with backend='auto'."
        )


def _obstacle() -> str | None:
    """Why Triton's kernels cannot run on this machine; None where they can."""
    return _cached_obstacle()


# What torch.compiler.assume_constant_result does, but for importing the compiler, which takes 2 s.
_obstacle._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache  # "auto" asks at every call of every layer
def _cached_obstacle() -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "there is no CUDA device (TRITON_INTERPRET=1 runs it slowly on the CPU)"
    if torch.cuda.get_device_capability() < CAPABILITY:
        return f"the CUDA device is older than compute capability {'.'.join(map(str, CAPABILITY))}"
    return None


def interpreted() -> bool:
    """Whether Triton runs its kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"
