"""A folder's lock: who works on a run, so that nobody else does. It dies with its last holder."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError as error:  # Windows
    raise ImportError("Running many runs needs a POSIX system (fcntl): use WSL.") from error

LOCK = ".lock"


def lock(folder: Path) -> int | None:
    """A descriptor that keeps others off the folder until it is closed; None if another has one.

    The system releases it when its last holder dies, so a lock is never stale.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    write_holder(descriptor, os.getpid())
    return descriptor


def write_holder(descriptor: int, pid: int) -> None:
    """Note in a lock that was taken which process holds it."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {pid} on {platform.node()}".encode(), 0)


def holder(folder: Path) -> str:
    """Who took the folder's lock last, in words."""
    with suppress(OSError):
        return (folder / LOCK).read_text("utf-8") or "another process"
    return "another process"
