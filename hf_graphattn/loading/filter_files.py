"""One small file with the filters alone: their scalars, their config, and which model they fit.

`graph_filters.safetensors` holds a tensor for each learned scalar, and in its metadata the JSON
object of `config.graph_attn` and the base's shape: model type, width, and the number of heads of
every self-attention module. The tensors have their names in the base model, so that the filters of
a model with one head can be loaded into a model with another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hf_graphattn.architectures import find
from hf_graphattn.errors import GraphAttentionError
from hf_graphattn.interface.graph_attn import FILTER
from hf_graphattn.model.configs import make_entry, read_entry
from hf_graphattn.model.filters import (
    base_model,
    graph_filters,
    original_filter,
    read_config,
    refuse_adapted,
    refuse_no_model,
)
from hf_graphattn.model.parallel import whole
from hf_graphattn.model.save import CHECKSUM, checksum
from hf_graphattn.patching.patch import Model, patch, unpatch_model
from hf_graphattn.variants import GraphFilter

from . import HUB_ARGUMENTS, find_file, load_filter_tensors, reading

FILTERS_NAME = "graph_filters.safetensors"


def save_filters(model: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write the filters of a patched model to `folder`; returns the file's path.

    If PEFT has wrapped the model, the filters of its base are written, not those of an adapter. If
    FSDP or tensor parallelism has spread it over processes, each of them must call this.

    Raises:
        GraphAttentionError: the model is not patched.
    """
    config, filters = read_config(model), _base_filters(model)
    path = Path(folder) / FILTERS_NAME
    tensors = {
        f"{name}.{FILTER}.{scalar}": whole(parameter.detach()).cpu().contiguous()
        for name, graph_filter in filters.items()
        for scalar, parameter in graph_filter.named_parameters()
    }
    entry = make_entry(config) | {CHECKSUM: checksum(config, tensors.values())}
    about = {"graph_attn": entry, "shape": shape_of(model)}
    os.makedirs(folder, exist_ok=True)  # raises for "", where a Path would be "."
    aside = path.with_suffix(f".{uuid4().hex}.part")  # several processes may write the same
    save_file(tensors, aside, metadata={key: json.dumps(value) for key, value in about.items()})
    aside.replace(path)
    return path


def load_filters(
    model: Model,
    path_or_repo: str | os.PathLike[str],
    *,
    backend: str = "auto",
    check: Mapping[str, Any] | bool = False,
    **kwargs: Any,
) -> Model:
    """Patch a plain model with the filters that `save_filters` wrote; returns the model.

    Args:
        model: a plain model of the shape that the filters were saved from, with any head.
        path_or_repo: the folder, or a hub repository that holds the file.
        backend, check: as in `patch_model`.
        kwargs: where the file is, as in transformers: revision, token, cache_dir ...

    Raises:
        GraphAttentionError: there is no such file, or it is damaged; or the model is patched
            already, or has other attention modules or heads. The model is then as it was.
    """
    refuse_no_model(model)
    path = os.fspath(path_or_repo)
    unknown = sorted(kwargs.keys() - set(HUB_ARGUMENTS))
    if unknown:
        raise TypeError(f"unexpected arguments: {', '.join(unknown)}")
    refuse_adapted(model, "Load the filters before PEFT wraps the model.")
    with reading(path):
        saved, shape, tensors = read_filters(path, kwargs)
        variant = read_entry(saved, path)
        here = shape_of(model)
        differing = [f"{n} {shape.get(n)}, here {here[n]}" for n in here if here[n] != shape.get(n)]
    if differing:
        raise GraphAttentionError(
            f"the filters of {path!r} do not fit {type(model).__name__}: they were saved from a "
            f"model with {'; '.join(differing)}. Load them onto that base model."
        )
    patch(model, variant, backend, check, None)
    try:
        load_filter_tensors(model, tensors, path, saved)
    except GraphAttentionError:
        unpatch_model(model)
        raise
    return model


def read_filters(
    path: str, where: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """(`graph_attn`, the base's shape, tensors) of a file of filters; call it in `reading(path)`.

    Raises:
        GraphAttentionError: there is no such file.
    """
    file = find_file(path, FILTERS_NAME, where)
    if file is None:
        raise GraphAttentionError(
            f"{path!r} has no {FILTERS_NAME}. Write it with save_filters(model, folder); or, if "
            f"this is a whole patched model, load it with from_pretrained(path)."
        )
    with safe_open(file, framework="pt") as opened:
        about = {key: json.loads(text) for key, text in (opened.metadata() or {}).items()}
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    return about["graph_attn"], about["shape"], tensors


def shape_of(model: nn.Module) -> dict[str, Any]:
    """What a base must have in common with the one that filters were saved from."""
    base = base_model(model)
    config = getattr(base, "config", None)
    return {
        "model_type": getattr(config, "model_type", type(base).__name__),
        "hidden_size": getattr(config, "hidden_size", None),
        "heads": {
            _base_name(layer.name, base): layer.num_heads for layer in find(base).self_attention
        },
    }


def _base_filters(model: nn.Module) -> dict[str, GraphFilter]:
    """The base model's own filters, by the names of their attention modules in it."""
    base = base_model(model)
    return {_base_name(name, base): original_filter(f) for name, f in graph_filters(base).items()}


def _base_name(name: str, model: nn.Module) -> str:
    """A module's name without the prefix that a model with a head puts before its base's names."""
    return name.removeprefix(f"{getattr(model, 'base_model_prefix', '')}.")
