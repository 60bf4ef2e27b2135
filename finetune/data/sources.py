"""Where rows come from: a hub id, a local folder, own files, or a task's builder.

`datasets` caches a folder with a card under the folder's name and its card alone: another folder of
that name, or the same folder after its files have changed, would give the rows of the first one.
So local data are cached in a folder of their own, named by the files' paths and contents.
"""

from __future__ import annotations

import csv
import hashlib
import sys
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
from datasets import ClassLabel, Dataset, DatasetDict, Features, load_dataset, load_dataset_builder
from datasets.table import InMemoryTable
from pandas.util import hash_pandas_object

import tasks
from finetune.data.wording import Words, cell, joined, reason, refusal
from finetune.errors import Refused, near
from finetune.settings.groups import SourceArguments
from tasks import Split, Task, metrics

READERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
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
MOST_BYTES = 1 << 30  # of a csv file that are parsed as one block, with one type a column
THREADS = 16  # files that are read at once
# Reads the files of each split, given the features that their source states and the task, where
# these are known.
Take = Callable[[Mapping[str, Sequence[str]], Features | None, Task | None], DatasetDict]


def read(
    arguments: SourceArguments,
    family: str,
    own_task: Callable[[DatasetDict | None], Task | None],
    readers: Mapping[str, str] = READERS,
    take: Take | None = None,
) -> tuple[Task, DatasetDict]:
    """Read the task, and all rows of its source as they are.

    Args:
        arguments: the flags.
        family: of the task.
        own_task: makes the task of own files from their rows; from None that of ``dataset_name``,
            or None where such a data set needs a task.
        readers: of own files, by their suffixes.
        take: reads the files instead of `datasets`.

    Raises:
        ValueError: the task is not known, or the source cannot be read.
    """
    flags = {f"{split}_file": split for split in ("train", "validation", "test")}
    own = {flag: path for flag in flags if (path := getattr(arguments, flag)) is not None}
    name, task = arguments.dataset_name, None
    if own and name is not None:
        raise refusal("dataset_name", name, "none beside own files", "Drop one of the two flags.")
    if arguments.task_name is not None:
        task = tasks.get(arguments.task_name, family)
    elif name is not None:
        task = own_task(None)
    if task is not None:
        task = with_flags(task, arguments)
    if task is not None and not own:
        return task, read_source(name, task, take)
    if not own:
        remedy = "Choose one, or give train_file and validation_file."
        raise refusal("task_name", None, ", ".join(tasks.names(family)), remedy)
    if task is not None:
        others = {"validation": task.validation_splits, "test": task.test_splits}
        names = {split: known[0].name for split, known in others.items() if known}
        flags = {flag: {**names, "train": task.train_split}.get(x, x) for flag, x in flags.items()}
        text: Sequence[str] = task.text_columns
    else:
        flagged = (getattr(arguments, flag, None) for flag in ("text_column", "text_column_name"))
        named = getattr(arguments, "text_column_names", None) or ()
        text = (*named, *filter(None, flagged), *TEXT_NAMES)
    files = {flags[flag]: [path] for flag, path in own.items()}
    reader = _reader(own, readers)
    rows = take(files, None, task) if take else read_files(reader, files, text)
    if task is None:
        task = own_task(rows)
        assert task is not None
        task = with_flags(task, arguments)
    return task, rows


def with_flags(task: Task, arguments: SourceArguments) -> Task:
    """The task with what the flags change of it, measured by the metrics that they name too.

    Raises ``ValueError`` for too few columns of text, or a metric that cannot be loaded.
    """
    values = {name: value for name, value in vars(arguments).items() if value is not None}
    changes: dict[str, Any] = {field: values[x] for x, field in FIELDS.items() if x in values}
    if (texts := changes.get("text_columns")) is not None:
        texts = changes["text_columns"] = (texts,) if isinstance(texts, str) else tuple(texts)
        if len(texts) != len(task.text_columns):
            allowed = f"a column for each of task {task.name}: {joined(task.text_columns)}"
            raise refusal("text_column_names", texts, allowed, "Name as many.")
    if (name := values.get("eval_split_name")) is not None:
        changes["validation_splits"] = (Split(name),)
    task = replace(task, **changes)
    if task.label_column in task.text_columns:
        allowed = f"columns of text other than the label's, {task.label_column}"
        raise refusal("text_column_names", list(task.text_columns), allowed, "Name others.")
    return with_metrics(task, arguments.metric)


def with_metrics(task: Task, names: Sequence[str] | None) -> Task:
    """The task, measured by these metrics too.

    Raises ``ValueError`` for a metric that cannot be loaded.
    """
    if not names:
        return task
    known = {metric.name for metric in task.metrics}
    samples: dict[str, Sequence[Any]] = {"regress": (0.0, 0.5, 1.0, 2.5), "ctc": ("a", "a b")}
    sample = samples.get(task.objective, range(len(task.label_names)))
    loaded = metrics.load(names, sample or (0, 1))
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
    if folder.is_dir() and not (folder / "README.md").is_file():
        files = _bare_files(folder, task)
        reader = _reader({path: path for paths in files.values() for path in paths}, READERS)
        return take(files, None, task) if take else read_files(reader, files, task.text_columns)
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
    stated = builder.config.data_files or {}
    files = {str(split): [str(path) for path in paths] for split, paths in stated.items()}
    if take is not None:
        return take(files, builder.info.features, task)
    every = [path for paths in files.values() for path in paths]
    if is_local or not Path(builder.cache_dir).exists():  # a hub's files are looked at once
        # `datasets` reads all splits with the features of the card, or of the first file.
        footers([path for path in every if path.endswith(".parquet")], builder.info.features)
    if not is_local:
        return load_dataset(source, **settings)
    try:
        kept = cache([*map(Path, every), folder / "README.md"])
        return with_files(load_dataset(source, **settings, cache_dir=str(kept)), files)
    except Exception as error:
        raise unreadable(every, error) from None


def _bare_files(folder: Path, task: Task) -> dict[str, list[str]]:
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
    return {split: paths for split, paths in files.items() if paths}


def _reader(files: Mapping[str, str], readers: Mapping[str, str]) -> str:
    """The one reader of these files, by the names of their arguments."""
    kinds = {readers.get(Path(path).suffix.lower(), "") for path in files.values()}
    if len(kinds) > 1 or "" in kinds:
        allowed = f"files of one format: {', '.join(readers)}"
        raise refusal(", ".join(files), list(files.values()), allowed, "Convert them.")
    return kinds.pop()


def read_files(
    reader: str, files: Mapping[str, Sequence[str]], text: Sequence[str] = ()
) -> DatasetDict:
    """Read each split by itself: a test split may have other columns, as without labels.

    Args:
        reader: csv, json, parquet or text.
        files: of each split.
        text: columns of a csv file that hold text whatever is written in them.

    Raises:
        Refused: a file cannot be read, or a split has no rows.
    """
    rows = DatasetDict()
    for split, names in files.items():
        paths = [Path(name).resolve() for name in names]
        try:
            rows[split] = _read(reader, split, paths, text)
        except Refused:
            raise
        except Exception as error:  # of whichever library finds the fault
            raise unreadable(paths, error) from None
        if not len(rows[split]):
            raise refusal(f"the table in {paths[0]}", Words("empty"), "a row or more", "Add rows.")
    return with_files(rows, files)


def _read(reader: str, split: str, paths: list[Path], text: Sequence[str]) -> Dataset:
    names = list(map(str, paths))
    if reader == "parquet":
        footers(names)
    else:
        for path in paths:
            _check_encoding(path)
    if reader == "csv":
        tables = [_csv_table(path, text) for path in paths]
        return Dataset(InMemoryTable(pa.concat_tables(tables, promote_options="default")))
    options = {"keep_linebreaks": True, "encoding": "utf-8-sig"} if reader == "text" else {}
    kept = str(cache(paths))
    return load_dataset(reader, data_files={split: names}, split=split, cache_dir=kept, **options)


def with_files(rows: DatasetDict, files: Mapping[str, Sequence[str]]) -> DatasetDict:
    """The rows, which know from now on the local files of their split."""
    for name, split in rows.items():
        paths = [Path(path).resolve() for path in files.get(name, ())]
        split.info.download_checksums = {
            str(path): {"num_bytes": path.stat().st_size, "checksum": None} for path in paths
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
        by_file = dict(zip(files, pool.map(footer, files), strict=True))
    schemas = {name: each.schema.to_arrow_schema() for name, each in by_file.items()}
    features = {name: Features.from_arrow_schema(schema) for name, schema in schemas.items()}
    first: dict[str, tuple[str, list[str]]] = {}
    for name, columns in ({"the card": stated or Features()} | features).items():
        for column, feature in columns.items():
            if not isinstance(feature, ClassLabel):
                continue
            source, expected = first.setdefault(column, (name, feature.names))
            if feature.names != expected:
                what = f"the order of the classes of column {column} in {name}"
                allowed = f"that of {source}: {joined(expected)}"
                remedy = "Write both with the same names in the same order (datasets' cast_column)."
                raise refusal(what, Words(joined(feature.names)), allowed, remedy)
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


def unreadable(paths: Sequence[str | Path], error: Exception) -> Refused:
    """The error of files that cannot be read."""
    what = f"the data in {', '.join(map(str, paths[:3]))}{' ...' * (len(paths) > 3)}"
    remedy = f"Mend or convert them. Reading raised {reason(error)}"
    return refusal(
        what, Words("unreadable"), "whole files, whose columns have one type each", remedy
    )


def _check_encoding(path: Path) -> None:
    """Raise ``Refused`` for a line that is not UTF-8, or has the NUL bytes of UTF-16.

    And for a json file that begins with null, at which Arrow's reader ends the process.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode()
                is_text = b"\0" not in line
            except UnicodeDecodeError:
                is_text = False
            if number == 1 and line.startswith(b"null") and "json" in path.suffix:
                raise refusal(f"line 1 of {path}", cell(line), "a JSON object", "Remove the line.")
            if not is_text:
                remedy = f"Convert it: iconv -f WINDOWS-1252 -t UTF-8 {path.name} (or -f UTF-16)."
                raise refusal(f"line {number} of {path}", cell(line), "text in UTF-8", remedy)


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
