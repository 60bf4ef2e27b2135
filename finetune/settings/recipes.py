"""Recipes: a run's flags in a YAML file, read as if they stood first on the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from finetune.errors import meant, refusal

MOST_VALUES = 10_000  # of a file that a person writes


def read(path: str, known: Iterable[str]) -> dict[str, Any]:
    """The flags of a recipe; null ones are left out.

    Raises ``ValueError`` if it is no file of ``flag: value``, or has a flag that is not ``known``.
    """
    found = load("recipe", path, "flag: value")
    if not isinstance(found, dict):
        raise refusal(
            "recipe",
            path,
            "a file of lines `flag: value`",
            "Write one flag on each line, without a -.",
        )
    names = sorted(set(known) - {"recipe", "help"})
    unknown = [str(name) for name in found if name not in names]
    if unknown:
        raise refusal(
            f"recipe {path}, flag {', '.join(unknown)}",
            {name: found[name] for name in found if str(name) in unknown},
            ", ".join(names),
            meant(unknown, names, "Drop or rename it."),
        )
    for name, value in found.items():
        if isinstance(value, dict):
            allowed = "a value or a list of values"
            raise refusal(f"recipe {path}, flag {name}", value, allowed, "Flags are not nested.")
    return {name: value for name, value in found.items() if value is not None}


def load(argument: str, path: str, form: str) -> Any:
    """What a YAML file of the form named holds; it is the caller's to check that it has it.

    Raises ``ValueError`` if there is no such file, or it is no YAML, or of too many values.
    """
    if not Path(path).is_file():
        raise refusal(
            argument,
            path,
            f"an existing YAML file of `{form}`",
            "Check the path, or make the file.",
        )
    return parsed(argument, path, Path(path).read_bytes())


def parsed(argument: str, given: str, text: str | bytes) -> Any:
    """What YAML says; ``argument`` and ``given`` are what an error names.

    Raises ``ValueError`` if it is none. A few lines of aliases of aliases mean more values than
    fit into memory, an error's text among them: so many are refused.
    """
    try:
        found = yaml.safe_load(text)
        many = _size(found, {}) > MOST_VALUES
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(argument, given, "valid YAML", f"Mend it: {error}") from error
    if many:
        allowed = f"at most {MOST_VALUES} values, aliases (*name) written out"
        raise refusal(argument, given, allowed, "Write out what is meant.")
    return found


def _size(value: Any, known: dict[int, float]) -> float:
    """How many values it is when written out; one that holds itself is infinitely many."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(item, known) for item in items)
    return known[id(value)]


def words(flags: Mapping[str, Any]) -> list[str]:
    """The flags as words of a command line."""
    found = []
    for name, value in flags.items():
        values = value if isinstance(value, list) else [value]
        found += [f"--{name}", *(_word(item) for item in values)]
    return found


def value_of(argv: Sequence[str], name: str) -> str | None:
    """The last value that ``--name value`` or ``--name=value`` has in ``argv``."""
    found = None
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if word == f"--{name}":
            found = following
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
