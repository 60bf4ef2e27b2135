"""Models with adapters of PEFT.

A filter that an adapter's config names in `modules_to_save` is wrapped by PEFT: beside the original
the wrapper keeps a copy for each adapter. The active adapter's copy computes and is trained, and is
saved with the adapter. `loading.peft` loads adapters.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, unquote

from torch import nn

from hf_graphattn.errors import refusal
from hf_graphattn.variants import GraphFilter

from .configs import ENTRY

CONFIG_NAME = "adapter_config.json"  # the file that makes a folder an adapter's
NOTE = f"{ENTRY}="  # how a name in `modules_to_save` begins that describes the base's filters
PREFIX = "base_model_prefix"  # what transformers' models have


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
