"""Where rows come from: a hub id, a local folder, own files, or a task's builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import DatasetDict, Features, load_dataset, load_dataset_builder

import tasks
from finetune.data import files, local
from finetune.data.wording import reason, refusal
from finetune.errors import Refused, near
from finetune.settings.groups import SourceArguments
from tasks import Task, metrics

# What reads the files of each split, by its name, with the features that their source states and
# the task, where these are known.
Take = Callable[[Mapping[str, Sequence[str]], Features | None, Task | None], DatasetDict]
READERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
TEXT_READERS = READERS | {".txt": "text"}


def read(
    arguments: SourceArguments,
    family: str,
    *,
    infer: Callable[[DatasetDict], Task],
    readers: Mapping[str, str] = READERS,
    named: Callable[[str], Task] | None = None,
    adapt: Callable[[Task], Task] = lambda task: task,
    take: Take | None = None,
) -> tuple[Task, DatasetDict]:
    """The task, and all rows of its source as they are.

    ``infer`` makes the task of own files from their rows; ``readers`` are the kinds of own files
    that the family takes; ``named`` makes that of a data set without a task, where the family takes
    such; ``adapt`` changes a known task as the flags ask, before it is read; ``take`` reads the
    files instead of `datasets`.

    Raises ``ValueError`` if the task is not known, or the source cannot be read.
    """
    own = _files(arguments, readers)
    if own and arguments.dataset_name is not None:
        raise refusal(
            "dataset_name",
            arguments.dataset_name,
            "none beside own files",
            "Drop one of the two flags.",
        )
    if arguments.task_name is not None:
        task = with_metrics(adapt(tasks.get(arguments.task_name, family)), arguments.metric)
        name = arguments.dataset_name
        rows = _read_files(own, task, readers, take) if own else read_source(name, task, take)
    elif own:
        rows = _read_files(own, None, readers, take)
        task = with_metrics(infer(rows), arguments.metric)
    elif named is not None and arguments.dataset_name is not None:
        task = with_metrics(adapt(named(arguments.dataset_name)), arguments.metric)
        rows = read_source(arguments.dataset_name, task, take)
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
    samples: dict[str, Sequence[Any]] = {"regress": (0.0, 0.5, 1.0, 2.5), "ctc": ("a", "a b")}
    sample = samples.get(task.objective, range(len(task.label_names)))
    loaded = metrics.load(asked, sample or (0, 1))
    added = [metric for metric in loaded if metric.name not in known]
    return replace(task, metrics=(*task.metrics, *added))


def _files(arguments: SourceArguments, readers: Mapping[str, str]) -> dict[str, str]:
    given = {
        "train": arguments.train_file,
        "validation": arguments.validation_file,
        "test": arguments.test_file,
    }
    for split, path in given.items():
        if path is None:
            continue
        files.check(f"{split}_file", path, readers)
    return {split: path for split, path in given.items() if path is not None}


def _read_files(
    own: dict[str, str], task: Task | None, readers: Mapping[str, str], take: Take | None = None
) -> DatasetDict:
    """The files as splits; a task's first validation and test splits take their files' rows."""
    names = {split: split for split in own}
    if task is not None:
        names["train"] = task.train_split
        names["validation"] = task.validation_splits[0].name
        names["test"] = task.test_splits[0].name
    kinds = {str(files.kind(path, readers)) for path in own.values()}
    reader = _only(kinds, "train_file, validation_file, test_file", list(own.values()))
    named = {names[split]: [path] for split, path in own.items()}
    if take is not None:
        return take(named, None, task)
    return local.read_files(reader, named, task.text_columns if task else ())


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
        found = _bare_files(folder, task)
        return take(found, None, task) if take else _read_bare_folder(folder, task, found)
    if folder.is_file():
        remedy = "It is a file: give it as train_file, validation_file or test_file."
        raise refusal("dataset_name", source, "a hub id, or a local folder of its layout", remedy)
    settings: dict[str, Any] = {"name": task.dataset_config, "data_dir": task.data_dir}
    try:
        if take is not None:
            return _taken(
                take, str(folder.resolve()) if folder.is_dir() else source, task, settings
            )
        if folder.is_dir():
            return local.read_folder(folder, task.text_columns, **settings)
        return load_dataset(source, revision=task.revision, **settings)
    except Refused:
        raise
    except Exception as error:  # of whichever library finds the fault
        raise refusal(
            "dataset_name",
            source,
            f"a hub id that can be reached, or a local folder, with {settings}",
            f"{near(source)}Loading said: {reason(error)}",
        ) from None


def _taken(take: Take, source: str, task: Task, settings: Mapping[str, Any]) -> DatasetDict:
    """What ``take`` reads of the files that a hub's data set, or a folder with a card, names."""
    builder = load_dataset_builder(source, revision=task.revision, **settings)
    found = builder.config.data_files or {}
    return take(
        {str(n): list(map(str, paths)) for n, paths in found.items()}, builder.info.features, task
    )


def _bare_files(folder: Path, task: Task) -> dict[str, list[str]]:
    """The files of each split of a folder of the hub's layout that lacks the card with their names.

    `datasets` then guesses names, and takes MNLI's two validation splits for one. Both layouts of
    the hub are known: `<config>/<split>-00000-of-00001.parquet`, and that of its conversions,
    `<config>/<split>/0000.parquet`.
    """
    place = folder / (task.data_dir or task.dataset_config or "")
    splits = [task.train_split, *(s.name for s in (*task.validation_splits, *task.test_splits))]
    found = {
        split: sorted(
            str(path)
            for pattern in (f"{split}[-.]*", f"{split}/*")
            for path in place.glob(pattern)
            if files.kind(path, READERS) is not None
        )
        for split in splits
    }
    found = {split: paths for split, paths in found.items() if paths}
    if not found:
        raise refusal(
            "dataset_name",
            str(folder),
            f"a folder with {place}/<split>-* or {place}/<split>/*, {', '.join(READERS)}",
            "Check the path, or choose another task_name.",
        )
    return found


def _read_bare_folder(folder: Path, task: Task, found: Mapping[str, list[str]]) -> DatasetDict:
    every = [path for paths in found.values() for path in paths]
    for path in every:
        files.check("a file of dataset_name", path, READERS)
    readers = {READERS[Path(path).suffix.lower()] for path in every}
    return local.read_files(_only(readers, "dataset_name", str(folder)), found, task.text_columns)


def _only(readers: set[str], argument: str, value: object) -> str:
    if len(readers) > 1:
        raise refusal(argument, value, "files of one format", "Convert them to one of these.")
    return readers.pop()
