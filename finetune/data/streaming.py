"""Rows of parquet files that are read where they lie, here or on a hub, when they are asked for.

A parquet file says at its end how many rows each of its row groups has and where. So rows have
numbers before any is read, their order is drawn beforehand, and a run that goes on skips what it
has trained on without reading it. What is kept at a time are the row groups of one window.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset, DatasetDict, DatasetInfo, Features, load_dataset
from datasets.table import InMemoryTable, cast_table_to_schema

from finetune.data import local
from finetune.data.orders import Drawn
from finetune.data.rows import needed_splits
from finetune.data.wording import reason, refusal
from finetune.errors import Refused
from finetune.terminal import track
from tasks import Task

DIGITS = 16
READERS = 16  # files that are read at once
SMALL = 16  # bytes a row of a column, labels say, that a digest reads whole
SAMPLE = 4096  # bytes that it reads of another column, in the middle of each row group
REMOTE, HUB = "://", "hf://"


@dataclass(frozen=True, eq=False)
class File:
    """A parquet file: its path or address, its bytes, and what it says of itself.

    ``blob`` is what a hub names the file's content by; None where only reading it can tell.
    """

    name: str
    size: int
    footer: pq.FileMetaData
    footer_bytes: bytes
    blob: str | None = None


@dataclass(frozen=True)
class Group:
    """A row group: its file, its number there, and how many of its rows are taken."""

    file: File
    number: int
    rows: int


@dataclass
class Streamed:
    """The rows of parquet files; those read last are held.

    Attributes:
        groups: the files' row groups, in order.
        features: of the rows.
        columns: those that are read, and what they are called.
        kept: how many rows are held, at most; one row group is in any case.
    """

    groups: Sequence[Group]
    features: Features
    columns: Mapping[str, str] = field(default_factory=dict)
    kept: int = 0
    _held: OrderedDict[int, list[dict[str, Any]]] = field(default_factory=OrderedDict, repr=False)

    def __post_init__(self) -> None:
        self._ends = np.cumsum(self.sizes)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: int) -> dict[str, Any]:
        index = self._group_of(row)
        return self._rows(index)[row - int(self._ends[index]) + self.groups[index].rows]

    def __getstate__(self) -> dict[str, Any]:
        """For processes that read: each holds row groups of its own."""
        return self.__dict__ | {"_held": OrderedDict()}

    @property
    def sizes(self) -> list[int]:
        """How many rows each group has."""
        return [group.rows for group in self.groups]

    def first(self, count: int | None) -> Streamed:
        """The first so many rows."""
        if count is None or count >= len(self):
            return self
        starts = self._ends - self.sizes
        cut = [
            replace(group, rows=min(group.rows, count - int(start)))
            for group, start in zip(self.groups, starts, strict=True)
            if start < count
        ]
        return Streamed(cut, self.features, self.columns, self.kept)

    def named(self, columns: Mapping[str, str], window: int) -> Streamed:
        """These columns alone, by other names; a window of so many rows is held."""
        # A window ends with the group that fills it.
        kept = window + max(self.sizes)
        return Streamed(self.groups, self.features, columns, kept)

    def sample(self) -> Dataset:
        """The first row, as `datasets` has it."""
        table = self._table(self.groups[0], None)[:1]
        return Dataset(InMemoryTable(table), info=DatasetInfo(features=self.features))

    @cached_property
    def digest(self) -> str:
        """Of the rows, without reading them all.

        Of a hub's files it is of what the hub names their content by. Of other files it is of
        their footers, of the small columns (the labels), and of a part of the other columns in
        each row group.
        """
        parts: dict[File, list[Group]] = {}
        for group in self.groups:
            parts.setdefault(group.file, []).append(group)
        total = hashlib.sha256(repr([(g.number, g.rows) for g in self.groups]).encode())
        with ThreadPoolExecutor(READERS) as pool:
            for found in pool.map(partial(_content, columns=self.columns), parts.values()):
                total.update(found)
        return total.hexdigest()[:DIGITS]

    def origin(self) -> dict[str, Any]:
        """As `local.origin` says it of a split."""
        sizes = {file.name: file.size for file in self._files()}
        return {"rows": len(self), "digest": self.digest, "files": sizes}

    def place(self, row: int) -> str:
        """Where the row is, in words."""
        index = self._group_of(row)
        file = self.groups[index].file
        before = sum(group.rows for group in self.groups[:index] if group.file is not file)
        return f"row {row - before + 1} of {file.name}"

    def _files(self) -> list[File]:
        return list(dict.fromkeys(group.file for group in self.groups))

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self._ends, row, side="right"))

    def _rows(self, index: int) -> list[dict[str, Any]]:
        held, group = self._held, self.groups[index]
        if index in held:
            held.move_to_end(index)
            return held[index]
        table = self._table(group, list(self.columns))[: group.rows]
        found = [{new: row[old] for old, new in self.columns.items()} for row in table.to_pylist()]
        while held and sum(map(len, held.values())) + len(found) > self.kept:
            held.popitem(last=False)
        held[index] = found
        return found

    def _table(self, group: Group, columns: list[str] | None) -> pa.Table:
        known = group.file
        try:
            with fsspec.open(known.name) as stream:
                file = pq.ParquetFile(stream, metadata=known.footer, pre_buffer=True)
                table = file.read_row_group(group.number, columns)
            # Words become the numbers of the classes; a column that this file lacks has no values.
            features = Features({name: self.features[name] for name in columns or self.features})
            return cast_table_to_schema(table, features.arrow_schema)
        except Exception as error:  # of pyarrow, of the file system or of the hub
            raise _unreadable(
                known.name, f"Row group {group.number + 1}: {reason(error)}"
            ) from None


class InWindows(Drawn[tuple[int, int]]):
    """Row groups in random order, and rows drawn from a window of them at a time.

    Each row has a number that decides what is drawn for it, as `orders.Numbered` gives it.
    """

    def __init__(self, sizes: Sequence[int], window: int) -> None:
        super().__init__()
        self.sizes, self.window = list(sizes), window

    def __len__(self) -> int:
        return sum(self.sizes)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        generator = self.drawing()
        starts = np.cumsum([0, *self.sizes])
        order = torch.randperm(len(self.sizes), generator=generator).tolist()
        for part in windows(self.sizes, order, self.window):
            rows = np.concatenate([np.arange(starts[g], starts[g + 1]) for g in part])
            drawn = rows[torch.randperm(len(rows), generator=generator).numpy()]
            numbers = torch.randint(2**62, (len(rows),), generator=generator)
            yield from zip(drawn.tolist(), numbers.tolist(), strict=True)


def windows(sizes: Sequence[int], order: Iterable[int], window: int) -> Iterator[list[int]]:
    """The groups in this order, in parts with so many rows or more; the last may have fewer."""
    part, rows = list[int](), 0
    for group in order:
        part.append(group)
        rows += sizes[group]
        if rows >= window:
            yield part
            part, rows = [], 0
    if part:
        yield part


class Training:
    """What `sources.read` takes rows by: the training rows are left where they are.

    The other splits that a run needs are read as ever. ``rows`` are the training rows, once the
    files are known.
    """

    rows: Streamed

    def __init__(self, split: str, predict: bool) -> None:
        self.split, self.predict = split, predict

    def __call__(
        self, files: Mapping[str, Sequence[str]], features: Features | None, task: Task | None
    ) -> DatasetDict:
        needed = list(files) if task is None else needed_splits(task, self.predict)
        files = {name: paths for name, paths in files.items() if name in needed}
        for paths in files.values():
            _check_parquet(paths)
        found = {
            name: _whole(name, paths, features)
            for name, paths in files.items()
            if name != self.split
        }
        if self.split in files:
            self.rows = opened(files[self.split], features)
            found[self.split] = self.rows.sample()
        return DatasetDict(found)

    def of(self, task: Task, limit: int | None, window: int) -> Streamed:
        """The first so many training rows: ``image`` and ``labels``."""
        names = {task.image_column: "image", task.label_column: "labels"}
        return self.rows.first(limit).named(names, window)


def opened(files: Sequence[str], features: Features | None = None) -> Streamed:
    """The rows of these files, once their footers are read.

    Raises ``Refused`` for a file that is not parquet or cannot be reached.
    """
    with ThreadPoolExecutor(READERS) as pool:
        found = list(track(pool.map(_file, files), "Reading parquet footers", len(files)))
    groups = [
        Group(file, number, rows)
        for file in found
        for number in range(file.footer.num_row_groups)
        if (rows := file.footer.row_group(number).num_rows)
    ]
    if not groups:
        raise refusal("the training files", list(files), "a row or more", "Add rows.")
    schemas = {file.name: file.footer.schema.to_arrow_schema() for file in found}
    local.check_class_names(schemas, features)
    own = schemas[groups[0].file.name]
    return Streamed(groups, features or Features.from_arrow_schema(own))


def _file(name: str) -> File:
    try:
        system, path = fsspec.url_to_fs(name)
        with system.open(path) as stream:
            footer = pq.read_metadata(stream)
            stream.seek(-footer.serialized_size - len("size") - len("PAR1"), os.SEEK_END)
            end = stream.read()
        # The list of a hub's folder, which is kept, names the content of each file.
        listed = system.ls(path.rpartition("/")[0], detail=True) if name.startswith(HUB) else ()
        blobs = {each["name"]: each.get("blob_id") for each in listed}
        return File(name, system.size(path), footer, end, blobs.get(path))
    except Exception as error:  # of pyarrow, of the file system or of the hub
        raise _unreadable(name, reason(error)) from None


def _content(groups: Sequence[Group], columns: Mapping[str, str]) -> bytes:
    """A digest of a file's row groups, of these columns or of all (`Streamed.digest`)."""
    file = groups[0].file
    if file.blob is not None:
        return file.blob.encode()
    total = hashlib.sha256(file.footer_bytes)
    try:
        with fsspec.open(file.name) as stream:
            for start, size in _parts(groups, columns):
                stream.seek(start)
                total.update(stream.read(size))
    except Exception as error:  # of the file system
        raise _unreadable(file.name, reason(error)) from None
    return total.digest()


def _parts(groups: Sequence[Group], columns: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Where the bytes that tell one content from another begin, and how many they are."""
    for number in (group.number for group in groups):
        group = groups[0].file.footer.row_group(number)
        for chunk in map(group.column, range(group.num_columns)):
            path = chunk.path_in_schema  # of a column, or of a part of it
            if columns and not any(f"{path}.".startswith(f"{name}.") for name in columns):
                continue
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            size = chunk.total_compressed_size
            if size > max(SMALL * group.num_rows, SAMPLE):
                start, size = start + (size - SAMPLE) // 2, SAMPLE
            yield start, size


def _unreadable(name: str, said: str) -> Refused:
    allowed = "one that can be read to its end"
    return refusal("the parquet file", name, allowed, f"Reading said: {said}")


def _check_parquet(paths: Sequence[str]) -> None:
    others = [path for path in paths if not path.lower().endswith(".parquet")]
    if others:
        raise refusal(
            "streaming",
            True,
            f"with parquet files; {others[0]} is none",
            "Drop --streaming: folders of images are read from the disk when they are needed "
            "anyway. Other formats can be converted to parquet.",
        )


def _whole(name: str, paths: Sequence[str], features: Features | None) -> Dataset:
    if any(REMOTE in path for path in paths):
        rows = load_dataset("parquet", data_files={name: list(paths)}, split=name)
    else:
        rows = local.read_files("parquet", {name: [Path(path) for path in paths]})[name]
        local.check_class_names({path: pq.read_schema(path) for path in paths}, features)
    return rows if features is None else rows.cast(features)
