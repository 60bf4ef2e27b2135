"""`save_pretrained` of a patched model: transformers' own, with a config that it can write."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .configs import ENTRY
from .filter_tensors import checksum_entry

# The key of the entry "graph_attn" that says that the config asks for attentions: transformers
# writes no config that does, unless its attention implementation is "eager".
ASKS = "output_attentions"


class ModelMethod:
    """A method that one model has, instead of that of its class.

    It refers to the model weakly, so that `del model` frees it at once. It keeps what the model
    consists of, too, for `patch_model(...).save_pretrained(folder)`, where nothing else keeps the
    model. A copy of the model has its own.
    """

    def __init__(self, model: Any) -> None:
        self.__setstate__((model, dict(vars(model))))

    def model(self) -> Any:
        """The model; where nobody keeps it any more, one of the same parts."""
        model = self._model()
        if model is None:
            model = object.__new__(self._class)
            model.__dict__.update(self._parts)
        return model

    def __getstate__(self) -> tuple[Any, dict[str, Any]]:
        return self.model(), self._parts

    def __setstate__(self, state: tuple[Any, dict[str, Any]]) -> None:
        model, self._parts = state
        self._class, self._model = type(model), weakref.ref(model)


class SavePretrained(ModelMethod):
    """`save_pretrained` of a patched model. Its arguments are those of transformers."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        model = self.model()
        state = args[2] if len(args) > 2 else kwargs.get("state_dict")
        with _as_written(model.config, checksum_entry(model, state)):
            type(model).save_pretrained(model, *args, **kwargs)


@contextmanager
def _as_written(config: Any, more: dict[str, Any]) -> Iterator[None]:
    """In this context the config is what config.json is to say, with more in its entry."""
    entry, asks = getattr(config, ENTRY), config.output_attentions
    implementation = config._attn_implementation
    if asks:
        config.output_attentions = False
        more = more | {ASKS: True}
    setattr(config, ENTRY, entry | more)
    try:
        yield
    finally:
        setattr(config, ENTRY, entry)
        if asks:
            ask_for_attentions(config, implementation)


def ask_for_attentions(config: Any, implementation: str) -> None:
    """Set `config.output_attentions`, which transformers allows beside "eager" alone."""
    config._attn_implementation = "eager"
    config.output_attentions = True
    config._attn_implementation = implementation
