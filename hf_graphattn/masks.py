"""The masks of a patched model, brought into one form.

transformers makes one mask for all layers of a model, by the mask function registered under the
attention's name. Ours is the one of SDPA: boolean (B, 1, Nq, Nk), True where a query may attend, or
None if nothing is masked but by causality, which the attention must then apply by itself. A user's
own 4-D mask arrives unchanged, and T5's position bias beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.masking_utils import eager_mask as eager_graph_attn_mask
from transformers.masking_utils import sdpa_mask as graph_attn_mask


def merge(
    mask: Tensor | None, position_bias: Tensor | None, causal: bool, query: Tensor, key: Tensor
) -> tuple[Tensor | None, bool]:
    """(mask, causal), with the position bias added to the mask.

    `mask` is None, boolean or additive, and already contains the causality; `position_bias` is
    (1 or B, H, Nq, Nk) or None. `causal` is only True where the mask that is returned is None.
    """
    if mask is not None or query.shape[-2] == 1:  # a branch, since a compiled length is symbolic
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


__all__ = ["eager_graph_attn_mask", "graph_attn_mask", "merge"]
