"""Where rows come from: a hub id, a local folder, own files, or a task's builder.

`datasets` caches a folder with a card under the folder's name and its card alone: another folder of
that name, or the same folder after its files have changed, would give the rows of the first one.
So local data are cached in a folder of their own, named by the files' paths and contents.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, Features, load_dataset, load_dataset_builder
from pandas.util import hash_pandas_object

import tasks
from finetune.errors import Plain, Refused, joined, near, reason, refusal
from finetune.settings.groups import SourceArguments
from tasks import Split, Task, metrics

READERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}
# A task's fields, by the flags that change them.
FIELDS = {
    "dataset_config_name": "dataset_config",
    "train_split_name": "train_split",
    "text_column_names": "text_columns",
    "text_column": "text_columns",
    "image_column_name": "image_column",
    "audio_column_name": "audio_column",
    "label_column_name": "label_column",
    "text_column_name": "label_column",
    "row_end": "row_end",
    "word_level": "word_level",
}
TEXT_NAMES = ("text", "sentence", "transcription", "transcript")  # of columns that hold text
DIGITS = 16  # of a digest
ROW = "row of its source"  # a column with the index that each row had when it was read
ROWS = 1000  # that are hashed at a time
THREADS = 16  # files that are read at once


@dataclass(frozen=True)
class Source:
    """The files that rows are read from.

    Attributes:
        files: of each split, paths or addresses.
        text: columns of csv files that hold text, also where numbers are written in them.
        features: those that a card states for all files.
        load: has `datasets` read a repository; None for files that no card names.
    """

    files: dict[str, list[str]]
    text: Sequence[str] = ()
    features: Features | None = None
    load: Callable[[], DatasetDict] | None = None


@contextmanager
def reading(files: Iterable[str]) -> Iterator[None]:
    """Raise ``Refused`` with the files' names for whatever a library raises while it reads them."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:  # of pandas, pyarrow, datasets, of the file system or of the hub
        names = list(files)
        what = f"the data in {', '.join(names[:3])}{' ...' * (len(names) > 3)}"
        allowed = "whole files, whose columns have one type each; text in UTF-8"
        remedy = f"Mend or convert them. Reading raised {reason(error)}"
        raise refusal(what, Plain("unreadable"), allowed, remedy) from None


def read_files(source: Source) -> DatasetDict:
    """Read all rows; of bare files each split by itself, since a test split may lack the labels.

    Raises:
        Refused: a file cannot be read.
    """
    rows = DatasetDict()
    if source.load is not None:
        with reading(chain(*source.files.values())):
            rows = source.load()
    else:
        for split, files in source.files.items():
            with reading(files):
                rows[split] = _read(split, files, source)
    for split, table in rows.items():
        paths = [Path(x).resolve() for x in source.files.get(split, ()) if "://" not in x]
        table.info.download_checksums = {
            str(path): {"num_bytes": path.stat().st_size, "checksum": None} for path in paths
        }
    return rows


def read(
    arguments: SourceArguments,
    family: str,
    own_task: Callable[[DatasetDict | None], Task | None],
    predict: bool,
    reader: Callable[[Source], Any] = read_files,
) -> tuple[Task, DatasetDict]:
    """Read the task, and all rows of its source as they are.

    Args:
        arguments: the flags.
        family: of the task.
        own_task: makes the task of own files from their rows; from None that of ``dataset_name``,
            or None where such a data set needs a task.
        predict: whether files of test splits are read.
        reader: reads the files.

    Raises:
        ValueError: the task is not known, or the source cannot be read.
    """
    paths = {kind: getattr(arguments, f"{kind}_file") for kind in ("train", "validation", "test")}
    paths = {kind: path for kind, path in paths.items() if path is not None}
    name, task = arguments.dataset_name, None
    if paths and name is not None:
        raise refusal("dataset_name", name, "none beside own files", "Drop one of the two flags.")
    if arguments.task_name is not None:
        task = tasks.get(arguments.task_name, family)
    elif name is not None:
        task = own_task(None)
    if task is not None:
        task = with_flags(task, arguments)
    if paths:
        source = _own_files(paths, task, arguments)
    elif task is None:
        remedy = "Choose one, or give train_file and validation_file."
        raise refusal("task_name", None, ", ".join(tasks.names(family)), remedy)
    elif name is None and task.builder is not None:
        return task, task.builder()
    else:
        source = find(name or task.dataset_name or "", task)
    tests = ["test"] if task is None else [split.name for split in task.test_splits]
    kept = {split: x for split, x in source.files.items() if predict or split not in tests}
    rows = reader(replace(source, files=kept))
    if task is None:
        task = own_task(rows)
        assert task is not None
        task = with_flags(task, arguments)
    return task, rows


def with_flags(task: Task, arguments: SourceArguments) -> Task:
    """The task with what the flags change of it, measured by the metrics that they name too.

    Raises:
        ValueError: too few columns of text, or a metric that cannot be loaded.
    """
    values = {name: value for name, value in vars(arguments).items() if value is not None}
    changes: dict[str, Any] = {field: values[x] for x, field in FIELDS.items() if x in values}
    if (texts := changes.get("text_columns")) is not None:
        changes["text_columns"] = (texts,) if isinstance(texts, str) else tuple(texts)
    if (name := values.get("eval_split_name")) is not None:
        changes["validation_splits"] = (Split(name),)
    task = replace(task, **changes)
    if task.label_column in task.text_columns:
        allowed = f"columns of text other than the label's, {task.label_column}"
        raise refusal("text_column_names", list(task.text_columns), allowed, "Name others.")
    if not arguments.metric:
        return task
    samples: dict[str, Sequence[Any]] = {"regress": (0.0, 0.5, 1.0, 2.5), "ctc": ("a", "a b")}
    sample = samples.get(task.objective, range(len(task.label_names)))
    known = {metric.name for metric in task.metrics}
    loaded = metrics.load(arguments.metric, sample or (0, 1))
    added = [metric for metric in loaded if metric.name not in known]
    return replace(task, metrics=(*task.metrics, *added))


def find(name: str, task: Task) -> Source:
    """The files of a hub id or a folder.

    Raises:
        Refused: it cannot be reached, or has no such files.
    """
    folder = Path(name)
    is_local = folder.is_dir()
    if is_local and not (folder / "README.md").is_file():
        return _bare_files(folder, task)
    settings: dict[str, Any] = {"name": task.dataset_config, "data_dir": task.data_dir}
    path = str(folder.resolve()) if is_local else name
    if not is_local:
        settings["revision"] = task.revision
    try:
        builder = load_dataset_builder(path, **settings)
    except Exception as error:  # of whichever library finds the fault
        allowed = f"a hub id that can be reached, or a folder, with {task.dataset_config}"
        remedy = f"{near(name)}Loading raised {reason(error)}"
        raise refusal("dataset_name", name, allowed, remedy) from None
    stated = builder.config.data_files or {}
    files = {str(split): [str(path) for path in paths] for split, paths in stated.items()}
    every = list(chain(*files.values()))

    def load() -> DatasetDict:
        if is_local or not Path(builder.cache_dir).exists():  # a hub's files are looked at once
            # `datasets` reads all splits with the features of the card, or of the first file.
            footers([file for file in every if file.endswith(".parquet")], builder.info.features)
        if is_local:
            settings["cache_dir"] = str(cache([*map(Path, every), folder / "README.md"]))
        return load_dataset(path, **settings)

    return Source(files, features=builder.info.features, load=load)


def _own_files(paths: dict[str, str], task: Task | None, arguments: SourceArguments) -> Source:
    """The files that flags name, by the task's splits, or by the flags' names."""
    if task is None:
        flags = ("text_column_names", "text_column", "text_column_name")
        named = [getattr(arguments, flag, None) or () for flag in flags]
        texts = [[x] if isinstance(x, str) else x for x in named]
        columns = [*TEXT_NAMES, *(column for each in texts for column in each)]
        return Source({split: [path] for split, path in paths.items()}, columns)
    others = {"validation": task.validation_splits, "test": task.test_splits}
    names = {"train": task.train_split} | {x: of[0].name for x, of in others.items() if of}
    if missing := paths.keys() - names:
        allowed = f"None with task {task.name}, which has no such split"
        raise refusal("test_file", paths[missing.pop()], allowed, "Drop the flag.")
    return Source({names[x]: [path] for x, path in paths.items()}, task.text_columns)


def _bare_files(folder: Path, task: Task) -> Source:
    """The files of each split of a folder of the hub's layout that lacks the card with their names.

    `datasets` then guesses names, and takes MNLI's two validation splits for one. Both layouts of
    the hub are known: `<config>/<split>-00000-of-00001.parquet`, and that of its conversions,
    `<config>/<split>/0000.parquet`.
    """
    root = folder / (task.data_dir or task.dataset_config or "")
    splits = [task.train_split, *(s.name for s in (*task.validation_splits, *task.test_splits))]
    files = {
        split: sorted(
            str(path)
            for pattern in (f"{split}[-.]*", f"{split}/*")
            for path in root.glob(pattern)
            if path.suffix.lower() in READERS
        )
        for split in splits
    }
    if not any(files.values()):
        allowed = f"a folder with {root}/<split>-* or /<split>/*, {', '.join(READERS)}"
        remedy = "Check the path. A folder of images is given as train_dir or validation_dir."
        raise refusal("dataset_name", str(folder), allowed, remedy)
    return Source({split: paths for split, paths in files.items() if paths}, task.text_columns)


def _read(split: str, files: Sequence[str], source: Source) -> Dataset:
    readers = {READERS.get(Path(file).suffix.lower(), "") for file in files}
    if len(readers) > 1 or "" in readers:
        allowed = f"files of one format: {', '.join(READERS)}"
        raise refusal(f"the data of split {split!r}", list(files), allowed, "Convert them.")
    (reader,) = readers
    is_local = "://" not in files[0]
    paths = [Path(file).resolve() for file in files] if is_local else []
    names = list(map(str, paths or files))
    if reader == "parquet":
        footers(names, source.features)
    for path in paths if reader != "parquet" else ():
        with path.open(encoding="utf-8-sig") as stream:  # Arrow would read other bytes as they are
            if reader == "json" and stream.read(64).lstrip().startswith("null"):
                raise ValueError("it begins with null, at which Arrow's reader ends the process")
            stream.seek(0)
            if any("\0" in line for line in stream):
                raise ValueError("it has NUL bytes, as text in UTF-16 has; UTF-8 is needed")
    if reader == "csv":
        frames = [_csv(path, source.text) for path in paths]
        return Dataset.from_pandas(pd.concat(frames, ignore_index=True), preserve_index=False)
    options: dict[str, Any] = {"cache_dir": str(cache(paths))} if is_local else {}
    if reader == "text":
        options |= {"keep_linebreaks": True, "encoding": "utf-8-sig"}
    rows = load_dataset(reader, data_files={split: names}, split=split, **options)
    return rows if source.features is None else rows.cast(source.features)


def _csv(path: Path, text: Sequence[str]) -> pd.DataFrame:
    """The cells as they were written: only an empty one is missing."""
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        # pandas would join rows behind a stray quote, fill short rows, and number equal names.
        rows = csv.reader(stream, strict=True)
        header = next(filter(None, rows), [])
        names = list(filter(None, header))
        if len(set(names)) < len(names) or any(len(row) not in (0, len(header)) for row in rows):
            what = "a name for each column is needed, each name once, and a cell for each name"
            raise ValueError(f"{what}; line {rows.line_num}")
    return pd.read_csv(
        path,
        dtype=dict.fromkeys(text, "string"),
        dtype_backend="numpy_nullable",  # a column of integers stays one where a cell is missing
        low_memory=False,  # one type a column
        encoding="utf-8-sig",
        keep_default_na=False,
        na_values=[""],
        skip_blank_lines=len(header) > 1,  # of one column it is a row whose cell is empty
    )


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
        with reading([name]), fsspec.open(name) as stream:
            return pq.read_metadata(stream)

    with ThreadPoolExecutor(THREADS) as pool:
        by_file = dict(zip(files, pool.map(footer, files), strict=True))
    schemas = {name: each.schema.to_arrow_schema() for name, each in by_file.items()}
    features = {name: Features.from_arrow_schema(schema) for name, schema in schemas.items()}
    first: dict[str, tuple[str, list[str]]] = {}
    for name, columns in ({"the card": stated or Features()} | features).items():
        for column, feature in columns.items():
            if (names := getattr(feature, "names", None)) is None:
                continue  # no ClassLabel
            source, expected = first.setdefault(column, (name, names))
            if names != expected:
                what = f"the order of the classes of column {column} in {name}"
                allowed = f"that of {source}: {joined(expected)}"
                remedy = "Write both with the same names in the same order (datasets' cast_column)."
                raise refusal(what, Plain(joined(names)), allowed, remedy)
    return by_file


def origin(
    rows: Mapping[str, Dataset],
    digests: Mapping[str, str] | None = None,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """Describe each split: its rows, a digest of their content, the bytes of each local file.

    Of ``classes``, the names of ``labels``, how many rows each has.
    """
    described = {}
    for name, split in rows.items():
        files = split.info.download_checksums or {}
        described[name] = {
            "rows": len(split),
            "digest": _digest(split) if digests is None else digests[name],
            "files": {path: file["num_bytes"] for path, file in files.items()},
        }
        if classes and "labels" in split.column_names:
            labels = split.with_format("numpy")["labels"][:]
            counts = np.bincount(labels, minlength=len(classes)).tolist()
            described[name]["labels"] = dict(zip(classes, counts, strict=True))
    return described


def _digest(split: Dataset) -> str:
    total = hashlib.sha256(",".join(split.column_names).encode())
    for part in split.with_format("pandas").iter(ROWS):
        # Lists cannot be hashed by pandas; their text can.
        plain = part.apply(lambda column: column.map(str) if column.dtype == object else column)
        total.update(hash_pandas_object(plain, index=False).to_numpy().tobytes())
    return total.hexdigest()[:DIGITS]


def files_of(split: Dataset) -> list[Path]:
    """The local files that a split was read from."""
    return [Path(path) for path in split.info.download_checksums or {}]


def numbered(rows: DatasetDict) -> DatasetDict:
    """The rows with the column `ROW`, so that `row_name` finds them once some are taken out."""
    return DatasetDict({n: split.add_column(ROW, range(len(split))) for n, split in rows.items()})


def row_name(name: str, split: Dataset, index: int) -> str:
    """Name a row by its number, from 1, in its file, or else in its split."""
    number = (split[ROW][index] if ROW in split.column_names else index) + 1
    files = files_of(split)
    if len(files) == 1:
        return f"row {number} of {files[0]}"
    among = f" ({len(files)} files in {files[0].parent})" if files else ""
    return f"row {number} of split {name!r}{among}"


def content(cell: Mapping[str, Any] | None) -> bytes:
    """The bytes of an image's or a recording's file, stored as bytes or as a path.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    if cell is None or cell["bytes"] is cell["path"] is None:
        raise FileNotFoundError("The cell is empty")
    return Path(cell["path"]).read_bytes() if cell["bytes"] is None else cell["bytes"]
