"""Where rows come from: a hub id, a local folder, own files, or a task's builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import ClassLabel, DatasetDict, load_dataset

import tasks
from finetune.data import local
from finetune.errors import refusal
from finetune.settings.groups import SourceArguments
from tasks import Task, metrics

READERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
TEXT_READERS = READERS | {".txt": "text"}
READER_OPTIONS: dict[str, dict[str, Any]] = {"text": {"keep_linebreaks": True}}


def read(
    arguments: SourceArguments,
    family: str,
    *,
    readers: Mapping[str, str] = READERS,
    infer: Callable[[DatasetDict, str], Task] | None = None,
    adapt: Callable[[Task], Task] = lambda task: task,
) -> tuple[Task, DatasetDict]:
    """The task, and all rows of its source as they are.

    ``readers`` are the kinds of own files that the family takes; ``infer`` makes the task of own
    files from their rows and the family, by default a classification or regression; ``adapt``
    changes a known task as the flags ask, before it is read.

    Raises ``ValueError`` if the task is not known, or the source cannot be read.
    """
    files = _files(arguments, readers)
    if files and arguments.dataset_name is not None:
        raise refusal(
            "dataset_name",
            arguments.dataset_name,
            "none beside own files",
            "Drop one of the two flags.",
        )
    if arguments.task_name is not None:
        task = with_metrics(adapt(tasks.get(arguments.task_name, family)), arguments.metric)
        rows = (
            _read_files(files, task, readers)
            if files
            else read_source(arguments.dataset_name, task)
        )
    elif files:
        rows = _read_files(files, None, readers)
        task = with_metrics((infer or _infer_task)(rows, family), arguments.metric)
    else:
        raise refusal(
            "task_name",
            None,
            ", ".join(tasks.names(family)),
            "Choose one, or give train_file and validation_file.",
        )
    return task, rows


def with_metrics(task: Task, asked: Sequence[str] | None) -> Task:
    """The task, measured by these metrics too.

    Raises ``ValueError`` for a metric that cannot be loaded.
    """
    if not asked:
        return task
    known = {metric.name for metric in task.metrics}
    sample = (0.0, 1.0, 2.0, 3.0) if task.objective == "regress" else range(len(task.label_names))
    loaded = metrics.load(asked, sample or (0, 1))
    added = [metric for metric in loaded if metric.name not in known]
    return replace(task, metrics=(*task.metrics, *added))


def label_text(value: Any) -> str:
    """A label as a name: of a boolean 0 or 1, as in the data sets that have them."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _files(arguments: SourceArguments, readers: Mapping[str, str]) -> dict[str, str]:
    given = {
        "train": arguments.train_file,
        "validation": arguments.validation_file,
        "test": arguments.test_file,
    }
    for split, path in given.items():
        if path is None:
            continue
        if Path(path).suffix not in readers or not Path(path).is_file():
            raise refusal(
                f"{split}_file",
                path,
                f"an existing file, {', '.join(readers)}",
                "Check the path, or make the file.",
            )
        if Path(path).stat().st_size == 0:
            raise refusal(f"{split}_file", path, "a file with rows; it is empty", "Add rows.")
    return {split: path for split, path in given.items() if path is not None}


def _read_files(
    files: dict[str, str], task: Task | None, readers: Mapping[str, str]
) -> DatasetDict:
    """The files as splits; a task's first validation and test splits take their files' rows."""
    names = {split: split for split in files}
    if task is not None:
        names["train"] = task.train_split
        names["validation"] = task.validation_splits[0].name
        names["test"] = task.test_splits[0].name
    kinds = {readers[Path(path).suffix] for path in files.values()}
    reader = _only(kinds, "train_file, validation_file, test_file", list(files.values()))
    named = {names[split]: [path] for split, path in files.items()}
    return local.read_files(reader, named, **READER_OPTIONS.get(reader, {}))


def read_source(dataset_name: str | None, task: Task) -> DatasetDict:
    """The rows of ``dataset_name``, a hub id or a folder, or of the task's own source.

    Raises ``ValueError`` if it cannot be read.
    """
    if dataset_name is None and task.builder is not None:
        return task.builder()
    source = dataset_name or task.dataset_name or ""
    folder = Path(source)
    if folder.is_dir() and not (folder / "README.md").is_file():
        return _read_bare_folder(folder, task)
    settings: dict[str, Any] = {"name": task.dataset_config, "data_dir": task.data_dir}
    try:
        if folder.is_dir():
            return local.read_folder(folder, **settings)
        return load_dataset(source, revision=task.revision, **settings)
    except (ConnectionError, FileNotFoundError, ValueError) as error:
        raise refusal(
            "dataset_name",
            source,
            f"a hub id that can be reached, or a local folder, with {settings}",
            f"Loading said: {error}",
        ) from error


def _read_bare_folder(folder: Path, task: Task) -> DatasetDict:
    """The splits of a folder of the hub's layout that lacks the card with their names.

    `datasets` then guesses names, and takes MNLI's two validation splits for one. Both layouts of
    the hub are known: `<config>/<split>-00000-of-00001.parquet`, and that of its conversions,
    `<config>/<split>/0000.parquet`.
    """
    place = folder / (task.data_dir or task.dataset_config or "")
    splits = [task.train_split, *(s.name for s in (*task.validation_splits, *task.test_splits))]
    files = {
        split: sorted(
            str(path)
            for pattern in (f"{split}[-.]*", f"{split}/*")
            for path in place.glob(pattern)
            if path.suffix in READERS
        )
        for split in splits
    }
    files = {split: paths for split, paths in files.items() if paths}
    if not files:
        raise refusal(
            "dataset_name",
            str(folder),
            f"a folder with {place}/<split>-* or {place}/<split>/*, {', '.join(READERS)}",
            "Check the path, or choose another task_name.",
        )
    readers = {READERS[Path(path).suffix] for paths in files.values() for path in paths}
    return local.read_files(_only(readers, "dataset_name", str(folder)), files)


def _only(readers: set[str], argument: str, value: object) -> str:
    if len(readers) > 1:
        raise refusal(argument, value, "files of one format", "Convert them to one of these.")
    return readers.pop()


def _infer_task(rows: DatasetDict, family: str) -> Task:
    """A task from a table: the column ``label``, and of the others one or two with text."""
    features = rows["train"].features if "train" in rows else {}
    texts = [n for n, f in features.items() if n != "label" and "string" in str(f.dtype)][:2]
    if "label" not in features or not texts:
        raise refusal(
            "train_file",
            f"a table with the columns {', '.join(features)}" if features else None,
            "a file with the column label and one or two columns of text",
            "Rename its columns, or choose a task_name.",
        )
    is_score = "float" in features["label"].dtype
    values = [] if is_score else rows["train"].unique("label")
    if isinstance(features["label"], ClassLabel):
        names = list(features["label"].names)
    else:
        names = [label_text(value) for value in sorted(set(values) - {None})]
    return Task(
        name="own_files",
        family=family,
        objective="regress" if is_score else "classify",
        text_columns=tuple(texts),
        label_names=tuple(names),
        metrics=(metrics.PEARSON, metrics.SPEARMANR) if is_score else (metrics.ACCURACY,),
        main_metric="pearson" if is_score else "accuracy",
        submits_names=not is_score,
        builder=lambda: rows,
    )
