"""A folder's lock: one holder, which may be a process that outlives who took it."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from finetune.engine import locks


def test_a_child_keeps_the_lock(tmp_path: Path) -> None:
    """As a run does whose comparison was ended; package filelock would unlock it here."""
    with locks.held(tmp_path) as lock:
        assert locks.holder(tmp_path).startswith(f"process {os.getpid()} on ")
        child = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    try:
        with locks.held(tmp_path) as lock:
            assert lock is None
        with locks.held(tmp_path, "another") as lock:
            assert lock is not None
    finally:
        child.kill()
        child.wait()
    with locks.held(tmp_path) as lock:
        assert lock is not None


def test_a_file_system_without_locks_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    number = errno.ENOLCK
    with locks.held(tmp_path) as first, locks.held(tmp_path) as second:
        assert None not in (first, second)
    assert f"{tmp_path} cannot be locked ({os.strerror(number)})" in caplog.text
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(number)), locks.held(tmp_path):
        pass
