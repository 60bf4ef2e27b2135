"""A folder's lock, so that one run at a time works in it. The system frees it with its last holder.

The package filelock unlocks for all processes when one of them lets go; here a run that outlives
the comparison that began it keeps its folder's lock.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)
LOCK = ".lock"  # of whoever starts the run of a folder
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def held(folder: Path, name: str = LOCK) -> Iterator[int | None]:
    """Lock the folder, which is made; gives the lock's descriptor, or None if another has it.

    A process that inherits the descriptor holds the lock too. On NFS all machines see it; a network
    file system may keep it to one machine (Lustre with ``localflock``), which nothing shows.

    Raises:
        OSError: if the folder cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        is_taken = _take(descriptor, folder)
        if is_taken:
            write_holder(descriptor, os.getpid())
        yield descriptor if is_taken else None
    finally:
        os.close(descriptor)


def write_holder(descriptor: int, pid: int) -> None:
    """Write into a lock which process holds it."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {pid} on {platform.node()}".encode(), 0)


def holder(folder: Path, name: str = LOCK) -> str:
    """The process that took the folder's lock last, and its machine."""
    with suppress(OSError):
        return (folder / name).read_text("utf-8") or "another process"
    return "another process"


def _take(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        logger.warning(f"{folder} cannot be locked ({error.strerror}): start one run at a time.")
    return True
