"""What the dataclasses of flags are made with: fields with a help text, and range checks."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

from finetune.errors import refusal


def flag(help: str, default: Any = None, *, free: bool = False) -> Any:
    """A dataclass field that becomes a flag with this help.

    A ``free`` flag may differ between a run and its resumption: it changes no number of the run,
    and is left out when two runs are compared.
    """
    return field(default=default, compare=not free, metadata={"help": help})


def at_least(arguments: object, least: float, *names: str) -> None:
    """Raise ``ValueError`` for a number among these fields that is given and below ``least``."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            allowed = f"a number of at least {least}"
            raise refusal(name, value, allowed, f"Give --{name} such a number, or drop the flag.")
