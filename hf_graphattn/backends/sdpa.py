"""`sdpa`: each call is one pass of torch's scaled dot product attention; memory linear in N.

Every pass draws its own dropout mask. A query row that may attend nowhere comes out as zero:
torch's kernels have guaranteed that since 2.5, and a second pass would meet its NaN otherwise.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .base import Attention


class SdpaAttention(Attention):
    """`attend` by fused passes."""

    name: ClassVar[str] = "sdpa"

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
