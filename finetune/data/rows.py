"""Rows of a task: the splits that are needed, checked, cut to their limits, with their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from datasets import Dataset, DatasetDict

from finetune.data import columns, labels, local, sources
from finetune.data.wording import Words, listed, paths, refusal
from finetune.errors import Refused
from finetune.settings.groups import DataArguments, SourceArguments
from tasks import Task, metrics


def load(arguments: DataArguments, family: str, predict: bool) -> tuple[Task, DatasetDict]:
    """The task and its checked rows; with ``predict`` the test splits are needed too.

    Raises ``ValueError`` if the source, a split or a column is missing, or a label is out of range.
    """
    infer, adapt = partial(_own_task, arguments, family), partial(_with_columns, arguments)
    task, rows = sources.read(arguments, family, infer=infer, adapt=adapt)
    return task, checked(task, rows, arguments, predict)


def _with_columns(arguments: DataArguments, task: Task) -> Task:
    """The task with the columns that the flags name."""
    texts = tuple(arguments.text_column_names or task.text_columns)
    if len(texts) != len(task.text_columns):
        allowed = f"a column for each of task {task.name}: {listed(task.text_columns)}"
        raise refusal("text_column_names", texts, allowed, "Name as many.")
    label = arguments.label_column_name or task.label_column
    return replace(task, text_columns=texts, label_column=label)


def _own_task(arguments: DataArguments, family: str, rows: DatasetDict) -> Task:
    """The task of own files: a column of labels, and the text columns that are named.

    The names can be left out where there is one column of text beside the column ``label``.
    """
    label = arguments.label_column_name or "label"
    features = rows["train"].features if "train" in rows else {}
    kinds = {name: columns.kind(feature) for name, feature in features.items()}
    found = [n for n, kind in kinds.items() if n != label and kind in columns.TEXT_KINDS]
    texts = arguments.text_column_names or found
    if label not in features or (len(texts) != 1 and texts is found):
        raise _unclear(rows, label, kinds, found)
    names = labels.own_names("train", rows["train"], label)
    is_score = names is None
    return Task(
        name=labels.OWN_FILES,
        family=family,
        objective="regress" if is_score else "classify",
        text_columns=tuple(texts),
        label_column=label,
        label_names=names or (),
        metrics=(metrics.PEARSON, metrics.SPEARMANR) if is_score else (metrics.ACCURACY,),
        main_metric="pearson" if is_score else "accuracy",
        submits_names=not is_score,
        builder=lambda: rows,
    )


def _unclear(
    rows: DatasetDict, label: str, kinds: Mapping[str, str], texts: Sequence[str]
) -> Refused:
    """The refusal of own files whose columns do not say what they are for."""
    known = listed(f"{name} ({kind})" for name, kind in kinds.items())
    own = local.files_of(rows["train"]) if "train" in rows else []
    remedy = (
        "Name the columns: --text_column_names, --label_column_name. The cells of a csv file are "
        "parted by commas."
    )
    if label in kinds and len(texts) > 1:
        pair = ",".join(texts[:2])
        remedy = (
            f"Name the one to read, --text_column_names {texts[-1]}, or the two of a pair, "
            f"--text_column_names {pair}."
        )
    return refusal(
        " ".join(("train_file", *map(str, own))),
        Words(f"a table with the columns {known}") if kinds else None,
        f"a file with the column {label} of labels and one column of text (string), or one or two "
        f"columns of text that are named; it has {len(texts)}",
        remedy,
    )


def checked(
    task: Task, rows: DatasetDict, arguments: SourceArguments, predict: bool
) -> DatasetDict:
    """The needed splits, cut to their limits: input columns, and ``labels`` where not hidden."""
    needed = needed_splits(task, predict)
    check_splits(task, rows, needed)
    limits = sample_limits(arguments, task)
    return DatasetDict({n: _labelled(task, n, rows[n], limits[n]) for n in needed})


def needed_splits(task: Task, predict: bool) -> list[str]:
    """Names of the splits that a run reads: training, validation, and with ``predict`` test."""
    tests = task.test_splits if predict else ()
    return [task.train_split, *(split.name for split in (*task.validation_splits, *tests))]


def check_splits(task: Task, rows: DatasetDict, needed: Sequence[str]) -> None:
    """Raise ``ValueError`` unless each needed split is there, with its columns and a row."""
    hidden = {split.name for split in task.test_splits}
    for name in needed:
        if name not in rows:
            raise refusal(
                f"the data of task {task.name}{_source(rows)}",
                f"without split {name!r}",
                f"data with the splits {', '.join(needed)}; it has {listed(rows) or 'none'}",
                "Add the split, or choose another task_name or dataset_name.",
            )
        has_labels = task.label_column and name not in hidden
        wanted = (*task.input_columns, *((task.label_column,) if has_labels else ()))
        what = f"split {name!r} of task {task.name}"
        known = rows[name].column_names
        if len(rows[name]) == 0:
            what += f" in {files[0]}" if (files := local.files_of(rows[name])) else ""
            raise refusal(what, [], "a row or more", "Add rows.")
        for column in wanted:
            if column not in known:
                raise refusal(
                    f"{what}{_source({name: rows[name]})}",
                    f"without column {column!r}",
                    f"rows with {', '.join(wanted)}; it has {listed(known)}",
                    _remedy_for_columns(known),
                )


def _source(rows: Mapping[str, Dataset]) -> str:
    """Which local files the splits were read from, as the end of a phrase."""
    known = [file for split in rows.values() for file in local.files_of(split)]
    return f" in {paths(dict.fromkeys(known))}" if known else ""


def _remedy_for_columns(known: Sequence[str]) -> str:
    remedy = "Rename its columns, or choose another task_name."
    if len(known) == 1 and any(sign in known[0] for sign in ";\t|"):
        return f"{remedy} The cells of a csv file are parted by commas."
    return remedy


def sample_limits(arguments: SourceArguments, task: Task) -> dict[str, int | None]:
    """How many rows of each split are wanted, by its name; None is all."""
    limits = {split.name: arguments.max_predict_samples for split in task.test_splits}
    limits |= {split.name: arguments.max_eval_samples for split in task.validation_splits}
    return limits | {task.train_split: arguments.max_train_samples}


def first_rows(rows: Dataset, limit: int | None) -> Dataset:
    """The first so many rows, or all of them."""
    return rows if limit is None else rows.select(range(min(limit, len(rows))))


def with_validation(task: Task, rows: DatasetDict, share: float | None) -> DatasetDict:
    """The rows; where a share is asked for, the validation split is cut off the training rows."""
    if share is None:
        return rows
    name = task.validation_splits[0].name
    if name in rows:
        raise refusal(
            "validation_split_percentage",
            share,
            f"None with data that has {name}",
            "Drop the flag.",
        )
    check_splits(task, rows, [task.train_split])
    train = rows[task.train_split]
    first = len(train) - round(len(train) * share / 100)
    if not 0 < first < len(train):
        raise refusal(
            "validation_split_percentage",
            share,
            f"a share that leaves rows on both sides of {len(train)}",
            "Give another share, or a validation_file.",
        )
    parts = {
        task.train_split: train.select(range(first)),
        name: train.select(range(first, len(train))),
    }
    return DatasetDict({**rows, **parts})


def _labelled(task: Task, name: str, rows: Dataset, limit: int | None) -> Dataset:
    """The first rows' input columns, and ``labels`` as integers or scores, unless hidden."""
    used = first_rows(rows, limit)
    columns.check_text(task, name, used)
    inputs = used.select_columns(list(task.input_columns))
    is_test = name in {split.name for split in task.test_splits}
    found = labels.numbers(task, name, used, may_hide=is_test)
    if name == task.train_split and found is not None:
        labels.check_classes(task, name, rows)
        labels.warn_of_one_class(task, found, len(rows))
    return inputs if found is None else inputs.add_column("labels", found)
