"""The words of a command line: a parser of one-line errors, and of help that can be read."""

from __future__ import annotations

import argparse
from typing import NoReturn

from finetune.errors import DEBUG, Refused

SEE = "See --help for the flags and their values."
WIDE = 30  # columns that a flag with its value may take before its help


class WordParser(argparse.ArgumentParser):
    """A parser whose errors are raised to whoever called; its description is shown as it is."""

    def __init__(self, description: str | None, usage: str | None = None) -> None:
        super().__init__(
            description=description,
            usage=usage,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
                prog, max_help_position=WIDE
            ),
        )
        self.add_argument(DEBUG, action="store_true", help="Show where an error comes from.")

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}. {SEE}")
