"""The masks of a patched model, brought into one form.

transformers makes one mask for all layers of a model, by the mask function registered under the
attention's name. Ours is the one of SDPA: boolean (B, 1, Nq, Nk), True where a query may attend, or
None if nothing is masked but by causality, which the attention must then apply by itself. A user's
own 4-D mask arrives unchanged, and T5's position bias beside it. Models with an indexer choose the
keys of each query themselves, and pass the chosen keys beside the mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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


def of_chosen_keys(
    module: Any, mask: Tensor | None, arguments: dict[str, Any], key: Tensor
) -> tuple[Tensor | None, dict[str, Any]]:
    """(The mask of the keys that an indexer chose, the arguments without its choice).

    A model with an indexer puts its choice into the mask for the names "eager" and "sdpa" alone; to
    others it gives `indices`, the keys of each query, (B, Nq, k), or `block_indices`, blocks of
    keys, of which its own indexer can make the mask. Without a mask both are left as they are.
    """
    if mask is None:
        return mask, arguments
    of_blocks = getattr(getattr(module, "indexer", None), "build_block_mask", None)
    if arguments.get("indices") is not None:
        chosen = arguments["indices"].long()
        hidden = chosen.new_ones(*chosen.shape[:2], key.shape[-2], dtype=torch.bool)
        hidden = hidden.scatter(-1, chosen, False).unsqueeze(1)
        is_bool = mask.dtype == torch.bool
        mask = mask.masked_fill(hidden, False if is_bool else torch.finfo(mask.dtype).min)
    elif arguments.get("block_indices") is not None and of_blocks is not None:
        # The last argument, the queries' positions, is read where there is no mask.
        blocks = arguments["block_indices"]
        mask = of_blocks(blocks, mask, key.shape[-2], key.dtype, key.device, None)
    else:
        return mask, arguments
    more = {n: a for n, a in arguments.items() if n not in ("indices", "block_indices")}
    return mask, more
