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
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset, Features
from datasets.table import InMemoryTable, cast_table_to_schema

from finetune.data import sources
from finetune.data.loaders import Drawn
from finetune.errors import refusal

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
    _held: OrderedDict[int, pa.Table] = field(default_factory=OrderedDict, repr=False)

    def __post_init__(self) -> None:
        self._ends = np.cumsum(self.sizes)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: int) -> dict[str, Any]:
        index = self._group_of(row)
        start = int(self._ends[index]) - self.groups[index].rows
        return self._group(index).slice(row - start, 1).to_pylist()[0]

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
        """A digest of the rows; a hub's are not read for it.

        Of a hub's files it is of the hub's name of their content.
        """
        total = hashlib.sha256(repr([(group.number, group.rows) for group in self.groups]).encode())
        with ThreadPoolExecutor(sources.THREADS) as pool:
            for content in pool.map(self._content, self.footers):
                total.update(content)
        return total.hexdigest()[: sources.DIGITS]

    def origin(self) -> dict[str, Any]:
        """Describe the rows as `sources.origin` describes a split."""
        systems = {name: fsspec.url_to_fs(name) for name in self.footers}
        sizes = {name: system.size(path) for name, (system, path) in systems.items()}
        return {"rows": len(self), "digest": self.digest, "files": sizes}

    def row_name(self, row: int) -> str:
        """Name a row by its number, from 1, in its file."""
        index = self._group_of(row)
        file = self.groups[index].file
        before = sum(group.rows for group in self.groups[:index] if group.file != file)
        return f"row {row - before + 1} of {file}"

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self._ends, row, side="right"))

    def _group(self, index: int) -> pa.Table:
        held, group = self._held, self.groups[index]
        if index in held:
            held.move_to_end(index)
            return held[index]
        table = self._table(group, list(self.columns))[: group.rows]
        while held and sum(map(len, held.values())) + len(table) > self.kept:
            held.popitem(last=False)
        held[index] = table.rename_columns(list(self.columns.values()))
        return held[index]

    def _table(self, group: Group, columns: list[str]) -> pa.Table:
        with sources.reading([group.file]), fsspec.open(group.file) as stream:
            file = pq.ParquetFile(stream, metadata=self.footers[group.file], pre_buffer=True)
            table = file.read_row_group(group.number, columns)
            # Words become the numbers of the classes; a column that this file lacks has no values.
            features = Features({name: self.features[name] for name in columns})
            return cast_table_to_schema(table, features.arrow_schema)

    def _content(self, name: str) -> bytes:
        if not name.startswith(HUB):
            with Path(name).open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").digest()
        system, path = fsspec.url_to_fs(name)
        system.ls(path.rpartition("/")[0])  # one request for all files of a folder
        return system.info(path)["blob_id"].encode()


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


def streamed(split: str, source: sources.Source) -> dict[str, Dataset | Streamed]:
    """The rows of a source, of which those of this split stay where they are.

    Raises:
        Refused: a file is not parquet, cannot be reached, or has other classes.
    """
    others = {name: files for name, files in source.files.items() if name != split}
    rows: dict[str, Any] = {**sources.read_files(replace(source, files=others, load=None))}
    if split in source.files:
        rows[split] = opened(source.files[split], source.features)
    return rows


def opened(files: Sequence[str], features: Features | None = None) -> Streamed:
    """The rows of these files, once their footers are read.

    Raises:
        Refused: a file that is not parquet, cannot be reached, or has other classes.
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
