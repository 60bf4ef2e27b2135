"""The first layer's values, for the filters of later layers that read them.

They travel as an argument of the forward: a dict, that a hook adds to the call of each model, that
the model passes on to its attention modules with its other keyword arguments, and that the first
module of a stack of layers fills. So calls that run at the same time do not mix; what gradient
checkpointing computes again reads the dict of its call, not of the latest; and nothing is left when
the forward and its graph are gone.

With a key-value cache the first layer's values of earlier tokens are in the first layer's cache.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_graphattn.architectures import AttentionModule
from hf_graphattn.backends import FirstValues
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.variants import GraphFilter

ARGUMENT = "graph_attn_first"  # of attention functions, by which the dict arrives


def begin_forward(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Forward pre-hook of a model, and of the models in it: each call has another dict."""
    return args, {**kwargs, ARGUMENT: {}}


def takes_more(model: nn.Module) -> bool:
    """Whether the model passes on arguments that it does not know."""
    parameters = inspect.signature(model.forward).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def name_stacks(
    model: nn.Module, filters: dict[str, GraphFilter], layers: Sequence[AttentionModule]
) -> None:
    """Set each filter's `stack`, its module's name without numbers, and whether it begins there.

    Args:
        model: the model.
        filters: the filters, by the name of their module.
        layers: all self-attention modules.

    Raises:
        GraphAttentionError: the first layer of a stack has no filter; or layers that are not
            verified may regroup their tokens, as those of images do in windows.
    """
    modules = [layer.name for layer in layers]
    for layer in layers:
        if layer.name in filters and not (layer.is_verified or _reads_text(model, layer.name)):
            raise refusal(
                "config",
                filters[layer.name].variant_config,
                f"a filter of one layer alone in {type(layer.module).__name__}, whose tokens may "
                f"be others in each layer",
            )
    first: dict[str, str] = {}
    for name in modules:
        first.setdefault(_stack(name), name)
    for name, graph_filter in filters.items():
        graph_filter.stack = _stack(name)
        graph_filter.begins = first[graph_filter.stack] == name
        if first[graph_filter.stack] not in filters:
            raise refusal(
                "layers",
                graph_filter.variant_config.layers,
                f"layers with {first[graph_filter.stack]}, whose values the filters of the "
                f"others read",
            )


def first_values(
    module: nn.Module,
    graph_filter: Any,
    stacks: dict[str, FirstValues] | None,
    rows: Tensor,
    every: Tensor,
) -> FirstValues:
    """The first layer's values in this call; the first layer adds them to `stacks`.

    Args:
        module: the attention module, for messages.
        graph_filter: its filter.
        stacks: the dict of this forward, by stack; None where the model did not pass it on.
        rows: the values of the queries' tokens, (B, H, Nq, D).
        every: those of all keys, (B, H, Nk, D).

    Raises:
        GraphAttentionError: the model does not pass the dict on, or left the first layer out; or
            their shape is another; or their gradients are lost, as under reentrant gradient
            checkpointing.
    """
    name = type(module).__name__
    if stacks is None:
        raise GraphAttentionError(
            f"{name} does not get the keyword arguments of its model's call, so that the first "
            f"layer's values cannot reach it. Use another filter for this model."
        )
    has_graph = torch.is_grad_enabled()
    if graph_filter.begins:  # not the first time, where layers share it or it is computed again
        stacks.setdefault(graph_filter.stack, FirstValues(rows, every, has_graph))
    elif graph_filter.stack not in stacks:
        raise GraphAttentionError(
            f"the first layer, whose values {name} reads, was left out of this call (layerdrop). "
            f"Set layerdrop to 0."
        )
    first = stacks[graph_filter.stack]
    if has_graph and not first.has_graph:
        raise GraphAttentionError(
            f"the first layer's values that {name} reads were made without their gradients, as "
            f"under reentrant gradient checkpointing. Pass "
            f'gradient_checkpointing_kwargs={{"use_reentrant": False}}.'
        )
    if first.rows.shape != rows.shape:
        raise GraphAttentionError(
            f"the first layer's values are {tuple(first.rows.shape)} and those of {name} "
            f"{tuple(rows.shape)}: this filter needs layers of one shape. Use another filter."
        )
    if first.every.device == every.device:
        return first
    device = every.device
    return FirstValues(first.rows.to(device), first.every.to(device), first.has_graph)


def _reads_text(model: nn.Module, name: str) -> bool:
    """Whether the innermost transformers model around a module reads tokens of text."""
    parts = name.split(".")
    around: Any = [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]
    read = [parent.main_input_name for parent in around if hasattr(parent, "main_input_name")]
    return read[-1:] == ["input_ids"]


def _stack(name: str) -> str:
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)
