"""Recipes: a run's flags in a YAML file, read as if they stood first on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from finetune.errors import meant, refusal


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

    Raises ``ValueError`` if there is no such file, or it is no YAML.
    """
    if not Path(path).is_file():
        raise refusal(
            argument,
            path,
            f"an existing YAML file of `{form}`",
            "Check the path, or make the file.",
        )
    try:
        return yaml.safe_load(Path(path).read_text("utf-8"))
    except yaml.YAMLError as error:
        raise refusal(argument, path, "valid YAML", f"Mend the file: {error}") from error


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
