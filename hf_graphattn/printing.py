"""What a command prints, and that whoever reads it may stop reading."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNREAD = 141  # the exit code that a shell gives such a command


@contextmanager
def until_unread() -> Iterator[None]:
    """End the process without a word where nobody reads any more what it prints, as `head` does.

    A process that ends in here with an exit code of its own keeps that.
    """
    code: str | int | None = None
    try:
        try:
            yield
        except SystemExit as ended:  # of --help too
            code = ended.code
            _flush()
            raise
        _flush()
    except BrokenPipeError:
        if not _is_unread():  # another pipe's
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again
        sys.exit(code or UNREAD)


def _flush() -> None:
    if sys.stdout is not None:  # it is None where a shell closed it: >&-
        sys.stdout.flush()


def _is_unread() -> bool:
    """Whether the other end of what is printed is closed; not known on Windows."""
    if sys.stdout is None:
        return False
    if not hasattr(select, "poll"):
        return True
    watch = select.poll()
    watch.register(sys.stdout, 0)  # an error is told in any case
    return bool(watch.poll(0))
