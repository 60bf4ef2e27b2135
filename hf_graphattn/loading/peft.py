"""Loading a PEFT adapter that was trained on a patched model, with every filter accounted for.

    adapter = LoraConfig(..., modules_to_save=ga.peft_modules(model))

PEFT then trains a copy of each filter, and saves, switches and disables it with the adapter. If
the adapter is loaded onto a base that is not patched, PEFT drops the filters without a word;
`load_peft` patches the base, or refuses.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.interface.graph_attn import FILTER, is_filter_key
from hf_graphattn.model.configs import ENTRY, make_entry, read_entry
from hf_graphattn.model.filters import (
    base_model,
    filter_parameters,
    is_patched,
    make_note,
    read_config,
    read_notes,
    refuse_no_model,
)
from hf_graphattn.model.save import CHECKSUM, checksum_of_base
from hf_graphattn.patching.patch import patch
from hf_graphattn.variants import VariantConfig

from . import differing_shapes, find_file, hub_arguments, reading, refuse_damaged
from .filter_files import FILTERS_NAME, load_filters, read_filters

BASE_NAMES_BEGIN = "base_model.model."  # what PEFT puts before the names of the base's tensors

logger = logging.getLogger("hf_graphattn")


def peft_modules(model: nn.Module | None = None) -> list[str]:
    """What `modules_to_save` of a PEFT config must hold, so that an adapter has its own filters.

    With a model the list also holds what that was patched with, as a name that no module has: PEFT
    keeps it in the adapter's config, and `load_peft` compares it.

    Raises:
        GraphAttentionError: a model is given that is not patched.
    """
    if model is None:
        return [FILTER]
    return [FILTER, make_note(make_entry(read_config(base_model(model))))]


def load_peft(model: PreTrainedModel, adapter: str | os.PathLike[str], **kwargs: Any) -> Any:
    """`PeftModel.from_pretrained(model, adapter, **kwargs)`, every filter tensor accounted for.

    Args:
        model: the base model. A plain one is patched first if the adapter's folder holds the
            file that `save_filters` writes; otherwise patch it as it was for the training. An
            adapter that has neither this file nor filters of its own does not tell whether its
            base was patched.
        adapter: a folder, or a hub repository.
        kwargs: as PEFT's: adapter_name, is_trainable, revision, token ...

    Returns:
        The `PeftModel`.

    Raises:
        GraphAttentionError: the adapter was trained with filters and the base has none, or others;
            or its files are damaged. The model is as it was.
        ImportError: PEFT is not installed.
    """
    refuse_no_model(model)
    if base_model(model) is not model:
        allowed, remedy = "a base model", "Call model.load_adapter(path, adapter_name)."
        raise refusal("model", type(model).__name__, allowed, remedy)
    path, where = os.fspath(adapter), hub_arguments(kwargs)
    with reading(path), _unchanged(model):
        try:
            import peft
        except ImportError as error:
            raise ImportError("load_peft needs PEFT: pip install peft") from error
        config = peft.PeftConfig.from_pretrained(path, **where)
        modules = config.modules_to_save or ()
        weights = peft.utils.load_peft_weights(path, device="cpu", **where)
        # Filters whose scalars are all fixed have no tensors.
        tensors = {
            name.removeprefix(BASE_NAMES_BEGIN): tensor
            for name, tensor in weights.items()
            if is_filter_key(name)
        }
        refuse_damaged(tensors, path)
        if hasattr(config, ENTRY):  # an adapter of `GraphFilterConfig`, which patches the base
            return peft.PeftModel.from_pretrained(model, path, **kwargs)
        entries = read_notes(modules)
        if find_file(path, FILTERS_NAME, where) is not None:
            if not is_patched(model):
                load_filters(model, path, **where)
            entries.append(read_filters(path, where)[0])
        if entries and not is_patched(model):
            patch(model, read_entry(entries[0], path), "auto", False, None)
        _check(model, tensors, FILTER in modules, path)
        for entry in entries:
            _refuse_other(model, read_entry(entry, path), path)
        if entries and FILTER not in modules:  # the base's filters compute
            _refuse_other_values(model, entries, path)
        if FILTER in modules and not entries:
            logger.warning(
                f"the adapter {path!r} does not tell which settings its base was patched with, so "
                f"they cannot be compared with those of this model: {read_config(model)}. Make "
                f"adapters with modules_to_save=peft_modules(model), or call save_filters(model, "
                f"folder) beside them."
            )
        return peft.PeftModel.from_pretrained(model, path, **kwargs)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
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


def _refuse_other(model: PreTrainedModel, needed: VariantConfig, path: str) -> None:
    if read_config(model) != needed:
        raise GraphAttentionError(
            f"the adapter {path!r} was trained on a base patched with {needed}, and this one is "
            f"patched with {read_config(model)}. Pass the plain base: it is patched if the adapter "
            f"has a {FILTERS_NAME}; or patch the base with that config."
        )


def _refuse_other_values(model: PreTrainedModel, entries: list[Any], path: str) -> None:
    here = checksum_of_base(model).get(CHECKSUM)
    if any(CHECKSUM in entry and entry[CHECKSUM] != here for entry in entries):
        raise GraphAttentionError(
            f"the adapter {path!r} was trained on a base whose filters have other values than "
            f"those of this {type(model).__name__}. Load that base with from_pretrained(folder), "
            f"or write its filters beside the adapter with save_filters(model, folder)."
        )


def _check(model: PreTrainedModel, saved: dict[str, Tensor], has_filters: bool, path: str) -> None:
    """The adapter's own filters must be those of the model, name by name and shape by shape."""
    if has_filters and not is_patched(model):
        raise GraphAttentionError(
            f"the adapter {path!r} was trained with graph filters, and {type(model).__name__} is "
            f"not patched: they would be dropped without a word. Call patch_model(model, config) "
            f"with the config of the training; save_filters(model, folder) beside the adapter "
            f"would have kept it."
        )
    if not saved:
        return  # the adapter has no filters of its own, or all their scalars are fixed
    differing = differing_shapes(dict(filter_parameters(model)), saved)
    if differing:
        raise GraphAttentionError(
            f"the filters of the adapter {path!r} are not those of {type(model).__name__}: they "
            f"differ in {differing}. Patch the base with the config of the training."
        )
