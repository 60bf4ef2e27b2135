"""The filters of a patched model: where they are, and the config that they were made from."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.interface.graph_attn import FILTER
from hf_graphattn.variants import VariantConfig

from .adapters import original_filter


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
