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

LIST = resources.files(__package__) / "verified.json"


def types(version: str | None = None) -> dict[str, list[str]]:
    """Model type -> its attention classes, for a version of transformers; of another: none.

    version: by default the installed one.
    """
    return _read().get(version or metadata.version("transformers"), {})


@cache
def _read() -> dict[str, dict[str, list[str]]]:
    return json.loads(LIST.read_text("utf-8"))
