"""Files that are there whole or not at all: written aside, forced to disk, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from finetune.errors import ToldError

MANIFEST = "manifest.json"


class SaveError(ToldError, OSError):
    """Something could not be written, as on a full disk; nothing that was there is changed."""


def aside_of(path: Path) -> Path:
    """Where ``path`` is written before it is renamed; hidden, so not taken for whole."""
    return path.with_name(f".{path.name}.part")


def former_of(path: Path) -> Path:
    """Where ``path`` is before it is deleted; hidden too."""
    return path.with_name(f".{path.name}.former")


@contextmanager
def clear_errors(path: Path, kept: str) -> Iterator[None]:
    """Raise ``SaveError`` for a failed write inside, and remove what was written aside.

    Args:
        path: what is being saved.
        kept: what is there all the same, in words.
    """
    try:
        yield
    # torch reports a failed write as a RuntimeError of its own.
    except (OSError, SafetensorError, RuntimeError) as error:
        with suppress(OSError):
            remove(aside_of(path))
        raise SaveError(
            f"{path} could not be saved: {error}. Allowed: a folder that is there, on a disk with "
            f"room and the right to write. Free some space; {kept}."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a file over its former. Raises ``SaveError`` if that cannot be done."""
    with clear_errors(path, "what was there is as it was"):
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
    """Turn the folder written aside into ``path``, with a manifest of its files; replaces one."""
    aside, former = aside_of(path), former_of(path)
    manifest = {
        str(file.relative_to(aside)): {"bytes": file.stat().st_size, "sha256": digest(file)}
        for file in sorted(aside.rglob("*"))
        if file.is_file() and file.name != MANIFEST
    }
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
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
    """What is wrong with a folder that `commit_folder` made; None if it is whole."""
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest.items()}
    except (OSError, ValueError, AttributeError, LookupError, TypeError):  # other JSON than ours
        return f"{MANIFEST} is missing or broken"
    for name, (size, expected) in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes of {size}"
        if digest(file) != expected:
            return f"{name} was changed"
    there = (str(file.relative_to(path)) for file in path.rglob("[!.]*") if file.is_file())
    unknown = sorted(set(there) - {MANIFEST, *files})
    return f"{unknown[0]} is not in {MANIFEST}" if unknown else None


def digest(file: Path) -> str:
    """SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
