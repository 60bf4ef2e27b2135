"""A folder's lock where the file system has none, and where it was just given back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from finetune.engine import locks


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    for number in locks.NO_LOCKS:
        with locks.held(tmp_path) as first, locks.held(tmp_path) as second:
            assert None not in (first, second)
        assert (
            f"{tmp_path} is on a file system without locks ({os.strerror(number)})" in caplog.text
        )
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(number)), locks.held(tmp_path):
        pass


def test_a_lock_that_was_removed_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends may remove the file after another has opened it."""
    flock = locks.fcntl.flock

    def late(descriptor: int, how: int) -> None:
        (tmp_path / locks.LOCK).unlink()
        flock(descriptor, how)

    with monkeypatch.context() as patched:
        patched.setattr(locks.fcntl, "flock", late)
        with locks.held(tmp_path) as lock:
            assert lock is None
    with locks.held(tmp_path) as lock:
        assert lock is not None
        assert locks.holder(tmp_path).startswith(f"process {os.getpid()} on ")
