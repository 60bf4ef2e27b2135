"""Rows of parquet files that are read where they lie, here or on a hub, when they are needed.

A parquet file says at its end how many rows each of its row groups has and where. So rows have
numbers before any is read, their order is drawn beforehand, and a run that goes on skips what it
has trained on without reading it: a buffer of `IterableDataset.shuffle` would be lost. What is kept
at a time are the row groups of one window.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset, DatasetDict, Features, load_dataset
from datasets.table import InMemoryTable, cast_table_to_schema

from finetune.data import sources
from finetune.data.loaders import Drawn
from finetune.data.rows import needed_splits
from finetune.data.wording import refusal
from tasks import Task

SMALL = 16  # bytes a row of a column, labels say, that a digest reads whole
SAMPLE = 4096  # bytes that it reads of another column, in the middle of each row group
HUB = "hf://"


@dataclass(frozen=True)
class Group:
    """A row group: its file, its number there, and how many of its rows are taken."""

    file: str
    number: int
    rows: int


@dataclass
class Streamed:
    """The rows of parquet files; those read last are held.

    Attributes:
        footers: of the files, by their paths or addresses.
        groups: the files' row groups, in order.
        features: of the rows.
        columns: those that are read, and what they are called.
        kept: how many rows are held, at most; one row group is in any case.
    """

    footers: Mapping[str, pq.FileMetaData]
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

    def first(self, count: int | None, columns: Mapping[str, str], window: int) -> Streamed:
        """The first so many rows, of these columns by other names; a window of rows is held."""
        left, groups = count or len(self), []
        for group in self.groups:
            if left > 0:
                groups.append(replace(group, rows=min(group.rows, left)))
            left -= group.rows
        footers = {group.file: self.footers[group.file] for group in groups}
        # A window ends with the group that fills it.
        kept = window + max(group.rows for group in groups)
        return Streamed(footers, groups, self.features, columns, kept)

    def sample(self) -> Dataset:
        """The first row, as `datasets` has it."""
        return Dataset(InMemoryTable(self._table(self.groups[0], list(self.features))[:1]))

    @cached_property
    def digest(self) -> str:
        """A digest of the rows, without reading them all.

        Of a hub's files it is of the hub's name of their content. Of other files it is of their
        footers, of the small columns (the labels), and of a part of the other columns in each row
        group.
        """
        total = hashlib.sha256(repr([(group.number, group.rows) for group in self.groups]).encode())
        with ThreadPoolExecutor(sources.THREADS) as pool:
            for content in pool.map(self._content, self.footers):
                total.update(content)
        return total.hexdigest()[: sources.DIGITS]

    def origin(self) -> dict[str, Any]:
        """Describe the rows as `sources.origin` describes a split."""
        places = {name: fsspec.url_to_fs(name) for name in self.footers}
        sizes = {name: system.size(path) for name, (system, path) in places.items()}
        return {"rows": len(self), "digest": self.digest, "files": sizes}

    def row_name(self, row: int) -> str:
        """Name a row by its number, from 1, in its file."""
        index = self._group_of(row)
        file = self.groups[index].file
        before = sum(group.rows for group in self.groups[:index] if group.file != file)
        return f"row {row - before + 1} of {file}"

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self._ends, row, side="right"))

    def _rows(self, index: int) -> list[dict[str, Any]]:
        held, group = self._held, self.groups[index]
        if index in held:
            held.move_to_end(index)
            return held[index]
        table = self._table(group, list(self.columns))[: group.rows]
        rows = [{new: row[old] for old, new in self.columns.items()} for row in table.to_pylist()]
        while held and sum(map(len, held.values())) + len(rows) > self.kept:
            held.popitem(last=False)
        held[index] = rows
        return rows

    def _table(self, group: Group, columns: list[str]) -> pa.Table:
        try:
            with fsspec.open(group.file) as stream:
                file = pq.ParquetFile(stream, metadata=self.footers[group.file], pre_buffer=True)
                table = file.read_row_group(group.number, columns)
            # Words become the numbers of the classes; a column that this file lacks has no values.
            features = Features({name: self.features[name] for name in columns})
            return cast_table_to_schema(table, features.arrow_schema)
        except Exception as error:  # of pyarrow, of the file system or of the hub
            raise sources.unreadable([group.file], error) from None

    def _content(self, name: str) -> bytes:
        system, path = fsspec.url_to_fs(name)
        if name.startswith(HUB):
            system.ls(path.rpartition("/")[0])  # one request for all files of a folder
            return system.info(path)["blob_id"].encode()
        footer = self.footers[name]
        total = hashlib.sha256(repr(footer.to_dict()).encode())
        with system.open(path) as stream:
            for group in map(footer.row_group, range(footer.num_row_groups)):
                for chunk in map(group.column, range(group.num_columns)):
                    start = chunk.dictionary_page_offset or chunk.data_page_offset
                    size = chunk.total_compressed_size
                    if size > max(SMALL * group.num_rows, SAMPLE):
                        start, size = start + (size - SAMPLE) // 2, SAMPLE
                    stream.seek(start)
                    total.update(stream.read(size))
        return total.digest()


class InWindows(Drawn[tuple[int, int]]):
    """Groups of rows in random order, and rows drawn from a window of them at a time.

    Each row has a number that decides what is drawn for it in this epoch. One group of all rows is
    shuffled as a whole.
    """

    def __init__(self, sizes: Sequence[int], window: int) -> None:
        super().__init__()
        self.sizes, self.window = list(sizes), window

    def __len__(self) -> int:
        return sum(self.sizes)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        generator = self.generator()
        starts, order = np.cumsum([0, *self.sizes]), [0]
        if len(self.sizes) > 1:
            order = torch.randperm(len(self.sizes), generator=generator).tolist()
        part: list[np.ndarray] = []
        for group in order:
            part.append(np.arange(starts[group], starts[group + 1]))
            if sum(map(len, part)) < self.window and group != order[-1]:
                continue
            rows = np.concatenate(part)
            drawn = rows[torch.randperm(len(rows), generator=generator).numpy()]
            numbers = torch.randint(2**62, (len(rows),), generator=generator)
            yield from zip(drawn.tolist(), numbers.tolist(), strict=True)
            part = []


class Training:
    """Reads files for `sources.read`, and leaves the training rows where they are.

    ``rows`` are the training rows, once the files are known.
    """

    rows: Streamed

    def __init__(self, split: str, predict: bool) -> None:
        self.split, self.predict = split, predict

    def __call__(
        self, files: Mapping[str, Sequence[str]], features: Features | None, task: Task | None
    ) -> DatasetDict:
        needed = list(files) if task is None else needed_splits(task, self.predict)
        rows = DatasetDict()
        for name in filter(files.__contains__, needed):
            paths = list(files[name])
            if others := [path for path in paths if not path.lower().endswith(".parquet")]:
                allowed = f"with parquet files; {others[0]} is none"
                raise refusal("streaming", True, allowed, "Drop the flag, or convert the files.")
            if name == self.split:
                self.rows = opened(paths, features)
                rows[name] = self.rows.sample()
                continue
            sources.footers(paths, features)
            if any("://" in path for path in paths):
                whole = load_dataset("parquet", data_files={name: paths}, split=name)
            else:
                whole = sources.read_files("parquet", {name: paths})[name]
            rows[name] = whole if features is None else whole.cast(features)
        return rows


def opened(files: Sequence[str], features: Features | None = None) -> Streamed:
    """The rows of these files, once their footers are read.

    Raises ``Refused`` for a file that is not parquet, cannot be reached, or has other classes.
    """
    footers = sources.footers(files, features)
    groups = [
        Group(name, number, rows)
        for name, footer in footers.items()
        for number in range(footer.num_row_groups)
        if (rows := footer.row_group(number).num_rows)
    ]
    if not groups:
        raise refusal("the training files", list(files), "a row or more", "Add rows.")
    schema = footers[groups[0].file].schema.to_arrow_schema()
    return Streamed(footers, groups, features or Features.from_arrow_schema(schema))
