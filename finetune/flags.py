"""What the dataclasses of flags are made with: fields with help, checks, the form of refusals."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any


def flag(help: str, default: Any = None, *, free: bool = False) -> Any:
    """A dataclass field that becomes a flag with this help.

    A ``free`` one may differ between a run and its resumption: it changes no number of the run, and
    is left out when runs are compared.
    """
    return field(default=default, compare=not free, metadata={"help": help})


class Refused(ValueError):
    """What was asked for cannot be; the message is for whoever asked."""


def refusal(argument: str, value: object, allowed: str, remedy: str) -> Refused:
    """The scripts' one form of error: what was given, what is allowed, what to do."""
    return Refused(f"{argument} is {value!r}; allowed: {allowed}. {remedy}")


def at_least(arguments: object, least: float, *names: str) -> None:
    """Raise ``ValueError`` for a number among these fields that is given and below ``least``."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise refusal(name, value, f"a number of at least {least}", "Change the flag.")
