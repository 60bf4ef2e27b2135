"""torch's two fused attentions, a pass at each call; memory is linear in N beside the mask.

`sdpa` is scaled dot product attention. Every pass draws another dropout mask. A query row that may
attend nowhere comes out as zero, which torch has guaranteed since 2.5; a NaN there would spread
through the second pass.

`flex_attention` (arXiv 2412.05496) takes any mask, boolean or additive (a learned bias too), in one
kernel, which torch.compile makes at the first call. Causal blocks above the diagonal are skipped.
It has no attention dropout. On the CPU torch computes it unfused, with the whole matrix, and has no
backward, so that it cannot train there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

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
    def takes(cls, inputs: AttentionInputs, passes: int) -> bool:
        query = inputs.query
        if query.device.type != "cpu":
            return True
        # On the CPU torch's fused kernel has no dropout: each pass would fall back to a slow form.
        # The kept matrix is faster, and is dropped out only once (results/choice-dropout-cpu.json).
        if inputs.dropout > 0.0:
            return False
        if passes == 1 or torch.compiler.is_compiling():  # a compiled graph must serve all lengths
            return True
        # A second fused pass is slower than a product with a small kept matrix
        # (results/choice-cpu.json).
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


class FlexAttention(Attention):
    """Computes `A x` by a pass of flex attention at each call."""

    name = "flex_attention"

    @classmethod
    def automatic(cls, device: str, passes: int) -> bool:
        return False  # it is used only on request

    def __init__(self, inputs: AttentionInputs) -> None:
        super().__init__(inputs)
        if inputs.dropout > 0.0:
            raise refusal(
                f"attention dropout under backend {self.name!r}",
                inputs.dropout,
                "0, since flex attention has none",
                "Set the model's attention dropout to 0, or patch with backend='sdpa'.",
            )

    def __call__(self, x: Tensor) -> Tensor:
        inputs = self.inputs
        query, key = inputs.query, inputs.key
        lengths = query.shape[-2], key.shape[-2]
        compiled = query.device.type != "cpu" and not torch.compiler.is_compiling()
        return _flex_attention(compiled)(
            query,
            key,
            x,
            score_mod=None if inputs.mask is None else _masking(inputs.mask, inputs),
            block_mask=_causal_blocks(*lengths, query.device) if inputs.causal else None,
            scale=inputs.scaling,
        )


def _masking(mask: Tensor, inputs: AttentionInputs) -> Callable[..., Tensor]:
    """The function that applies the mask to one score, of batch b, head h, row i and key j."""
    query, key = inputs.query, inputs.key
    mask = mask.expand(*query.shape[:-1], key.shape[-2])  # a view (B, H, Nq, Nk)

    def hide(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(mask[b, h, i, j], score, -float("inf"))

    def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + mask[b, h, i, j]

    return hide if mask.dtype == torch.bool else add


def _causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


@lru_cache(maxsize=8)  # every layer and pass needs the same one
def _causal_blocks(queries: int, keys: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    with torch.inference_mode(False):  # the mask is kept, and training may need it later
        return create_block_mask(_causal, None, None, queries, keys, device=device)


@lru_cache
def _flex_attention(compiled: bool) -> Callable[..., Tensor]:
    """torch's function, compiled once where compiling fuses it."""
    from torch.nn.attention.flex_attention import flex_attention

    function: Callable[..., Tensor] = flex_attention
    return torch.compile(function) if compiled else function
