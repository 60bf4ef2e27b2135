"""A folder's lock: who works in it, so that nobody else does. It dies with its last holder."""

from __future__ import annotations

import errno
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from finetune.errors import MissingError

try:
    import fcntl
except ImportError as error:  # Windows
    raise MissingError("The scripts need a POSIX system (fcntl): use WSL.") from error

logger = logging.getLogger(__name__)
LOCK = ".lock"  # of whoever starts the run of a folder
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def held(folder: Path, name: str = LOCK) -> Iterator[int | None]:
    """Keep others off the folder: gives the lock's descriptor, or None if another has it.

    The system releases it when its last holder dies, so a lock is never stale. A folder that was
    made for it and is empty at the end is removed.

    On NFS all machines see the lock. A network file system may keep it to one machine (Lustre with
    ``localflock``), which nothing tells; where one has no locks at all, the log says that others
    are not kept off.

    Raises ``OSError`` if the folder cannot be made or written to.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    descriptor, is_taken = os.open(file, os.O_RDWR | os.O_CREAT, 0o644), False
    try:
        is_taken = _take(descriptor, folder)
        if is_taken:
            write_holder(descriptor, os.getpid())
        yield descriptor if is_taken else None
    finally:
        with suppress(OSError):
            if is_taken and made and [*folder.iterdir()] == [file]:
                file.unlink()
                for path in made:
                    path.rmdir()
        os.close(descriptor)


def write_holder(descriptor: int, pid: int) -> None:
    """Note in a lock that was taken which process holds it."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {pid} on {platform.node()}".encode(), 0)


def holder(folder: Path, name: str = LOCK) -> str:
    """Who took the folder's lock last, in words."""
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
        logger.warning(
            f"{folder} is on a file system without locks ({error.strerror}): see to it yourself "
            "that no two runs work in it."
        )
    return os.fstat(descriptor).st_nlink > 0  # 0: removed by its holder, which has just ended
