"""Dataclasses read from a command line: a flag a field, as transformers' HfArgumentParser has them.

That parser costs an import of transformers, and a wrong flag is to be told at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from finetune.errors import Refused
from finetune.settings.variants import flag_kind

TRUE, FALSE = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are the scripts' own: one line, raised to whoever called.

    Args:
        groups: dataclasses whose fields have a help text in their metadata.
        given_only: no flag is required, and those that are not given are left out.
    """

    def __init__(self, groups: Sequence[type], *, given_only: bool = False) -> None:
        formatter = argparse.ArgumentDefaultsHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=formatter)
        self.groups = groups
        for group in groups:
            kinds = get_type_hints(group)
            for each in fields(group):
                options = _options(each, kinds[each.name])
                if given_only:
                    options |= {"default": argparse.SUPPRESS, "required": False}
                names = dict.fromkeys((each.name, each.name.replace("_", "-")))
                self.add_argument(*(f"--{name}" for name in names), **options)

    def read(self, words: Sequence[str]) -> list[Any]:
        """An object of each group.

        Raises ``Refused`` for words that are no flags, or have values that cannot be.
        """
        values = vars(self.parse_args(words))
        return [group(**{f.name: values[f.name] for f in fields(group)}) for group in self.groups]

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}. See --help for the flags and their values.")


def _options(field: Field[Any], annotation: Any) -> dict[str, Any]:
    """How argparse takes a field's values."""
    (kind, repeats), is_required = flag_kind(annotation), field.default is MISSING
    options = {"type": kind, "required": is_required, **field.metadata}
    options["default"] = None if is_required else field.default
    if repeats:
        options["nargs"] = "+"
    elif kind is bool:  # alone it is true
        options |= {"type": _truth, "nargs": "?", "const": True}
    elif get_origin(kind) is Literal:
        options |= {"type": str, "choices": get_args(kind)}
    return options


def _truth(word: str) -> bool:
    if word.lower() not in TRUE + FALSE:
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return word.lower() in TRUE
