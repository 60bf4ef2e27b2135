"""The model types that `make matrix` found exact, with which version of transformers.

It builds a tiny model of every type and compares filters with its own attention; verified.json has
those of which nothing was wrong: version -> model type -> the classes of its attention. What a
class computes depends on the masks that its model gives it, so each is listed by type: Grounding
DINO gives BERT's class masks of a kind that a filter does not know.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata, resources
from typing import Any

from .find import attention_modules, self_attention_modules

LIST = resources.files(__package__) / "verified.json"


def is_listed(model: Any, version: str | None = None) -> bool:
    """Whether all attention classes of a model are listed for the type of its outermost config.

    version: of transformers; by default the installed one.
    """
    model_type = getattr(getattr(model, "config", None), "model_type", "")
    exact = listed(version or metadata.version("transformers")).get(model_type, [])
    classes = {type(each.module) for each in attention_modules(model)}
    return bool(classes) and all(
        cls.__module__.startswith("transformers.") and cls.__name__ in exact for cls in classes
    )


def unverified(model: Any) -> list[str]:
    """The self-attention classes of a model for which it needs a check before it is patched.

    Those that are in no row of the table, unless they are listed; and all of a model of a type that
    was tried and is not listed, since its masks may be others.
    """
    layers = self_attention_modules(model)
    wanted = [each for each in layers if is_unlisted(model) or not each.is_verified]
    names = {type(each.module).__name__ for each in wanted}
    return [] if is_listed(model) else sorted(names)


def is_unlisted(model: Any) -> bool:
    """Whether a model of transformers is of a type that the list for its version leaves out."""
    types = listed(metadata.version("transformers"))
    is_own = type(model).__module__.startswith("transformers.")
    return is_own and bool(types) and model.config.model_type not in types


def listed(version: str) -> dict[str, list[str]]:
    """Model type -> its attention classes, for a version of transformers; of another: none."""
    return _read().get(version, {})


@cache
def _read() -> dict[str, dict[str, list[str]]]:
    return json.loads(LIST.read_text("utf-8"))
