"""The filters' tensors as they are saved: what they must be, and the checksum beside them.

The checksum is of the variant's settings, and of the tensors in the order of the model's layers.
Their names are not part of it: a base model and a model with a head name the same tensors
differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_graphattn.errors import GraphAttentionError
from hf_graphattn.model.adapters import is_adapted
from hf_graphattn.model.filters import filter_parameters, read_config
from hf_graphattn.model.parallel import whole
from hf_graphattn.variants import VariantConfig, variant_to_dict

# The key of the entry "graph_attn". ("checksum" was once of the tensors alone; it is not read.)
CHECKSUM = "digest"


def checksum(config: VariantConfig, tensors: Iterable[Tensor]) -> str:
    """The SHA-256 of the settings, and of the tensors: their dtypes, shapes and bytes."""
    digest = hashlib.sha256(json.dumps(variant_to_dict(config), sort_keys=True).encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(
            tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return f"sha256:{digest.hexdigest()}"


def checksum_entry(model: nn.Module, state: Mapping[str, Tensor] | None) -> dict[str, str]:
    """The entry of the checksum of what is saved; empty where no process holds the tensors whole.

    state: the tensors that are saved instead of the model's own, as accelerate gathers them.
    """
    own = dict(filter_parameters(model))
    saved: list[Any] = [(own if state is None else state).get(name) for name in own]
    if getattr(model, "tp_size", None):  # transformers gathers them too: every process is here
        saved = [whole(each) for each in saved]
    are_whole = all(type(each) in (Tensor, nn.Parameter) and not each.is_meta for each in saved)
    if not are_whole or is_adapted(model):
        return {}
    return {CHECKSUM: checksum(read_config(model), saved)}


def refuse_damaged(tensors: Mapping[str, Tensor], path: str) -> None:
    """Raise `GraphAttentionError` for a tensor that no filter can have saved."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            what = f"of dtype {tensor.dtype}"
        elif not tensor.float().isfinite().all():
            what = "not finite"
        else:
            continue
        raise GraphAttentionError(
            f"the filter tensor {name} of {path!r} is {what}; allowed: finite floating-point "
            f"numbers. The file is damaged or was edited, or its training diverged: save it again."
        )


def refuse_changed(found: str, entry: Mapping[str, Any], path: str) -> None:
    """Raise `GraphAttentionError` if a checksum was saved, and this one was found."""
    if entry.get(CHECKSUM, found) != found:
        raise GraphAttentionError(
            f"the filters of {path!r} are not those that were saved: the checksum of their "
            f"settings and tensors is {found!r}, and {entry[CHECKSUM]!r} was written beside them. "
            f"The folder is damaged or was edited: save the model again. (Who edited it on purpose "
            f"removes {CHECKSUM!r} from the entry 'graph_attn'.)"
        )
