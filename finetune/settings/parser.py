"""Command-line parsers of one-line errors, and of help that can be read."""

from __future__ import annotations

import argparse
import re
from copy import copy
from typing import Any, NoReturn

from finetune.errors import DEBUG, Refused

SEE = "See --help for the flags and their values."
WIDE = 30  # columns that a flag with its value may take before its help


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Lists a flag by its first name, without its other spellings."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=WIDE)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        first = copy(action)
        if action.option_strings[-1:] != ["--help"]:
            first.option_strings = action.option_strings[:1]
        return super()._format_action_invocation(first)


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
