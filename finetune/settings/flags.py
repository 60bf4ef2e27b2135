"""What flags are made with: fields with a help text, range checks, parsers of one-line errors."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from copy import copy
from dataclasses import MISSING, field
from typing import Any, NoReturn

from finetune.errors import DEBUG, Refused, refusal

PATH = "PATH"  # how the placeholder of a value ends in --help where it may name a file or folder
ID_OR_PATH, FOLDER_PATH = f"ID_OR_{PATH}", f"FOLDER_{PATH}"
SEE = "See --help for the flags and their values."
WIDE = 30  # columns that a flag with its value may take before its help
PLACEHOLDERS = {int: "INT", float: "FLOAT", str: "TEXT", None: "TEXT"}  # of values, by their type


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
    if not any(default is value for value in (None, False, MISSING)):
        help += f" (default: {default})"
    text = argparse.SUPPRESS if rare else help.replace("%", "%%")
    metadata: dict[str, Any] = {"help": text, "aliases": [f"--{name}" for name in aliases]}
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


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Lists a flag by its first name, without its other spellings, and its value by its type."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=WIDE)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        first = copy(action)
        if action.option_strings[-1:] != ["--help"]:
            first.option_strings = action.option_strings[:1]
        return super()._format_action_invocation(first)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kind: Any = action.type
        return PLACEHOLDERS.get(kind, "BOOL" if action.nargs == "?" else action.dest.upper())


class LineParser(argparse.ArgumentParser):
    """A parser whose errors are raised as ``Refused``, and whose description keeps its lines."""

    def __init__(self, *dataclasses: Any, **options: Any) -> None:
        options |= {"allow_abbrev": False, "formatter_class": _Formatter}
        super().__init__(*dataclasses, **options)
        self.add_argument(DEBUG, action="store_true", help="Show where an error comes from.")
        # Python before 3.14 takes -1e-3 for a flag.
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}. {SEE}")
