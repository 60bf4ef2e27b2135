"""The scripts that can be run: their flags, and what a run asks for, checked before it starts."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tasks
from finetune.errors import refusal
from finetune.settings.schema import Schema, Settings, check_learning_rate


@dataclass(frozen=True)
class Script:
    """A script of the folder ``finetune``, or a file of the same name that takes the same flags.

    Raises ``ValueError`` if there is no such file, or no family of tasks has its name.
    """

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_file() or self.path.stem not in families():
            allowed = ", ".join(f"finetune/{family}.py" for family in families())
            raise refusal("script", str(self.path), allowed, "Give the path of one of these.")

    @property
    def family(self) -> str:
        """Its name, which is that of its tasks' family."""
        return self.path.stem

    @property
    def schema(self) -> Schema[Any, Any]:
        """Its flags."""
        schema: Schema[Any, Any] = importlib.import_module(f"finetune.{self.family}").SCHEMA
        return schema

    def settings(self, flags: Mapping[str, Any]) -> Settings[Any, Any]:
        """What a run with these flags asks for; ``output_dir`` may be missing.

        Raises ``ValueError`` for flags that the script would refuse before it loads anything, and
        for a learning rate of scalars that are not learned.
        """
        settings = self.schema.settings({"output_dir": ".", **flags})
        check_learning_rate(settings)
        return settings


def families() -> list[str]:
    """The families of tasks that a script of this project runs."""
    names = dict.fromkeys(family for family, _ in tasks.registered() if family)
    return [family for family in names if find_spec(f"finetune.{family}") is not None]
