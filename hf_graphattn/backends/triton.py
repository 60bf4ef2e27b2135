"""`triton`: for variants with a Triton kernel of their own; memory linear in the length.

It runs on CUDA or, for tests, in Triton's interpreter; importing this file needs neither. The
limits of a kernel (dtypes, head widths) are stated beside the kernel.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from hf_graphattn.errors import GraphAttentionError, refusal

from .base import Attention, AttentionInputs

CAPABILITY = (8, 0)  # the lowest of a CUDA device that Triton compiles for


class TritonAttention(Attention):
    """Holds the call's inputs for the variant's kernel, which computes the output from them."""

    name = "triton"

    @classmethod
    def check_available(cls) -> None:
        why = _missing()
        if why is not None:
            raise GraphAttentionError(
                f"backend 'triton' cannot run: {why}. Use backend='auto', which takes what can run."
            )

    @classmethod
    def automatic(cls, device: str, dropout: bool, passes: int) -> bool:
        return device == "cuda" and _missing() is None

    def __init__(self, inputs: AttentionInputs) -> None:
        super().__init__(inputs)
        given, allowed = inputs.query.device.type, "cpu" if interpreted() else "cuda"
        if given != allowed:
            raise refusal(
                "the model's device under backend 'triton'",
                given,
                allowed,
                "Move the model there, or patch it with backend='auto'.",
            )

    def __call__(self, x: Tensor) -> Tensor:
        raise GraphAttentionError(
            "backend 'triton' computes whole sequences, and no A x of new tokens alone, as cached "
            "generation needs it. Pass use_cache=False, or patch the model with backend='auto'."
        )


def _missing() -> str | None:
    """Why Triton's kernels cannot run on this machine; None where they can."""
    return _looked_up()


# What torch.compiler.assume_constant_result does, but for importing the compiler, which takes 2 s.
_missing._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache  # "auto" asks at every call of every layer
def _looked_up() -> str | None:
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
