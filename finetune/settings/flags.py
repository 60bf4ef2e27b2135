"""What the dataclasses of flags are made with: fields with a help text, and range checks."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

from finetune.errors import refusal

PATH = "PATH"  # how the word that --help has for a value ends where it may name a file or folder
ID_OR_PATH, FOLDER_PATH = f"ID_OR_{PATH}", f"FOLDER_{PATH}"


def flag(help: str, default: Any = None, *, free: bool = False, path: str | None = None) -> Any:
    """A dataclass field that becomes a flag with this help.

    A ``free`` flag may differ between a run and its resumption: it changes no number of the run,
    and is left out when two runs are compared. ``path`` is what --help calls the value of a flag
    that may name a file or a folder.
    """
    shown = {} if path is None else {"metavar": path}
    return field(default=default, compare=not free, metadata={"help": help, **shown})


def at_least(arguments: object, least: float, *names: str) -> None:
    """Raise ``ValueError`` for a number among these fields that is given and below ``least``."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            allowed = f"a number of at least {least}"
            raise refusal(name, value, allowed, f"Give --{name} such a number, or drop the flag.")
