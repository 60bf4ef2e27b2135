"""`save_pretrained` of a patched model: transformers' own, with a config that it can write.

config.json     has what was patched, the checksum, and the loading module: `auto_map`
graph_attn.py   two lines, so that `trust_remote_code=True` loads the filters

The checksum is of the variant's settings, and of the tensors in the order of the model's layers.
It leaves their names out: a base model and a model with a head name the same tensors differently.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto

from hf_graphattn.model.adapters import is_adapted, original_filter
from hf_graphattn.model.configs import ENTRY
from hf_graphattn.model.filters import filter_parameters, graph_filters, read_config
from hf_graphattn.model.parallel import whole
from hf_graphattn.variants import VariantConfig, variant_to_dict
from hf_graphattn.version import how_to_install

# The key of the entry "graph_attn" for a config that records attentions: transformers writes no
# such config, unless its attention implementation is "eager".
ASKS = "output_attentions"
# The key of the entry "graph_attn". ("checksum" was once of the tensors alone; it is not read.)
CHECKSUM = "digest"
MODULE = "graph_attn"
_PUSHED = {"repo_id", "commit_message", "create_pr", "private", "token"}


def save_pretrained(
    model: Any,
    save_directory: str | os.PathLike[str],
    is_main_process: bool = True,
    state_dict: dict[str, Any] | None = None,
    push_to_hub: bool = False,
    *args: Any,
    **kwargs: Any,
) -> None:
    """`save_pretrained` of a patched model. Its arguments are those of transformers."""
    folder = Path(save_directory)
    pushed = {name: kwargs.pop(name) for name in _PUSHED & kwargs.keys()} if push_to_hub else {}
    names = auto_classes(model)
    with _as_written(model.config, names, _checksum_entry(model, state_dict)):
        type(model).save_pretrained(
            model, save_directory, is_main_process, state_dict, False, *args, **kwargs
        )
    if is_main_process and not is_adapted(model):
        (folder / f"{MODULE}.py").write_text(_module_text(names), "utf-8")
    if push_to_hub and is_main_process:
        model.push_to_hub(pushed.pop("repo_id", folder.resolve().name), **pushed)


def loads_alone(model: Any) -> bool:
    """Whether transformers has its class by name, so that a folder of it can be loaded."""
    cls = type(model)
    return not cls.__module__.startswith("transformers.") or hasattr(transformers, cls.__name__)


def auto_classes(model: Any) -> list[str]:
    """The Auto classes of transformers that know this model's config."""
    return sorted(
        name
        for name, cls in vars(modeling_auto).items()
        if name.startswith("AutoModel")
        and type(model.config) in (getattr(cls, "_model_mapping", None) or ())
    )


def checksum(config: VariantConfig, tensors: Iterable[Tensor]) -> str:
    """The SHA-256 of the settings, and of the tensors: their dtypes, shapes and bytes."""
    digest = hashlib.sha256(json.dumps(variant_to_dict(config), sort_keys=True).encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(
            tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return f"sha256:{digest.hexdigest()}"


def checksum_of_base(model: nn.Module) -> dict[str, str]:
    """The entry of the checksum of the base's own filters, whatever adapters it has.

    It is empty where processes share a tensor.
    """
    filters = [original_filter(graph_filter) for graph_filter in graph_filters(model).values()]
    tensors = [parameter for each in filters for parameter in each.parameters()]
    if any(type(tensor) is not nn.Parameter or tensor.is_meta for tensor in tensors):
        return {}
    return {CHECKSUM: checksum(read_config(model), tensors)}


def _checksum_entry(model: nn.Module, state: Mapping[str, Tensor] | None) -> dict[str, str]:
    """The entry of the checksum of what is saved; empty where no process holds the tensors whole.

    state: the tensors that are saved instead of the model's own, as accelerate gathers them.
    """
    parameters = dict(filter_parameters(model))
    saved: list[Any] = [(parameters if state is None else state).get(name) for name in parameters]
    if getattr(model, "tp_size", None):  # transformers gathers them too: every process is here
        saved = [whole(tensor) for tensor in saved]
    are_whole = all(type(t) in (Tensor, nn.Parameter) and not t.is_meta for t in saved)
    if not are_whole or is_adapted(model):
        return {}
    return {CHECKSUM: checksum(read_config(model), saved)}


def _module_text(names: list[str]) -> str:
    imports = "".join(f"    {name},\n" for name in names)
    return (
        f'"""Loads this checkpoint with its graph filters. Needs: {how_to_install()}"""\n\n'
        f"from hf_graphattn.remote import (\n{imports})\n"
    )


@contextmanager
def _as_written(config: Any, names: list[str], more: dict[str, Any]) -> Iterator[None]:
    """In this context the config is what config.json is to hold, with more in its entry."""
    records, implementation = config.output_attentions, config._attn_implementation
    if records:
        config.output_attentions = False
        more = more | {ASKS: True}
    attributes, auto_map = vars(config), {name: f"{MODULE}.{name}" for name in names}
    written = {ENTRY: attributes[ENTRY] | more, "auto_map": auto_map}
    before = {name: attributes.pop(name) for name in written.keys() & attributes.keys()}
    attributes |= written
    try:
        yield
    finally:
        for name in written:
            del attributes[name]
        attributes |= before
        if records:
            # transformers allows it beside "eager" alone.
            config._attn_implementation = "eager"
            config.output_attentions = True
            config._attn_implementation = implementation
