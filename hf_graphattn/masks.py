"""The masks of a patched model, and their one form.

transformers makes one mask for all layers of a model, by the mask function registered under the
attention's name. Ours is SDPA's: boolean (B, 1, Nq, Nk), True where a query may attend, or None
where causality alone would do (then the attention must be causal by itself) or nothing is masked.
A user's own 4-D mask arrives as it is, T5's position bias beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.masking_utils import sdpa_mask as graph_attn_mask


def merge(
    mask: Tensor | None, position_bias: Tensor | None, causal: bool, query: Tensor, key: Tensor
) -> tuple[Tensor | None, bool]:
    """(mask, causal) with the position bias in the mask, and causality there if there is a mask.

    `mask` None, boolean or additive; `position_bias` (1 or B, H, Nq, Nk) or None. A mask already
    holds the causality.
    """
    if mask is not None or query.shape[-2] == 1:  # as a branch: a compiled length is symbolic
        causal = False
    if position_bias is None:
        return mask, causal
    if causal:
        lengths = query.shape[-2], key.shape[-2]
        mask = torch.ones(lengths, dtype=torch.bool, device=query.device).tril()
    if mask is None:
        return position_bias, False
    if mask.dtype == torch.bool:
        return position_bias.masked_fill(~mask, torch.finfo(position_bias.dtype).min), False
    return position_bias + mask, False


__all__ = ["graph_attn_mask", "merge"]
