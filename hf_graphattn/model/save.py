"""`save_pretrained` of a patched model: transformers' own, with a config that it can write.

config.json     has what was patched, the checksum, and the loading module: `auto_map`
graph_attn.py   two lines, so that `trust_remote_code=True` loads the filters

The checksum is of the variant's settings, and of the tensors in the order of the model's layers.
It leaves their names out: a base model and a model with a head name the same tensors differently.

`attach` gives a patched model this method in the place of its class's, and `push_to_hub` too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils import HFValidationError, validate_repo_id
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

import hf_graphattn
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.interface.graph_attn import FILTER
from hf_graphattn.variants import VariantConfig, variant_to_dict
from hf_graphattn.version import how_to_install

from .configs import ENTRY, make_entry
from .filters import (
    NOTE,
    filter_parameters,
    graph_filters,
    is_adapted,
    make_note,
    original_filter,
    read_config,
)
from .parallel import whole

# The key of the entry "graph_attn" for a config that records attentions: transformers writes no
# such config, unless its attention implementation is "eager".
ASKS = "output_attentions"
# The key of the entry "graph_attn". ("checksum" was once of the tensors alone; it is not read.)
CHECKSUM = "digest"
MODULE = "graph_attn"
_PUSHED = {"repo_id", "commit_message", "create_pr", "private", "token"}

logger = logging.getLogger("hf_graphattn")


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


def push_to_hub(model: Any, *args: Any, **kwargs: Any) -> str:
    """`push_to_hub` of a patched model: the library's function of this name."""
    return hf_graphattn.push_to_hub(model, *args, **kwargs)


def refuse_part(part: nn.Module, *args: Any, **kwargs: Any) -> None:
    """`save_pretrained` of a part of a patched model whose folder nothing would load."""
    raise GraphAttentionError(
        f"{type(part).__name__} is a part of a patched model, and a folder of it alone could not "
        f"be loaded with its filters. Save the whole model, and take the part from "
        f"hf_graphattn.from_pretrained(folder)."
    )


class ModelMethod:
    """A function as a method of one model, or of one part of it.

    It refers to the model weakly, so that `del model` frees it at once. Its twin, of the same
    parts, is saved by `patch_model(...).save_pretrained(folder)`, where nothing keeps the model. A
    copy of the model has methods of its own.
    """

    def __init__(self, model: Any, function: Callable[..., Any]) -> None:
        twin = object.__new__(type(model))
        twin.__dict__.update(vars(model))
        self.__setstate__((model, twin, function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self.model(), *args, **kwargs)

    def model(self) -> Any:
        """The model; its twin where nothing keeps the model any more."""
        model = self._model()
        return self._twin if model is None else model

    def __getstate__(self) -> tuple[Any, Any, Callable[..., Any]]:
        return self.model(), self._twin, self._function

    def __setstate__(self, state: tuple[Any, Any, Callable[..., Any]]) -> None:
        model, self._twin, self._function = state
        self._model = weakref.ref(model)


def note_in_adapters(model: Any, state: Any, prefix: str, metadata: Any) -> None:
    """Write what the model is patched with into the configs of its adapters, which PEFT saves.

    A hook of `model.state_dict()`, which saving an adapter calls. `load_peft` reads the notes; an
    adapter of `GraphFilterConfig` needs none.
    """
    for name, config in getattr(model, "peft_config", {}).items():
        if hasattr(config, ENTRY):
            continue
        modules = [*(config.modules_to_save or ())]
        others = [module for module in modules if not module.startswith(NOTE)]
        note = make_note(make_entry(read_config(model)) | checksum_of_base(model))
        config.modules_to_save = [*others, note]
        if modules == others and FILTER not in others:
            logger.warning(
                f"PEFT's adapter {name!r} has no filters of its own: those of the base are frozen. "
                f"Load it with load_peft(base, folder). PeftModel.from_pretrained would drop the "
                f"filters of a plain base silently. modules_to_save=peft_modules(model) trains "
                f"and saves them."
            )


def attach(model: PreTrainedModel) -> None:
    """Have a patched model save its filters; its entry names the base, for the card."""
    config: Any = model.config
    base = hub_id(config.name_or_path)  # None for a folder
    if base is not None:
        getattr(config, ENTRY)["base_model"] = base
    save, push = ModelMethod(model, save_pretrained), ModelMethod(model, push_to_hub)
    model.__dict__.update(save_pretrained=save, push_to_hub=push)
    model.register_state_dict_post_hook(note_in_adapters)
    for part in model.modules():
        is_whole = hasattr(getattr(part, "config", None), ENTRY) and loads_alone(part)
        if isinstance(part, PreTrainedModel) and part is not model and not is_whole:
            part.__dict__["save_pretrained"] = ModelMethod(part, refuse_part)


def detach(model: nn.Module) -> None:
    """Give a model and its parts the methods of their classes back."""
    for module in model.modules():
        for key, hook in list(module._state_dict_hooks.items()):
            if hook is note_in_adapters:
                del module._state_dict_hooks[key]
        for name, method in list(vars(module).items()):
            if isinstance(method, ModelMethod):
                del vars(module)[name]


def hub_id(name: object) -> str | None:
    """`name`, if it can be a hub repository and is not a local path; else None."""
    with suppress(GraphAttentionError):
        repo_id = checked_id("name", name)
        return None if os.path.exists(repo_id) else repo_id
    return None


def checked_id(argument: str, name: object) -> str:
    """`name`, if it can be the name of a hub repository.

    Raises:
        GraphAttentionError: it cannot.
    """
    with suppress(HFValidationError):
        if isinstance(name, str):
            validate_repo_id(name)
            return name
    allowed = "the name of a hub repository: user/name, or name, of letters, digits, '-', '_', '.'"
    raise refusal(argument, name, allowed)


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
