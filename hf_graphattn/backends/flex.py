"""`flex_attention`: each call is a pass of torch's flex attention (arXiv 2412.05496).

It takes any mask, boolean or additive (a learned bias too), in one fused kernel, which
torch.compile makes at the first call. Beside the mask, memory is linear in N. Causal blocks above
the diagonal are skipped.

It has no attention dropout. On the CPU torch computes it unfused, with the whole matrix, and has no
backward, so that it cannot train there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hf_graphattn.errors import refusal

from .base import Attention, AttentionInputs


class FlexAttention(Attention):
    """Computes `A x` by a pass of flex attention at each call."""

    name = "flex_attention"

    @classmethod
    def automatic(cls, device: str, dropout: bool, passes: int) -> bool:
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
