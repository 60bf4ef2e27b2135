"""Everything that this library knows about PEFT: models with adapters, and saved adapters.

A filter that an adapter's config names in `modules_to_save` is wrapped by PEFT: beside the original
the wrapper keeps a copy for each adapter. The active adapter's copy computes and is trained, and is
saved with the adapter. PEFT itself is imported only when an adapter is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hf_graphattn.errors import refusal
from hf_graphattn.interface.graph_attn import is_filter_key
from hf_graphattn.variants import GraphFilter

CONFIG_NAME = "adapter_config.json"  # the file that makes a folder an adapter's
PREFIX = "base_model_prefix"  # what transformers' models have
BASE_NAMES_BEGIN = "base_model.model."  # what PEFT puts before the names of the base's tensors


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
    if any(hasattr(each, PREFIX) for each in inside) and not hasattr(base, PREFIX):
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


def is_adapter_folder(folder: Path) -> bool:
    """Whether PEFT saved an adapter here."""
    return (folder / CONFIG_NAME).is_file()


def saved_filters(path: str, where: dict[str, Any]) -> tuple[list[str], dict[str, Tensor]]:
    """A saved adapter's `modules_to_save`, and its filters' tensors, by their names in the base.

    Filters whose scalars are all fixed have no tensors.
    """
    peft = _peft()
    config = peft.PeftConfig.from_pretrained(path, **where)
    weights = peft.utils.load_peft_weights(path, device="cpu", **where)
    tensors = {
        name.removeprefix(BASE_NAMES_BEGIN): tensor
        for name, tensor in weights.items()
        if is_filter_key(name)
    }
    return list(config.modules_to_save or []), tensors


def load_adapter(model: nn.Module, path: str, **kwargs: Any) -> Any:
    """PEFT's own loading: the `PeftModel` of `model` and a saved adapter."""
    return _peft().PeftModel.from_pretrained(model, path, **kwargs)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """In this context an error leaves the model as it was: PEFT changes it before it has read all.

    What is restored are the modules' attributes and which parameters are trained, not tensors.
    """
    before = []
    for attributes in map(vars, model.modules()):
        kept = {n: copy.copy(v) if isinstance(v, dict) else v for n, v in attributes.items()}
        before.append((attributes, kept))
    trained = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        yield
    except Exception:
        for attributes, kept in before:
            attributes.clear()
            attributes.update(kept)
        for parameter, requires_grad in trained.items():
            parameter.requires_grad_(requires_grad)
        raise


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ImportError("load_peft needs PEFT: pip install peft") from error
    return peft
