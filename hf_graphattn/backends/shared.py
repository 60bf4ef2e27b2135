"""`shared`: for filters of several passes that have a kernel in which all passes share A.

The kernel makes A in blocks, forward and backward; see `kernels/polynomial/blockwise`. What it does
not compute (attention dropout, cached generation, a graph that torch.compile makes) is done by
fused passes, as in `sdpa`.
"""

from __future__ import annotations

import torch

from .base import AttentionInputs
from .sdpa import SdpaAttention

LONGEST = 2048  # without causality a block has all rows of a head: 16 MB of float32 at most


class SharedAttention(SdpaAttention):
    """Holds the call's inputs for the variant's kernel; a call of it is one fused pass."""

    name = "shared"
    groups = False  # its kernel reads a key of each head

    @classmethod
    def automatic(cls, device: str, dropout: bool, passes: int) -> bool:
        return device == "cpu" and not dropout and passes > 1

    @classmethod
    def takes(cls, inputs: AttentionInputs, passes: int) -> bool:
        """For gradients, since there is more to share: see results/choice-cpu.json."""
        query, key = inputs.query, inputs.key
        learns = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
        precise = query.dtype in (torch.float32, torch.float64)
        return learns and precise and (inputs.causal or query.shape[-2] <= LONGEST)
