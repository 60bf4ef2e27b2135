"""Rows of local files and folders, cached by what is in them, and what was read.

`datasets` caches a folder with a card under the folder's name and its card alone: another folder of
that name, or the same folder after its files have changed, would give the rows of the first one.
So local data are cached in a folder of their own, named by the files' paths and contents.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, DatasetDict, Features, load_dataset, load_dataset_builder
from pandas.util import hash_pandas_object

from finetune.data import files as door
from finetune.data import tables, wording
from finetune.data.wording import Words, reason, refusal
from finetune.errors import Refused

DIGITS = 16
ROW = "row of its source"  # a column with the index that each row had when it was read
ROWS = 1000  # that are hashed at a time
FORM = "2"  # of the tables that are kept; another one is not read any more
BATCH = 10_000  # rows of a kept table that lie together
TEXT_OPTIONS = {"keep_linebreaks": True, "encoding": "utf-8-sig"}
# What a card may say of its files without that they are read by `datasets` itself.
ORDINARY = {"name", "version", "data_dir", "data_files", "description", "features", "sep"}


def read_folder(folder: Path, text: Sequence[str] = (), **settings: Any) -> DatasetDict:
    """The rows of a folder whose card, its README.md, says where the splits are.

    ``text`` are columns that hold text; ``settings`` are those of `datasets.load_dataset`: name,
    data_dir.
    """
    source = str(folder.resolve())
    builder = load_dataset_builder(source, **settings)
    found = builder.config.data_files or {}
    files = {str(split): [Path(path) for path in paths] for split, paths in found.items()}
    reader = type(builder.config).__name__.removesuffix("Config").lower()
    if reader in ("csv", "json", "text") and _is_ordinary(builder.config):
        separator = getattr(builder.config, "sep", ",")
        rows = read_files(reader, files, text, separator)
        features = builder.info.features
        return rows if features is None else rows.cast(features)
    if reader == "parquet":
        for paths in files.values():
            _checked(reader, paths)
        # `datasets` reads all splits with the features of the card, or of the first file.
        schemas = {str(path): pq.read_schema(path) for path in _all(files)}
        check_class_names(schemas, builder.info.features)
    card = folder / "README.md"
    try:
        rows = load_dataset(source, **settings, **_cache(files, [card]))
    except Exception:
        _find_broken(reader, _all(files))
        raise
    return _with_origin(files, rows)


def read_files(
    reader: str,
    found: Mapping[str, Iterable[str | Path]],
    text: Sequence[str] = (),
    separator: str = ",",
) -> DatasetDict:
    """The rows of each split's files of one kind: csv, json, parquet or text.

    Args:
        reader: the kind.
        found: the files of each split.
        text: columns that hold text whatever is written in them.
        separator: of a csv file's cells.
    """
    files = {split: [Path(path).resolve() for path in paths] for split, paths in found.items()}
    rows = {
        split: _read_split(reader, split, paths, text, separator) for split, paths in files.items()
    }
    return _with_origin(files, DatasetDict(rows))


def check_class_names(schemas: Mapping[str, pa.Schema], stated: Features | None = None) -> None:
    """Raise ``Refused`` where files name the classes of a column in different ways.

    `datasets` reads all of them with the names of one, so that a class would have another's name.

    Args:
        schemas: of each file, by its path.
        stated: the features that a card states for all of them.
    """
    known = {name: ("the card", names) for name, names in _class_names(stated or {})}
    for path, schema in schemas.items():
        for column, names in _class_names(Features.from_arrow_schema(schema)):
            first, expected = known.setdefault(column, (path, names))
            if names != expected:
                raise refusal(
                    f"the order of the classes of column {column} in {path}",
                    Words(wording.listed(names)),
                    f"that of {first}: {wording.listed(expected)}",
                    "Write both with the same names in the same order (datasets' cast_column).",
                )


def _class_names(features: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for column, feature in features.items():
        if isinstance(feature, ClassLabel):
            yield column, feature.names


def origin(
    rows: Mapping[str, Dataset],
    digests: Mapping[str, str] | None = None,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """Of each split: how many rows, a digest of their content, and the bytes of each local file.

    Of ``classes``, the names of ``labels``, how many rows each has.
    """
    return {
        name: {
            "rows": len(split),
            "digest": _digest_of_rows(split) if digests is None else digests[name],
            "files": {
                path: known["num_bytes"]
                for path, known in (split.info.download_checksums or {}).items()
            },
            **_counts(split, classes),
        }
        for name, split in rows.items()
    }


def _counts(split: Dataset, classes: Sequence[str]) -> dict[str, dict[str, int]]:
    if not classes or "labels" not in split.column_names:
        return {}
    counts = np.bincount(split.with_format("numpy")["labels"][:], minlength=len(classes))
    return {"labels": dict(zip(classes, counts.tolist(), strict=True))}


def files_of(split: Dataset) -> list[Path]:
    """The local files that a split was read from."""
    return [Path(path) for path in split.info.download_checksums or {}]


def place(name: str, split: Dataset, index: int) -> str:
    """Where the row with this index is: its number, from 1, in its file or else in its split.

    The column `ROW`, if there is one, says which index it had when it was read.
    """
    index = split[ROW][index] if ROW in split.column_names else index
    known = files_of(split)
    if len(known) == 1:
        return f"row {index + 1} of {known[0]}"
    first = 0
    for path in known if all(path.suffix == ".parquet" for path in known) else ():
        count = pq.read_metadata(path).num_rows
        if index < first + count:
            return f"row {index + 1 - first} of {path}"
        first += count
    among = f" ({len(known)} files in {known[0].parent})" if known else ""
    return f"row {index + 1} of split {name!r}{among}"


def _read_split(
    reader: str, split: str, paths: list[Path], text: Sequence[str], separator: str
) -> Dataset:
    """One split by itself: another one may have other columns, as a test split without labels."""
    paths = _checked(reader, paths)
    cache = _cache({split: paths})
    if reader in ("parquet", "text"):
        names = {split: [str(path) for path in paths]}
        how = cache | (TEXT_OPTIONS if reader == "text" else {})
        try:
            if reader == "parquet":
                check_class_names({str(path): pq.read_schema(path) for path in paths})
            return load_dataset(reader, data_files=names, split=split, **how)
        except Refused:
            raise
        except Exception as error:
            _find_broken(reader, paths)
            raise _unlike(paths, error) from None
    options = hashlib.sha256(repr((FORM, reader, list(text), separator)).encode())
    kept = Path(cache["cache_dir"]) / f"{options.hexdigest()[:DIGITS]}.arrow"
    if not kept.exists():
        table = _table(reader, paths, text, separator)
        if table.num_rows == 0:
            raise _without_rows(paths)
        _keep(table, kept)
    try:
        return Dataset.from_file(str(kept), split=split)
    except Exception as error:  # a name or a type that `datasets` does not have
        raise _unlike(paths, error) from None


def _checked(reader: str, paths: list[Path]) -> list[Path]:
    """The files with rows, after a look at the bytes of all.

    `datasets` cannot read a parquet file that has none, even among others.
    """
    for path in paths:
        door.check_content(path, reader)
    if reader != "parquet":
        return paths
    filled = [path for path in paths if pq.read_metadata(path).num_rows]
    if not filled:
        raise _without_rows(paths)
    return filled


def _without_rows(paths: Sequence[Path]) -> Refused:
    what = f"the table in {wording.paths(paths)}"
    return refusal(what, Words("empty"), "a row or more", "Add rows.")


def _table(reader: str, paths: list[Path], text: Sequence[str], separator: str) -> pa.Table:
    parts = [
        tables.read_csv(path, text, separator) if reader == "csv" else tables.read_json(path)
        for path in paths
    ]
    try:
        return pa.concat_tables(parts, promote_options="default")
    except pa.ArrowException as error:
        raise _unlike(paths, error) from None


def _keep(table: pa.Table, path: Path) -> None:
    """Write the table whole or not at all: another run may read it, or write the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=BATCH)
        part.replace(path)


def _is_ordinary(config: Any) -> bool:
    usual = type(config)(name=config.name)
    return all(
        getattr(config, field.name) == getattr(usual, field.name)
        for field in dataclasses.fields(config)
        if field.name not in ORDINARY
    )


def _all(files: Mapping[str, Iterable[Path]]) -> list[Path]:
    return [path for paths in files.values() for path in paths]


def _find_broken(reader: str, paths: Iterable[Path]) -> None:
    """Raise ``Refused`` that names the file, if it is a parquet file that cannot be read."""
    for path in paths if reader == "parquet" else ():
        door.check_parquet(path, whole=True)


def _unlike(paths: Sequence[Path], error: Exception) -> Refused:
    return refusal(
        f"the data in {wording.paths(paths)}",
        Words("unreadable" if len(paths) == 1 else "unreadable together"),
        "files that can be read, with the same columns of the same types",
        f"Reading said: {reason(error)}",
    )


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
