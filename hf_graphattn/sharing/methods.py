"""The methods that replace those of a patched model's class: saving and pushing."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_graphattn.errors import GraphAttentionError
from hf_graphattn.interface.graph_attn import FILTER
from hf_graphattn.model.adapters import NOTE, make_note
from hf_graphattn.model.configs import ENTRY, make_entry
from hf_graphattn.model.filters import read_config

from .checkpoints import hub_id
from .push import push_to_hub
from .save import checksum_of_base, loads_alone, save_pretrained

logger = logging.getLogger("hf_graphattn")


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


def refuse_part(part: nn.Module, *args: Any, **kwargs: Any) -> None:
    """`save_pretrained` of a part of a patched model whose folder nothing would load."""
    raise GraphAttentionError(
        f"{type(part).__name__} is a part of a patched model, and a folder of it alone could not "
        f"be loaded with its filters. Save the whole model, and take the part from "
        f"hf_graphattn.from_pretrained(folder)."
    )


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
