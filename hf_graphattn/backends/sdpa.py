"""`sdpa`: each call is one pass of torch's scaled dot product attention; memory linear in N.

Every pass draws its own dropout mask. A query row that may attend nowhere comes out as zero:
torch's kernels have guaranteed that since 2.5, and a second pass would meet its NaN otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .base import Attention, AttentionInputs

KEPT_ELEMENTS = 2**22  # of (B, H, Nq, Nk): 16 MB a layer in float32


class SdpaAttention(Attention):
    """`attend` by fused passes."""

    name = "sdpa"

    @classmethod
    def automatic(cls, device: str, dropout: bool) -> bool:
        # On the CPU torch's fused kernel has no dropout and falls back to a slow form, one for each
        # pass: the kept matrix is faster, and is drawn only once (results/choice-dropout-cpu.json).
        return not (device == "cpu" and dropout)

    @classmethod
    def leaves_short(cls, device: str, passes: int) -> bool:
        # Nor is a second fused pass on the CPU faster than a product with a small kept matrix
        # (results/choice-cpu.json).
        return device == "cpu" and passes > 1

    @classmethod
    def takes(cls, inputs: AttentionInputs, passes: int) -> bool:
        query = inputs.query
        if not cls.leaves_short(query.device.type, passes) or torch.compiler.is_compiling():
            return True  # compiled, one form serves all lengths
        return query[..., 0].numel() * inputs.key.shape[-2] > KEPT_ELEMENTS

    def __call__(self, x: Tensor) -> Tensor:
        inputs = self.inputs
        return scaled_dot_product_attention(
            inputs.query,
            inputs.key,
            x,
            attn_mask=inputs.mask,
            dropout_p=inputs.dropout,
            is_causal=inputs.causal,
            scale=inputs.scaling,
        )
