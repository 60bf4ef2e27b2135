"""`sdpa`: each call is one pass of torch's scaled dot product attention; memory linear in N.

Every pass draws its own dropout mask. A query row that may attend nowhere comes out as zero, which
torch has guaranteed since 2.5; a NaN there would spread through the second pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hf_graphattn.errors import refusal

from .base import Attention, AttentionInputs, one_per_query_head

KEPT_STATES = 8  # a kept A has at most as many elements as so many states (B, H, N, D)
WIDEST = 256  # the width of heads up to which a fused pass lets query heads share keys


class SdpaAttention(Attention):
    """Computes `A x` by a fused pass at each call."""

    name = "sdpa"
    groups = True

    @classmethod
    def automatic(cls, device: str, dropout: bool, passes: int) -> bool:
        # On the CPU torch's fused kernel has no dropout: each pass would fall back to a slow form.
        # The kept matrix is faster, and is dropped out only once (results/choice-dropout-cpu.json).
        return not (device == "cpu" and dropout)

    @classmethod
    def leaves_short(cls, device: str, passes: int) -> bool:
        # On the CPU a second fused pass is slower than a product with a small kept matrix
        # (results/choice-cpu.json).
        return device == "cpu" and passes > 1

    @classmethod
    def takes(cls, inputs: AttentionInputs, passes: int) -> bool:
        query = inputs.query
        if not cls.leaves_short(query.device.type, passes) or torch.compiler.is_compiling():
            return True  # a compiled graph must serve all lengths
        return min(query.shape[-2], inputs.key.shape[-2]) > KEPT_STATES * query.shape[-1]

    def __call__(self, x: Tensor) -> Tensor:
        inputs = self.inputs
        if x.shape[-2] != inputs.key.shape[-2]:  # on the CPU torch would read past the end of x
            raise refusal(
                "the rows of x in attend(x)",
                x.shape[-2],
                f"{inputs.key.shape[-2]}, one for each key",
                "In cached generation `attend` takes the new tokens, and an attend that a filter "
                "makes takes a row of every key: every_value(attend, value).",
            )
        heads, key_heads, width = inputs.query.shape[1], inputs.key.shape[1], inputs.key.shape[-1]
        # As transformers groups: else CUDA would leave its fused kernels.
        groups = x.shape[1] == key_heads < heads and x.shape[-1] == width <= WIDEST
        if not groups or inputs.mask is not None:
            self.inputs = inputs = inputs.ungrouped()  # once for all passes
            x = one_per_query_head(x, inputs.query)
        mask = inputs.mask
        if mask is not None and mask.dtype != torch.bool:
            # Beside float64 queries torch reads a mask of float32 as if it were of float64.
            mask = mask.to(torch.promote_types(mask.dtype, inputs.query.dtype))
        return scaled_dot_product_attention(
            inputs.query,
            inputs.key,
            x,
            attn_mask=mask,
            dropout_p=inputs.dropout,
            is_causal=inputs.causal,
            scale=inputs.scaling,
            enable_gqa=x.shape[1] < heads,
        )
