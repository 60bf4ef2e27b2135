"""Files that are there whole or not at all: written aside, forced to disk, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from finetune.errors import UserError

MANIFEST = "manifest.json"


class SaveError(UserError, OSError):
    """A write failed, as on a full disk; the files that were there are unchanged."""


def aside_of(path: Path) -> Path:
    """The hidden path where ``path`` is written before it is renamed."""
    return path.with_name(f".{path.name}.part")


def former_of(path: Path) -> Path:
    """The hidden path where the former ``path`` is until it is deleted."""
    return path.with_name(f".{path.name}.former")


@contextmanager
def clear_errors(path: Path, kept: str) -> Iterator[None]:
    """Raise ``SaveError`` for a failed write inside, and remove what was written aside.

    Args:
        path: the file or folder that is saved.
        kept: a clause that says what is there all the same.
    """
    try:
        yield
    # torch reports a failed write as a RuntimeError of its own.
    except (OSError, SafetensorError, RuntimeError) as error:
        with suppress(OSError):
            remove(aside_of(path))
        remedy = f"Check that its folder exists, is writable, and has room on its disk; {kept}."
        raise SaveError(f"{path} could not be saved: {error}. {remedy}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file over its former.

    Raises:
        SaveError: it cannot be written.
    """
    with clear_errors(path, "the former file is unchanged"):
        aside = aside_of(path)
        aside.write_text(text, "utf-8")
        _to_disk(aside)
        aside.replace(path)


def remove(path: Path) -> None:
    """Delete a file or a folder that may be there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def commit_folder(path: Path) -> None:
    """Rename the folder written aside to ``path``, with a manifest of its files."""
    aside, former = aside_of(path), former_of(path)
    (aside / MANIFEST).write_text(json.dumps(_manifest(aside), indent=1) + "\n", "utf-8")
    for entry in (*aside.rglob("*"), aside):
        _to_disk(entry)
    shutil.rmtree(former, ignore_errors=True)
    if path.exists():
        path.rename(former)
    aside.rename(path)
    _to_disk(path.parent)
    shutil.rmtree(former, ignore_errors=True)


def commit_files(path: Path, folder: Path) -> None:
    """Move the files written aside of ``path`` into ``folder``, over their formers."""
    aside = aside_of(path)
    for entry in (*aside.rglob("*"), aside):
        _to_disk(entry)
    for file in sorted(entry for entry in aside.rglob("*") if entry.is_file()):
        target = folder / file.relative_to(aside)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
    shutil.rmtree(aside)
    _to_disk(folder)


def fault(path: Path) -> str | None:
    """The difference between a folder that `commit_folder` made and its manifest, or None."""
    try:
        expected = dict(json.loads((path / MANIFEST).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return f"{MANIFEST} is missing or broken"
    actual = _manifest(path)
    changed = [x for x in {**expected, **actual} if expected.get(x) != actual.get(x)]
    return f"{changed[0]} is not as {MANIFEST} has it" if changed else None


def digest(file: Path) -> str:
    """SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _manifest(folder: Path) -> dict[str, Any]:
    """Size and digest of each file, by its path; hidden files are the system's."""
    return {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": digest(file)}
        for file in sorted(folder.rglob("[!.]*"))
        if file.is_file() and file.name != MANIFEST
    }


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
