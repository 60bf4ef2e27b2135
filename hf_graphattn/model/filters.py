"""The filters of a patched model: where they are, their config, and those of PEFT's adapters.

A filter that an adapter's config names in `modules_to_save` is wrapped by PEFT: beside the original
the wrapper keeps a copy for each adapter. The active adapter's copy computes and is trained, and is
saved with the adapter. `loading.peft` loads adapters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import torch
from torch import nn

from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.interface.graph_attn import FILTER
from hf_graphattn.variants import GraphFilter, VariantConfig

from .configs import ENTRY

CONFIG_NAME = "adapter_config.json"  # the file that makes a folder an adapter's
NOTE = f"{ENTRY}="  # how a name in `modules_to_save` begins that describes the base's filters
PREFIX = "base_model_prefix"  # what transformers' models have


def is_patched(model: nn.Module) -> bool:
    """Whether the model, or a part of it, carries graph filters."""
    return bool(graph_filters(model))


def graph_filters(model: nn.Module) -> dict[str, nn.Module]:
    """The filters: qualified name of the attention module -> its filter, in model order.

    Raises:
        GraphAttentionError: `model` is not a model.
    """
    refuse_no_model(model)
    return {
        name: module._modules[FILTER]
        for name, module in model.named_modules()
        if module._modules.get(FILTER) is not None
    }


def filter_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(qualified name, parameter) of every learned scalar, to freeze, count, or group them."""
    for name, graph_filter in graph_filters(model).items():
        for scalar, parameter in graph_filter.named_parameters():
            yield f"{name}.{FILTER}.{scalar}".lstrip("."), parameter


def refuse_no_model(model: object) -> None:
    """Raise `GraphAttentionError` if this is not a model: None, the name of one, or a trace."""
    if isinstance(model, torch.jit.ScriptModule) or not isinstance(model, nn.Module):
        raise refusal(
            "model",
            model if isinstance(model, str) else type(model).__name__,
            "a transformers model, or another of torch, which torch.jit has not traced or scripted",
            "Load it first: from_pretrained(path). Trace it after patching.",
        )


def refuse_plain(model: nn.Module) -> None:
    """Raise `GraphAttentionError` if the model is not patched."""
    if not is_patched(model):
        raise GraphAttentionError(
            f"{type(model).__name__} is not patched. Call patch_model(model, config) first."
        )


def read_config(model: nn.Module) -> VariantConfig:
    """The config that the model was patched with.

    Raises:
        GraphAttentionError: the model is not patched, or its filters have several configs.
    """
    refuse_plain(model)
    configs = {original_filter(f).variant_config for f in graph_filters(model).values()}
    if len(configs) > 1:
        raise GraphAttentionError(
            f"{type(model).__name__} has filters of several configs, {sorted(map(str, configs))}: "
            f"there is no one config to save or to show. Save its state_dict."
        )
    return configs.pop()


def is_adapted(model: nn.Module) -> bool:
    """Whether PEFT has wrapped the model, or has put adapters into it."""
    return hasattr(model, "peft_config")


def refuse_adapted(model: nn.Module, remedy: str) -> None:
    """Raise `GraphAttentionError` with this remedy if the model has adapters."""
    if is_adapted(model):
        raise refusal("model", type(model).__name__, "a model without adapters", remedy)


def base_model(model: Any) -> Any:
    """The model inside PEFT's wrapper; a model without a wrapper is its own base.

    Raises:
        GraphAttentionError: something else wraps a transformers model.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    inside = base.modules() if isinstance(base, nn.Module) else ()
    if any(hasattr(module, PREFIX) for module in inside) and not hasattr(base, PREFIX):
        remedy = "Pass the model itself, without what wraps it."
        raise refusal("model", type(base).__name__, "a transformers model", remedy)
    return base


def original_filter(graph_filter: Any) -> GraphFilter:
    """The base model's own filter, whether PEFT has wrapped it or not."""
    return getattr(graph_filter, "original_module", graph_filter)


def active_filter(graph_filter: Any) -> GraphFilter:
    """The filter that computes: where PEFT has wrapped it, the active adapter's copy, if any."""
    if isinstance(graph_filter, GraphFilter) or graph_filter.disable_adapters:
        return original_filter(graph_filter)
    copies, active = graph_filter.modules_to_save, [*graph_filter.active_adapters][:1]
    return copies[active[0]] if active and active[0] in copies else original_filter(graph_filter)


def make_note(entry: dict[str, Any]) -> str:
    """The entry of a patched base as a name for `modules_to_save`, which no module has.

    PEFT takes such a name for a regular expression, so that it has no character which is special.
    """
    return NOTE + quote(json.dumps(entry), safe="")


def read_notes(names: Any) -> list[Any]:
    """The entries in `modules_to_save`; a damaged one is a text, which `read_entry` refuses."""
    texts = [unquote(name.removeprefix(NOTE)) for name in names or () if name.startswith(NOTE)]
    try:
        return [json.loads(text) for text in texts]
    except ValueError:
        return texts
