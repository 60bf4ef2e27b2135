"""`shared`: for filters of several passes that have a kernel in which all passes share A.

The kernel makes A in blocks, forward and backward; see `kernels/polynomial/blockwise`. What it does
not compute (attention dropout, a cache that holds earlier tokens, a graph that torch.compile or
torch.jit.trace makes, torch.func, no tokens) is done by fused passes, as in `sdpa`. It has no
forward-mode derivatives and no batched gradients.
"""

from __future__ import annotations

import torch

from .base import AttentionInputs
from .sdpa import SdpaAttention

SHORTEST = 129  # of fewer rows there is one block, and a kept A is faster
MOST_ELEMENTS = 2**24  # 64 MB of float32: without causality a block has all rows, a head a thread


class SharedAttention(SdpaAttention):
    """Holds the call's inputs for the variant's kernel; a call of it is one fused pass."""

    name = "shared"
    groups = False  # its kernel reads a key of each head

    @classmethod
    def automatic(cls, device: str, dropout: bool, passes: int) -> bool:
        return device == "cpu" and not dropout and passes > 1

    @classmethod
    def takes(cls, inputs: AttentionInputs, passes: int) -> bool:
        query, length = inputs.query, inputs.query.shape[-2]
        half = torch.is_autocast_enabled(query.device.type)
        precise = query.dtype in (torch.float32, torch.float64) and not half
        square = length == inputs.key.shape[-2]  # not the new tokens of a cache that holds others
        fits = inputs.causal or length**2 * torch.get_num_threads() <= MOST_ELEMENTS
        return precise and square and length >= SHORTEST and fits
