"""How data are named in an error: on one line, however long or odd they are."""

from __future__ import annotations

import re
from collections.abc import Iterable

from finetune import errors
from finetune.errors import Refused
from tasks import refusals

LONGEST_CELL = 60
MOST_NAMES = 20


class Words(str):
    """Text that an error shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def refusal(argument: str, value: object, allowed: str, remedy: str) -> Refused:
    """The scripts' form of error, on one line whatever a file's cells and names hold."""
    shown = Words(one_line(value)) if isinstance(value, Words) else value
    return errors.refusal(one_line(argument), shown, one_line(allowed), one_line(remedy))


def one_line(text: str) -> str:
    """The text without line breaks and other characters that cannot be printed."""
    spaced = re.sub(r"[\n\r\t]+", " ", text)
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in spaced)


def cell(value: object) -> object:
    """A cell's value, cut where it is long."""
    whole = repr(value[: LONGEST_CELL + 1] if isinstance(value, str | bytes) else value)
    return value if len(whole) <= LONGEST_CELL else Words(f"{whole[:LONGEST_CELL]}...")


def joined(names: Iterable[object]) -> str:
    """The names with commas between them; of many the first ones."""
    known = [str(name) for name in names]
    shown = [name if len(name) <= LONGEST_CELL else f"{name[:LONGEST_CELL]}..." for name in known]
    more = [f"and {len(known) - MOST_NAMES} more"] if len(known) > MOST_NAMES else []
    return one_line(", ".join(shown[:MOST_NAMES] + more))


def reason(error: BaseException) -> str:
    """Another library's error on one line; of errors within errors the first one."""
    while error.__cause__ is not None:
        error = error.__cause__
    # Without the address of what was read from memory.
    return re.sub(r" <_io\.BytesIO object at \w+>", "", one_line(refusals.reason(error)))
