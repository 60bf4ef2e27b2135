"""What the dataclasses of flags are made with: fields with a help text, and range checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from finetune.errors import refusal

PATH = "PATH"  # how the word that --help has for a value ends where it may name a file or folder
ID_OR_PATH, FOLDER_PATH = f"ID_OR_{PATH}", f"FOLDER_{PATH}"


@dataclass(frozen=True)
class Aliases:
    """transformers' names for what one of our flags says.

    Attributes:
        kinds: the type of each name's value; None is that of our flag.
        meaning: our flag's value, from those that are given, by name; None is as if none were.
    """

    kinds: Mapping[str, Any]
    meaning: Callable[..., Any]


def also(*names: str) -> Aliases:
    """Other names for the same value."""

    def meaning(**said: Any) -> Any:
        if len(said) > 1:
            raise refusal(", ".join(said), said, "one of them: they say the same", "Drop one.")
        return next(iter(said.values()))

    return Aliases(dict.fromkeys(names), meaning)


def flag(
    help: str,
    default: Any = None,
    *,
    free: bool = False,
    path: str | None = None,
    aliases: Aliases | None = None,
) -> Any:
    """A dataclass field that becomes a flag with this help.

    A ``free`` flag may differ between a run and its resumption: it changes no number of the run,
    and is left out when two runs are compared. ``path`` is what --help calls the value of a flag
    that may name a file or a folder. ``aliases`` are read as the flag, and never stored.
    """
    shown = {} if path is None else {"metavar": path}
    known = {} if aliases is None else {"aliases": aliases}
    return field(default=default, compare=not free, metadata={"help": help, **shown, **known})


def at_least(arguments: object, least: float, *names: str) -> None:
    """Raise ``ValueError`` for a number among these fields that is given and below ``least``."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            allowed = f"a number of at least {least}"
            raise refusal(name, value, allowed, f"Give --{name} such a number, or drop the flag.")
