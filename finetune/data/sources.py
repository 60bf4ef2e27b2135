"""Where rows come from: a hub id, a local folder, own files, or a task's builder.

`datasets` caches a folder with a card under the folder's name and its card alone: another folder of
that name, or the same folder after its files have changed, would give the rows of the first one.
So local data are cached in a folder of their own, named by the files' paths and contents.
"""

from __future__ import annotations

import csv
import hashlib
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    load_dataset,
    load_dataset_builder,
)
from pandas.util import hash_pandas_object

import tasks
from finetune.data.wording import Words, cell, listed, reason, refusal
from finetune.errors import Refused, near
from finetune.settings.groups import SourceArguments
from tasks import Task, metrics

READERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
DIGITS = 16  # of a digest
ROW = "row of its source"  # a column with the index that each row had when it was read
ROWS = 1000  # that are hashed at a time
BATCH = 10_000  # rows of a kept table that lie together
MOST_BYTES = 1 << 30  # of a csv file that are parsed as one block, with one type a column
THREADS = 16  # files that are read at once
TEXT = {"keep_linebreaks": True, "encoding": "utf-8-sig"}
# Reads the files of each split, given the features that their source states and the task, where
# these are known.
Take = Callable[[Mapping[str, Sequence[str]], Features | None, Task | None], DatasetDict]
TEXT_READERS = READERS | {".txt": "text"}


def read(
    arguments: SourceArguments,
    family: str,
    *,
    infer: Callable[[DatasetDict], Task],
    readers: Mapping[str, str] = READERS,
    named: Callable[[str], Task] | None = None,
    adapt: Callable[[Task], Task] = lambda task: task,
    text: Sequence[str] = (),
    take: Take | None = None,
) -> tuple[Task, DatasetDict]:
    """Read the task, and all rows of its source as they are.

    Args:
        arguments: the flags.
        family: of the task.
        infer: makes the task of own files from their rows.
        readers: of own files, by their suffixes.
        named: makes the task of a data set that no task names.
        adapt: changes a known task as the flags ask, before it is read.
        text: columns of own csv files that hold text; a task's are its own.
        take: reads the files instead of `datasets`.

    Raises:
        ValueError: the task is not known, or the source cannot be read.
    """
    given = {
        split: path
        for split in ("train", "validation", "test")
        if (path := getattr(arguments, f"{split}_file")) is not None
    }
    if given and arguments.dataset_name is not None:
        allowed = "none beside own files"
        raise refusal("dataset_name", arguments.dataset_name, allowed, "Drop one of the two flags.")
    task = None
    if arguments.task_name is not None:
        task = adapt(tasks.get(arguments.task_name, family))
    elif named is not None and arguments.dataset_name is not None:
        task = adapt(named(arguments.dataset_name))
    elif not given:
        allowed = ", ".join(tasks.names(family))
        remedy = "Choose one, or give train_file and validation_file."
        raise refusal("task_name", None, allowed, remedy)
    if task is not None:
        task = with_metrics(task, arguments.metric)
        if not given:
            return task, read_source(arguments.dataset_name, task, take)
    text = task.text_columns if task else text
    names = {
        "train": task.train_split if task else "train",
        "validation": task.validation_splits[0].name if task else "validation",
        "test": task.test_splits[0].name if task and task.test_splits else "test",
    }
    files = {names[split]: [path] for split, path in given.items()}
    reader = _reader({f"{split}_file": path for split, path in given.items()}, readers)
    rows = take(files, None, task) if take else read_files(reader, files, text)
    return task or with_metrics(infer(rows), arguments.metric), rows


def with_metrics(task: Task, asked: Sequence[str] | None) -> Task:
    """The task, measured by these metrics too.

    Raises ``ValueError`` for a metric that cannot be loaded.
    """
    if not asked:
        return task
    known = {metric.name for metric in task.metrics}
    samples: dict[str, Sequence[Any]] = {"regress": (0.0, 0.5, 1.0, 2.5), "ctc": ("a", "a b")}
    sample = samples.get(task.objective, range(len(task.label_names)))
    loaded = metrics.load(asked, sample or (0, 1))
    added = [metric for metric in loaded if metric.name not in known]
    return replace(task, metrics=(*task.metrics, *added))


def read_source(dataset_name: str | None, task: Task, take: Take | None = None) -> DatasetDict:
    """The rows of ``dataset_name``, a hub id or a folder, or of the task's own source.

    ``take`` reads its files instead of `datasets`.

    Raises ``ValueError`` if it cannot be read.
    """
    if dataset_name is None and task.builder is not None:
        if take is not None:
            allowed = f"None with task {task.name}, whose data are made here"
            raise refusal("streaming", True, allowed, "Drop the flag.")
        return task.builder()
    source = dataset_name or task.dataset_name or ""
    folder = Path(source)
    if folder.is_file():
        remedy = "It is a file: give it as train_file, validation_file or test_file."
        raise refusal("dataset_name", source, "a hub id, or a local folder of its layout", remedy)
    if folder.is_dir() and not (folder / "README.md").is_file():
        files = _bare_files(folder, task)
        every = {path: path for paths in files.values() for path in paths}
        reader = _reader(every, READERS)
        if take is not None:
            return take(files, None, task)
        return read_files(reader, files, task.text_columns)
    try:
        return _repository(source, task, take)
    except Refused:
        raise
    except Exception as error:  # of whichever library finds the fault
        allowed = f"a hub id that can be reached, or a folder, with {task.dataset_config}"
        remedy = f"{near(source)}Loading raised {reason(error)}"
        raise refusal("dataset_name", source, allowed, remedy) from None


def _repository(source: str, task: Task, take: Take | None) -> DatasetDict:
    """The rows of a hub's data set, or of a folder whose card, its README.md, names the files."""
    folder = Path(source)
    is_local = folder.is_dir()
    settings: dict[str, Any] = {"name": task.dataset_config, "data_dir": task.data_dir}
    if is_local:
        source = str(folder.resolve())
    else:
        settings["revision"] = task.revision
    builder = load_dataset_builder(source, **settings)
    found = builder.config.data_files or {}
    files = {str(split): [str(path) for path in paths] for split, paths in found.items()}
    if take is not None:
        return take(files, builder.info.features, task)
    if is_local or not Path(builder.cache_dir).exists():  # a hub's files are looked at once
        # `datasets` reads all splits with the features of the card, or of the first file.
        parquet = [path for paths in files.values() for path in paths if path.endswith(".parquet")]
        footers(parquet, builder.info.features)
    if not is_local:
        return load_dataset(source, **settings)
    paths = {split: [Path(path) for path in names] for split, names in files.items()}
    every = [path for names in paths.values() for path in names]
    kept = cache([*every, folder / "README.md"])
    try:
        rows = load_dataset(source, **settings, cache_dir=str(kept))
    except Exception as error:
        raise unreadable(every, error) from None
    return with_files(rows, paths)


def _bare_files(folder: Path, task: Task) -> dict[str, list[str]]:
    """The files of each split of a folder of the hub's layout that lacks the card with their names.

    `datasets` then guesses names, and takes MNLI's two validation splits for one. Both layouts of
    the hub are known: `<config>/<split>-00000-of-00001.parquet`, and that of its conversions,
    `<config>/<split>/0000.parquet`.
    """
    root = folder / (task.data_dir or task.dataset_config or "")
    splits = [task.train_split, *(s.name for s in (*task.validation_splits, *task.test_splits))]
    found = {
        split: sorted(
            str(path)
            for pattern in (f"{split}[-.]*", f"{split}/*")
            for path in root.glob(pattern)
            if path.suffix.lower() in READERS
        )
        for split in splits
    }
    found = {split: paths for split, paths in found.items() if paths}
    if not found:
        allowed = f"a folder with {root}/<split>-* or /<split>/*, {', '.join(READERS)}"
        remedy = "Check the path. A folder of images is given as train_dir or validation_dir."
        raise refusal("dataset_name", str(folder), allowed, remedy)
    return found


def _reader(files: Mapping[str, str], readers: Mapping[str, str]) -> str:
    """The one reader of these files, which are given by their arguments."""
    for argument, path in files.items():
        if not Path(path).is_file() or Path(path).suffix.lower() not in readers:
            remedy = "Check the path, convert the file, or give a folder as dataset_name."
            raise refusal(argument, path, f"an existing file, {', '.join(readers)}", remedy)
    found = {readers[Path(path).suffix.lower()] for path in files.values()}
    if len(found) > 1:
        remedy = "Convert them to one of these."
        raise refusal(", ".join(files), list(files.values()), "files of one format", remedy)
    return found.pop()


def read_files(
    reader: str, files: Mapping[str, Iterable[str | Path]], text: Sequence[str] = ()
) -> DatasetDict:
    """Read each split by itself: a test split may have other columns, as without labels.

    Args:
        reader: csv, json, parquet or text.
        files: of each split.
        text: columns of a csv file that hold text whatever is written in them.

    Raises:
        Refused: a file cannot be read, or a split has no rows.
    """
    paths = {split: [Path(path).resolve() for path in found] for split, found in files.items()}
    rows = {split: _read(reader, split, found, text) for split, found in paths.items()}
    return with_files(DatasetDict(rows), paths)


def with_files(rows: DatasetDict, files: Mapping[str, Iterable[Path]]) -> DatasetDict:
    """The rows, which know from now on the local files of their split."""
    for name, split in rows.items():
        split.info.download_checksums = {
            str(path): {"num_bytes": path.stat().st_size, "checksum": None}
            for path in files.get(name, ())
        }
    return rows


def cache(paths: Iterable[Path]) -> Path:
    """The folder where `datasets` keeps the rows of just these files, as they are now."""
    total = hashlib.sha256()
    for path in paths:
        total.update(str(path).encode())
        with path.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    root = Path(datasets.config.HF_DATASETS_CACHE)
    return root / "by_content" / total.hexdigest()[:DIGITS]


def footers(files: Sequence[str], stated: Features | None = None) -> dict[str, pq.FileMetaData]:
    """What each parquet file, here or on a hub, says at its end of its rows and columns.

    Args:
        files: paths or addresses.
        stated: the features that a card states for all of them.

    Raises:
        Refused: a file is not parquet, cannot be reached, or names the classes of a column in
            another order than the others. `datasets` reads all of them with the names of one.
    """

    def footer(name: str) -> pq.FileMetaData:
        try:
            with fsspec.open(name) as stream:
                return pq.read_metadata(stream)
        except Exception as error:  # of pyarrow, of the file system or of the hub
            raise unreadable([name], error) from None

    with ThreadPoolExecutor(THREADS) as pool:
        found = dict(zip(files, pool.map(footer, files), strict=True))
    schemas = {name: known.schema.to_arrow_schema() for name, known in found.items()}
    features = {name: Features.from_arrow_schema(schema) for name, schema in schemas.items()}
    first: dict[str, tuple[str, list[str]]] = {}
    for name, columns in ({"the card": stated or Features()} | features).items():
        for column, feature in columns.items():
            if not isinstance(feature, ClassLabel):
                continue
            source, expected = first.setdefault(column, (name, feature.names))
            if feature.names != expected:
                what = f"the order of the classes of column {column} in {name}"
                allowed = f"that of {source}: {listed(expected)}"
                remedy = "Write both with the same names in the same order (datasets' cast_column)."
                raise refusal(what, Words(listed(feature.names)), allowed, remedy)
    return found


def origin(
    rows: Mapping[str, Dataset],
    digests: Mapping[str, str] | None = None,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """Describe each split: its rows, a digest of their content, the bytes of each local file.

    Of ``classes``, the names of ``labels``, how many rows each has.
    """
    return {
        name: {
            "rows": len(split),
            "digest": _digest(split) if digests is None else digests[name],
            "files": {
                path: known["num_bytes"]
                for path, known in (split.info.download_checksums or {}).items()
            },
            **_counts(split, classes),
        }
        for name, split in rows.items()
    }


def files_of(split: Dataset) -> list[Path]:
    """The local files that a split was read from."""
    return [Path(path) for path in split.info.download_checksums or {}]


def numbered(rows: DatasetDict) -> DatasetDict:
    """The rows with the column `ROW`, so that `place` finds them once some are taken out."""
    return DatasetDict({n: split.add_column(ROW, range(len(split))) for n, split in rows.items()})


def place(name: str, split: Dataset, index: int) -> str:
    """Name a row by its number, from 1, in its file, or else in its split."""
    number = (split[ROW][index] if ROW in split.column_names else index) + 1
    known = files_of(split)
    if len(known) == 1:
        return f"row {number} of {known[0]}"
    among = f" ({len(known)} files in {known[0].parent})" if known else ""
    return f"row {number} of split {name!r}{among}"


def unreadable(paths: Sequence[str | Path], error: Exception) -> Refused:
    """The error of files that cannot be read; of many parquet files the broken one is named."""
    for path in paths if len(paths) > 1 else ():
        try:
            if str(path).endswith(".parquet"):
                pq.read_table(path)
        except Exception:
            paths = [path]
            break
    what = f"the data in {', '.join(map(str, paths[:3]))}{' ...' * (len(paths) > 3)}"
    allowed = "whole files, whose columns have one type each"
    remedy = f"Mend or convert them. Reading raised {reason(error)}"
    counted = " (rows of json are counted from 0, of csv from 1 with the header)"
    return refusal(
        what, Words("unreadable"), allowed, remedy + counted * (" row " in remedy.lower())
    )


def _read(reader: str, split: str, paths: list[Path], text: Sequence[str]) -> Dataset:
    try:
        kept, names = cache(paths), list(map(str, paths))
        if reader == "parquet":
            footers(names)
        else:
            for path in paths:
                _check_text(reader, path)
        if reader == "csv":
            options = hashlib.sha256(repr(list(text)).encode()).hexdigest()[:DIGITS]
            rows = _read_csv(paths, text, kept / f"{options}.arrow", split)
        else:
            how = {"cache_dir": str(kept)} | (TEXT if reader == "text" else {})
            rows = load_dataset(reader, data_files={split: names}, split=split, **how)
    except Refused:
        raise
    except Exception as error:  # of whichever library finds the fault
        raise unreadable(paths, error) from None
    if not len(rows):
        raise refusal(f"the table in {paths[0]}", Words("empty"), "a row or more", "Add rows.")
    return rows


def _check_text(reader: str, path: Path) -> None:
    """Raise ``Refused`` for a line that is not UTF-8, or has the NUL bytes of UTF-16."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                if b"\0" in line:
                    raise ValueError("NUL")
                line.decode()
                if number == 1 and reader == "json" and line.startswith(b"null"):
                    raise ValueError("Arrow's reader would end the process")
            except ValueError:  # of which UnicodeDecodeError is one
                remedy = f"Convert it: iconv -f WINDOWS-1252 -t UTF-8 {path.name} (or -f UTF-16)."
                allowed = f"{'a JSON object' if reader == 'json' else 'text'} in UTF-8"
                raise refusal(f"line {number} of {path}", cell(line), allowed, remedy) from None


def _read_csv(paths: Sequence[Path], text: Sequence[str], kept: Path, split: str) -> Dataset:
    """The rows of csv files, from an Arrow file that is written whole or not at all."""
    if not kept.exists():
        tables = [_csv_table(path, text) for path in paths]
        table = pa.concat_tables(tables, promote_options="default")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            part = Path(folder) / kept.name
            with pa.ipc.new_stream(str(part), table.schema) as stream:
                stream.write_table(table, max_chunksize=BATCH)
            part.replace(kept)  # another run may read it, or write the same
    return Dataset.from_file(str(kept), split=split)


def _csv_table(path: Path, text: Sequence[str]) -> pa.Table:
    """The cells as they were written: only an empty one is missing."""
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.reader(stream, strict=True)
        header = next(filter(None, rows), [])
        try:
            # Arrow would read all rows after a quote that is never closed as one cell.
            deque(rows, maxlen=0)
        except csv.Error as error:
            what = f"a quote up to line {rows.line_num} of {path}"
            allowed = "a closed one, with the quotes in its cell written twice"
            raise refusal(what, Words("broken"), allowed, f"Mend it: {error}.") from None
    if len(set(header)) < len(header):
        what = f"the header of {path}"
        raise refusal(what, Words(listed(header)), "each column once", "Rename or drop one.")
    return pacsv.read_csv(
        path,
        pacsv.ReadOptions(use_threads=False, block_size=min(path.stat().st_size + 1, MOST_BYTES)),
        # Of one column a blank line is a row whose cell is empty.
        pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(header) > 1),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(text, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    )


def _counts(split: Dataset, classes: Sequence[str]) -> dict[str, dict[str, int]]:
    if not classes or "labels" not in split.column_names:
        return {}
    counts = np.bincount(split.with_format("numpy")["labels"][:], minlength=len(classes))
    return {"labels": dict(zip(classes, counts.tolist(), strict=True))}


def _digest(split: Dataset) -> str:
    total = hashlib.sha256(",".join(split.column_names).encode())
    for part in split.with_format("pandas").iter(ROWS):
        # Lists cannot be hashed by pandas; their text can.
        plain = part.apply(lambda column: column.map(str) if column.dtype == object else column)
        total.update(hash_pandas_object(plain, index=False).to_numpy().tobytes())
    return total.hexdigest()[:DIGITS]
