"""Graph filters and PEFT: what to write into an adapter's config, and loading that checks.

    adapter = LoraConfig(..., modules_to_save=ga.peft_modules())

PEFT then trains a copy of each filter beside the adapter, saves it with it, and switches and
disables it with it. Loaded onto an unpatched base, PEFT drops the filters without a word;
`load_peft` does not.
"""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from .attention import FILTER
from .errors import GraphAttentionError, refusal
from .filter_files import find_filters, load_filters, read_filters
from .hub import HUB_ARGUMENTS, read_variant
from .patching import filter_parameters, is_patched, read_config, unpatch_model

WRAPPED = "base_model.model."  # what PEFT puts before the base's names


def peft_modules() -> list[str]:
    """What `modules_to_save` of a PEFT config must hold, so that an adapter has its own filters."""
    return [FILTER]


def load_peft(model: PreTrainedModel, adapter: str | os.PathLike[str], **kwargs: Any) -> Any:
    """`PeftModel.from_pretrained(model, adapter, **kwargs)`, every filter tensor accounted for.

    Args:
        model: the base model. A plain one is patched first if the adapter's folder holds the
            file that `save_filters` writes; otherwise patch it as it was for the training. An
            adapter with neither that file nor filters of its own says nothing of its base's.
        adapter: a folder, or a hub repository.
        kwargs: as PEFT's: adapter_name, is_trainable, revision, token ...

    Returns:
        The `PeftModel`.

    Raises:
        GraphAttentionError: the adapter was trained with filters and the base has none, or others.
        ImportError: PEFT is not installed.
    """
    try:
        from peft import PeftConfig, PeftModel
        from peft.utils import load_peft_weights
    except ImportError as error:
        raise ImportError("load_peft needs PEFT: pip install peft") from error
    path = os.fspath(adapter)
    where = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
    if isinstance(model, PeftModel):
        raise refusal(
            "model", "a PeftModel", "a base model", "Call model.load_adapter(path, adapter_name)."
        )
    was_plain = not is_patched(model)
    try:
        if find_filters(path, where) is not None:
            _match_file(model, path, where)
        saved = {
            key.removeprefix(WRAPPED): tensor
            for key, tensor in load_peft_weights(path, device="cpu", **where).items()
            if f".{FILTER}." in key
        }
        with_filters = FILTER in (PeftConfig.from_pretrained(path, **where).modules_to_save or [])
        _check(model, saved, with_filters, path)
        return PeftModel.from_pretrained(model, path, **kwargs)
    except Exception:
        if was_plain and is_patched(model):
            unpatch_model(model)
        raise


def _match_file(model: PreTrainedModel, path: str, where: dict[str, Any]) -> None:
    """Patch a plain base as the adapter's was, or see that a patched one is patched so."""
    if not is_patched(model):
        load_filters(model, path, **where)
        return
    needed = read_variant(read_filters(path, where)[0], path)
    if read_config(model) != needed:
        raise GraphAttentionError(
            f"the adapter {path!r} was trained on a base patched with {needed}, and this one is "
            f"patched with {read_config(model)}. Pass the plain base: it will be patched."
        )


def _check(model: PreTrainedModel, saved: dict[str, Tensor], with_filters: bool, path: str) -> None:
    if with_filters and not is_patched(model):
        raise GraphAttentionError(
            f"the adapter {path!r} was trained with graph filters, and {type(model).__name__} is "
            f"not patched: they would be dropped without a word. Call patch_model(model, config) "
            f"with the config of the training; save_filters(model, folder) beside the adapter "
            f"would have kept it."
        )
    if not saved:
        return  # an adapter without filters of its own, or with fixed scalars only
    own = {name: parameter.shape for name, parameter in filter_parameters(model)}
    shapes = {name: tensor.shape for name, tensor in saved.items()}
    if own != shapes:
        differing = sorted(
            name for name in own.keys() | shapes.keys() if own.get(name) != shapes.get(name)
        )
        raise GraphAttentionError(
            f"the filters of the adapter {path!r} are not those of {type(model).__name__}: "
            f"{len(differing)} differ, {', '.join(differing[:4])}. Patch the base with the config "
            f"of the training."
        )
