"""The methods that a patched model has instead of those of its class: saving and pushing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_graphattn.errors import GraphAttentionError
from hf_graphattn.model.configs import ENTRY

from .checkpoints import hub_id
from .push import push_to_hub
from .save import loads_alone, save_pretrained

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "push_to_hub": push_to_hub,
    "save_pretrained": save_pretrained,
}


class ModelMethod:
    """One of `FUNCTIONS`, as a method of one model.

    It refers to the model weakly, so that `del model` frees it at once. Its twin, of the same
    parts, is saved by `patch_model(...).save_pretrained(folder)`, where nothing keeps the model. A
    copy of the model has methods of its own.
    """

    def __init__(self, model: Any, name: str) -> None:
        twin = object.__new__(type(model))
        twin.__dict__.update(vars(model))
        self.__setstate__((model, twin, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return FUNCTIONS[self.name](self._model() or self._twin, *args, **kwargs)

    def __getstate__(self) -> tuple[Any, Any, str]:
        return self._model() or self._twin, self._twin, self.name

    def __setstate__(self, state: tuple[Any, Any, str]) -> None:
        model, self._twin, self.name = state
        self._model = weakref.ref(model)


class SavePart:
    """`save_pretrained` of a part of a patched model whose folder nothing would load."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise GraphAttentionError(
            f"{self.name} is a part of a patched model, and a folder of it alone could not be "
            f"loaded with its filters. Save the whole model, and take the part from "
            f"hf_graphattn.from_pretrained(folder)."
        )


def attach(model: PreTrainedModel) -> None:
    """Have a patched model save its filters; its entry says on which base the card is."""
    config: Any = model.config
    base = hub_id(config.name_or_path)  # None for a folder
    if base is not None:
        getattr(config, ENTRY)["base_model"] = base
    model.__dict__.update({name: ModelMethod(model, name) for name in FUNCTIONS})
    for part in model.modules():
        is_whole = hasattr(getattr(part, "config", None), ENTRY) and loads_alone(part)
        if isinstance(part, PreTrainedModel) and part is not model and not is_whole:
            part.__dict__["save_pretrained"] = SavePart(type(part).__name__)


def detach(model: nn.Module) -> None:
    """Give a model and its parts the methods of their classes back."""
    for module in model.modules():
        for name, method in list(vars(module).items()):
            if isinstance(method, (ModelMethod, SavePart)):
                del vars(module)[name]
