"""Rows of local files and folders, cached by what is in them, and what was read.

`datasets` caches a folder with a card under the folder's name and its card alone: another folder of
that name, or the same folder after its files have changed, would give the rows of the first one.
So local data are cached in a folder of their own, named by the files' paths and contents.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, DatasetDict, load_dataset, load_dataset_builder
from pandas.util import hash_pandas_object

DIGITS = 16
ROWS = 1000  # that are hashed at a time


def read_folder(folder: Path, **settings: Any) -> DatasetDict:
    """The rows of a folder whose card, its README.md, says where the splits are.

    ``settings`` are those of `datasets.load_dataset`: name, data_dir.
    """
    source = str(folder.resolve())
    found = load_dataset_builder(source, **settings).config.data_files or {}
    files = {split: [Path(path) for path in paths] for split, paths in found.items()}
    card = folder / "README.md"
    return _with_origin(files, load_dataset(source, **settings, **_cache(files, [card])))


def read_files(
    reader: str, found: Mapping[str, Iterable[str | Path]], **options: Any
) -> DatasetDict:
    """The rows of each split's files, which `datasets` reads as csv, json, parquet or text."""
    files = {split: [Path(path).resolve() for path in paths] for split, paths in found.items()}
    names = {split: [str(path) for path in paths] for split, paths in files.items()}
    return _with_origin(files, load_dataset(reader, data_files=names, **options, **_cache(files)))


def origin(rows: Mapping[str, Dataset]) -> dict[str, Any]:
    """Of each split: how many rows, a digest of their content, and the bytes of each local file."""
    return {
        name: {
            "rows": len(split),
            "digest": _digest_of_rows(split),
            "files": {
                path: known["num_bytes"]
                for path, known in (split.info.download_checksums or {}).items()
            },
        }
        for name, split in rows.items()
    }


def _with_origin(files: Mapping[str, Iterable[Path]], rows: DatasetDict) -> DatasetDict:
    for name, split in rows.items():
        split.info.download_checksums = {
            str(path): {"num_bytes": path.stat().st_size, "checksum": None}
            for path in files.get(name, ())
        }
    return rows


def _cache(files: Mapping[str, Iterable[Path]], others: Iterable[Path] = ()) -> dict[str, str]:
    """Where `datasets` keeps the rows of just these files, as they are now."""
    total = hashlib.sha256()
    for split, paths in files.items():
        total.update(str(split).encode())
        for path in paths:
            _add(total, path)
    for path in others:
        _add(total, path)
    name = total.hexdigest()[:DIGITS]
    return {"cache_dir": os.path.join(datasets.config.HF_DATASETS_CACHE, "by_content", name)}


def _add(total: Any, path: Path) -> None:
    total.update(str(path).encode())
    with path.open("rb") as stream:
        total.update(hashlib.file_digest(stream, "sha256").digest())


def _digest_of_rows(split: Dataset) -> str:
    total = hashlib.sha256(",".join(split.column_names).encode())
    for part in split.with_format("pandas").iter(ROWS):
        # Lists cannot be hashed by pandas; their text can.
        plain = part.apply(lambda column: column.map(str) if column.dtype == object else column)
        total.update(hash_pandas_object(plain, index=False).to_numpy().tobytes())
    return total.hexdigest()[:DIGITS]
