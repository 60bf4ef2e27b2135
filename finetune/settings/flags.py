"""What the dataclasses of flags are made with: fields with a help text, and range checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from finetune.errors import refusal

PATH = "PATH"  # how the placeholder of a value ends in --help where it may name a file or folder
ID_OR_PATH, FOLDER_PATH = f"ID_OR_{PATH}", f"FOLDER_{PATH}"


def flag(
    help: str = "",
    default: Any = None,
    *,
    free: bool = False,
    rare: bool = False,
    metavar: str | None = None,
    aliases: Sequence[str] = (),
) -> Any:
    """A dataclass field that becomes a flag.

    Args:
        help: its text in --help.
        default: its value where it is not given.
        free: whether it changes no number of the run, so that it may differ between a run and its
            resumption; it is left out when two runs are compared.
        rare: whether --help has its name alone, and no text.
        metavar: what --help calls its value; a name that ends in PATH may be a file or a folder.
        aliases: transformers' other names for it, without the dashes.
    """
    metadata = {"help": help, "rare": rare, "aliases": [f"--{name}" for name in aliases]}
    if metavar is not None:
        metadata["metavar"] = metavar
    return field(default=default, compare=not free, metadata=metadata)


def only(arguments: object, allowed: str, holds: bool, *names: str) -> None:
    """Raise ``Refused`` for a field that is given though this does not hold: it means nothing."""
    for name in names:
        value = getattr(arguments, name)
        if not holds and value not in (None, False):
            raise refusal(name, value, allowed, "Drop the flag, or change the other.")


def at_least(arguments: object, least: float, *names: str) -> None:
    """Raise ``Refused`` for a number among these fields that is given and below ``least``."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            allowed = f"a number of at least {least}"
            raise refusal(name, value, allowed, f"Give --{name} such a number, or drop the flag.")


def shares(arguments: object, *names: str, scale: int = 1, is_open: bool = False) -> None:
    """Raise ``Refused`` for a field that is given and not from 0 to ``scale``; inside if open."""
    for name in names:
        value = getattr(arguments, name)
        if value is None or (0 < value < scale if is_open else 0 <= value <= scale):
            continue
        allowed = f"above 0 and below {scale}" if is_open else f"0 to {scale}"
        raise refusal(name, value, allowed, "Give a share.")
