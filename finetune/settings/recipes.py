"""YAML files of settings: recipes, arms and spaces, read as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from finetune.errors import refusal


def read(path: str) -> dict[Any, Any]:
    """What a recipe has, ``flag: value``; raises ``Refused`` if it is no such file."""
    values = load("recipe", path, "flag: value")
    if not isinstance(values, dict):
        allowed = "a file of lines `flag: value`"
        raise refusal("recipe", path, allowed, "Write one flag on each line, without a -.")
    return values


def load(argument: str, path: str, form: str) -> Any:
    """The data of a YAML file.

    Args:
        argument: the flag that names the file, for errors.
        path: of the file.
        form: what the file should hold, for errors; the caller checks that it does.

    Raises ``Refused`` if there is no such file, or it is no YAML.
    """
    if not Path(path).is_file():
        allowed = f"an existing YAML file of `{form}`"
        raise refusal(argument, path, allowed, "Check the path, or make the file.")
    return parsed(argument, path, Path(path).read_bytes())


def parsed(argument: str, source: str, text: str | bytes) -> Any:
    """The data of YAML text; errors name ``argument`` and ``source``.

    Raises ``Refused`` if it is no YAML, and for aliases (``*name``): a few lines of aliases of
    aliases mean more values than fit into memory, also into that of an error's text.
    """
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            remedy = "Write out what is meant."
            raise refusal(argument, source, "YAML without aliases (*name)", remedy)
        return yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(argument, source, "valid YAML", f"Mend it: {error}") from error


def argv(flags: Mapping[str, Any]) -> list[str]:
    """The flags as a person types them, to print a command."""
    typed = []
    for name, value in flags.items():
        values = (value or ["none"]) if isinstance(value, list | tuple) else [value]
        typed += [f"--{name}", *(str(x).lower() if isinstance(x, bool) else str(x) for x in values)]
    return typed
