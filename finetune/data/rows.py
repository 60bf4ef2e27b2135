"""Rows of a task: the splits that are needed, checked, cut to their limits, with their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset, DatasetDict

from finetune.data import sources
from finetune.errors import refusal
from finetune.settings.groups import SourceArguments
from tasks import Task

HIDDEN_LABEL = -1


def load(arguments: SourceArguments, family: str, predict: bool) -> tuple[Task, DatasetDict]:
    """The task and its checked rows; with ``predict`` the test splits are needed too.

    Raises ``ValueError`` if the source, a split or a column is missing, or a label is out of range.
    """
    task, rows = sources.read(arguments, family)
    return task, checked(task, rows, arguments, predict)


def checked(
    task: Task, rows: DatasetDict, arguments: SourceArguments, predict: bool
) -> DatasetDict:
    """The needed splits, cut to their limits: input columns, and ``labels`` where not hidden."""
    needed = needed_splits(task, predict)
    check_splits(task, rows, needed)
    limits = sample_limits(arguments, task)
    return DatasetDict({n: _labelled(task, n, first_rows(rows[n], limits[n])) for n in needed})


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
                f"the data of task {task.name}",
                f"without split {name!r}",
                f"data with the splits {', '.join(needed)}; it has {', '.join(rows)}",
                "Add the split, or choose another task_name or dataset_name.",
            )
        has_labels = task.label_column and name not in hidden
        labels = (task.label_column,) if has_labels else ()
        for column in (*task.input_columns, *labels):
            if column not in rows[name].column_names:
                raise refusal(
                    f"split {name!r} of task {task.name}",
                    f"without column {column!r}",
                    f"rows with {', '.join((*task.input_columns, *labels))}; it has "
                    f"{', '.join(rows[name].column_names)}",
                    "Rename its columns, or choose another task_name.",
                )
        if len(rows[name]) == 0:
            raise refusal(f"split {name!r} of task {task.name}", [], "a row or more", "Add rows.")


def sample_limits(arguments: SourceArguments, task: Task) -> dict[str, int | None]:
    """How many rows of each split are wanted, by its name; None is all."""
    limits = {split.name: arguments.max_predict_samples for split in task.test_splits}
    limits |= {split.name: arguments.max_eval_samples for split in task.validation_splits}
    return limits | {task.train_split: arguments.max_train_samples}


def first_rows(rows: Dataset, limit: int | None) -> Dataset:
    """The first so many rows, or all of them."""
    return rows if limit is None else rows.select(range(min(limit, len(rows))))


def _labelled(task: Task, name: str, rows: Dataset) -> Dataset:
    """The input columns, and ``labels`` as the task's integers or scores, unless they are hidden."""
    inputs = rows.select_columns(list(task.input_columns))
    is_test = name in {split.name for split in task.test_splits}
    if is_test and (
        task.label_column not in rows.column_names
        or any(label in (HIDDEN_LABEL, None) for label in rows.unique(task.label_column))
    ):
        return inputs
    try:
        known = {value: _label(task, value) for value in rows.unique(task.label_column)}
    except ValueError as error:
        raise ValueError(f"In split {name!r}: {error}") from None
    labels: Any = [known[value] for value in rows[task.label_column]]
    return inputs.add_column("labels", labels)


def _label(task: Task, value: Any) -> int | float:
    if task.objective == "regress":
        if isinstance(value, int | float) and value == value:
            return float(value)
        allowed = "a number"
    else:
        if sources.label_text(value) in task.label_names:
            return task.label_names.index(sources.label_text(value))
        if isinstance(value, int) and 0 <= value < len(task.label_names):
            return int(value)
        allowed = f"{', '.join(task.label_names)}, or 0 to {len(task.label_names) - 1}"
    remedy = "Correct the row, or choose another task_name."
    raise refusal(f"column {task.label_column} of task {task.name}", value, allowed, remedy)
