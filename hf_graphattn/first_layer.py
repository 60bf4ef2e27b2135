"""The first layer's values, for the filters of later layers that read them.

They travel as an argument of the forward: a dict, that a hook adds to the call of a model, that the
model passes on to its attention modules with its other keyword arguments, and that the first
filtered module of a stack of layers fills. So each forward has its own, whatever runs beside it;
what gradient checkpointing computes again is given the dict of its forward, not of the latest;
and nothing is left when the forward and its graph are gone.

With a key-value cache the first layer's values of earlier tokens are in the first layer's cache.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import Tensor, nn

from .backends import FirstValues
from .errors import GraphAttentionError, refusal
from .variants import GraphFilter

ARGUMENT = "graph_attn_first"  # of attention functions, by which the dict arrives


def begin_forward(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Forward pre-hook of a model, and of the models in it: the outermost makes the dict."""
    return args, {ARGUMENT: {}, **kwargs}


def takes_more(model: nn.Module) -> bool:
    """Whether the model passes on arguments that it does not know."""
    parameters = inspect.signature(model.forward).parameters.values()
    return any(each.kind is each.VAR_KEYWORD for each in parameters)


def name_stacks(filters: dict[str, GraphFilter], modules: list[str]) -> None:
    """Tell each filter the stack of layers that it is in: its module's name without numbers.

    modules: the names of all self-attention modules.

    Raises:
        GraphAttentionError: the first layer of a stack has no filter.
    """
    first: dict[str, str] = {}
    for name in modules:
        first.setdefault(_stack(name), name)
    for name, graph_filter in filters.items():
        graph_filter.stack = _stack(name)
        if first[graph_filter.stack] not in filters:
            raise refusal(
                "layers",
                graph_filter.variant_config.layers,
                f"layers with {first[graph_filter.stack]}, whose values the filters of the "
                f"others read",
            )


def first_values(
    module: nn.Module,
    stack: str,
    given: dict[str, FirstValues] | None,
    rows: Tensor,
    every: Tensor,
) -> FirstValues:
    """Those of this forward; the first module that asks gives its own.

    Raises:
        GraphAttentionError: the model does not pass the dict on; or their shape is another; or
            their gradients are lost, as under reentrant gradient checkpointing.
    """
    name = type(module).__name__
    if given is None:
        raise GraphAttentionError(
            f"{name} is not given the keyword arguments of its model's call, so that the first "
            f"layer's values cannot reach it. Use another filter for this model."
        )
    has_graph = torch.is_grad_enabled()
    found = given.setdefault(stack, FirstValues(rows, every, has_graph))
    if has_graph and not found.has_graph:
        raise GraphAttentionError(
            f"the first layer's values that {name} reads were made without their gradients, as "
            f"under reentrant gradient checkpointing. Pass "
            f'gradient_checkpointing_kwargs={{"use_reentrant": False}}.'
        )
    if found.rows.shape != rows.shape:
        raise GraphAttentionError(
            f"the first layer's values are {tuple(found.rows.shape)} and those of {name} "
            f"{tuple(rows.shape)}: this filter needs layers of one shape. Use another filter."
        )
    if found.every.device == every.device:
        return found
    device = every.device
    return FirstValues(found.rows.to(device), found.every.to(device), found.has_graph)


def _stack(name: str) -> str:
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)
