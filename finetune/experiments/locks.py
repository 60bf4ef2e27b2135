"""A folder's lock: who works on a run, so that nobody else does. It dies with its last holder."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError as error:  # Windows
    raise ImportError("Running many runs needs a POSIX system (fcntl): use WSL.") from error

LOCK = ".lock"


@contextmanager
def held(folder: Path) -> Iterator[int | None]:
    """Keep others off the folder: gives the lock's descriptor, or None if another has it.

    The system releases it when its last holder dies, so a lock is never stale.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    taken = None
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken = descriptor
        write_holder(descriptor, os.getpid())
    try:
        yield taken
    finally:
        os.close(descriptor)


def write_holder(descriptor: int, pid: int) -> None:
    """Note in a lock that was taken which process holds it."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {pid} on {platform.node()}".encode(), 0)


def holder(folder: Path) -> str:
    """Who took the folder's lock last, in words."""
    with suppress(OSError):
        return (folder / LOCK).read_text("utf-8") or "another process"
    return "another process"
