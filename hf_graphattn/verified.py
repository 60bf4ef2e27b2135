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

from .architectures import attention_modules

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


def listed(version: str) -> dict[str, list[str]]:
    """Model type -> its attention classes, for a version of transformers; of another: none."""
    return _read().get(version, {})


@cache
def _read() -> dict[str, dict[str, list[str]]]:
    return json.loads(LIST.read_text("utf-8"))
