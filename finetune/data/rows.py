"""Rows of a task: the splits that a run needs, their texts and labels checked with Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict
from sklearn.model_selection import train_test_split

from finetune.data import sources
from finetune.errors import Plain, Refused, cell, joined, refusal
from finetune.settings.groups import DataArguments, SourceArguments
from tasks import Task, metrics

TEXT = "string"  # the kind of a column of text
OWN_FILES = "own_files"
EXACT = float(2**53)  # beyond it a float holds no whole number exactly
# How programs write a missing value into csv.
MISSING = {"NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "<NA>"}
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
DIGITS = re.compile(r"[0-9]{1,9}")
HIDDEN = (None, -1, "-1")  # labels of a test split
REMEDY = (
    "Correct or drop the row. An empty csv cell is a missing label; -1 is how GLUE hides labels of "
    "test splits."
)
ALLOWED = "integers, booleans, words, or floats for scores"
COMMAS = "The cells of a csv file have commas between them."


@dataclass(frozen=True)
class Column:
    """A column of a split.

    Attributes:
        task: the task's name.
        split: the split's name.
        rows: of the split.
        name: of the column.
    """

    task: str
    split: str
    rows: Dataset
    name: str

    @cached_property
    def stored(self) -> pa.ChunkedArray:
        """Its cells as they are stored."""
        return self.rows.select_columns([self.name]).with_format("arrow")[:].column(self.name)

    @cached_property
    def values(self) -> list[Any]:
        """Its different cells."""
        return self.stored.unique().to_pylist()

    @property
    def feature(self) -> Any:
        """Its type as `datasets` has it."""
        return self.rows.features[self.name]

    @property
    def is_csv(self) -> bool:
        """Whether its rows are of csv files, where nothing has a type."""
        return all(path.suffix.lower() == ".csv" for path in sources.files_of(self.rows))

    def first(self, values: Iterable[Any]) -> int:
        """The index of the first row with one of these values."""
        wanted = pa.array(values, self.stored.type)
        return pc.index(pc.is_in(self.stored, value_set=wanted), True).as_py()

    def refused(self, index: int, allowed: str, remedy: str) -> Refused:
        """The error of a row's cell."""
        where = sources.row_name(self.split, self.rows, index)
        what = f"In {where}, column {self.name} of task {self.task}"
        return refusal(what, cell(self.stored[index].as_py()), allowed, remedy)

    def of_wrong_type(self, allowed: str, remedy: str) -> Refused:
        """The error of the column's type."""
        what = f"column {self.name} of split {self.split!r}{source(self.rows)}"
        return refusal(what, Plain(f"of type {self.feature}"), allowed, remedy)


def load(arguments: DataArguments, family: str, predict: bool) -> tuple[Task, DatasetDict]:
    """Read the task and its checked rows; with ``predict`` the test splits are needed too.

    Raises:
        ValueError: the source, a split or a column is missing, or a label is out of range.
    """
    task, rows = sources.read(arguments, family, partial(_own_task, arguments, family), predict)
    return task, checked(task, rows, arguments, predict)


def _own_task(arguments: DataArguments, family: str, rows: DatasetDict | None) -> Task | None:
    """The task of own files: a column of labels, and the text columns that are named.

    The names can be left out where there is one column of text beside the column ``label``.
    """
    if rows is None:
        return None
    label = arguments.label_column_name or "label"
    train = rows.get("train", Dataset.from_dict({}))
    kinds = {name: kind(feature) for name, feature in train.features.items()}
    known = [n for n, kind in kinds.items() if n != label and kind == TEXT]
    texts = arguments.text_column_names or known
    if label not in kinds or (len(texts) != 1 and texts is known):
        value = f"a table with the columns {joined(f'{n} ({k})' for n, k in kinds.items())}"
        allowed = (
            f"one with the column {label} of labels and one column of text (string), or one or two "
            f"that are named; it has {len(texts)}"
        )
        examples = ",".join(known[:2]) or "NAME"
        remedy = f"Give --label_column_name, --text_column_names {examples}. {COMMAS}"
        raise refusal(f"train_file{source(train)}", Plain(value), allowed, remedy)
    names = label_names(Column(OWN_FILES, "train", train, label))
    is_score = names is None
    return Task(
        name=OWN_FILES,
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


def checked(
    task: Task, rows: DatasetDict, arguments: SourceArguments, predict: bool
) -> DatasetDict:
    """The needed splits, cut to their limits: input columns, and ``labels`` where not hidden."""
    used = needed(task, rows, arguments, predict)
    return DatasetDict({name: _labelled(task, name, split) for name, split in used.items()})


def needed(
    task: Task, rows: DatasetDict, arguments: SourceArguments, predict: bool
) -> dict[str, Dataset]:
    """The splits for training and validation, and with ``predict`` for tests, cut to their limits.

    Raises:
        Refused: a split, its rows or a column is missing.
    """
    tests = task.test_splits if predict else ()
    names = [task.train_split, *(split.name for split in (*task.validation_splits, *tests))]
    check_splits(task, rows, names)
    limits = {split.name: arguments.max_predict_samples for split in task.test_splits}
    limits |= {split.name: arguments.max_eval_samples for split in task.validation_splits}
    limits[task.train_split] = arguments.max_train_samples
    return {n: rows[n].take(min(limits[n] or len(rows[n]), len(rows[n]))) for n in names}


def check_splits(task: Task, rows: DatasetDict, names: Sequence[str]) -> None:
    """Raise ``Refused`` unless each of these splits is there, with its columns and a row."""
    hidden = {split.name for split in task.test_splits}
    for name in names:
        if name not in rows:
            where = source(next(iter(rows.values()))) if rows else ""
            allowed = f"data with the splits {', '.join(names)}; it has {joined(rows) or 'none'}"
            value, remedy = Plain(f"without split {name!r}"), "Add it, or choose other data."
            raise refusal(f"the data of task {task.name}{where}", value, allowed, remedy)
        what = f"split {name!r} of task {task.name}{source(rows[name])}"
        if not len(rows[name]):
            raise refusal(what, [], "a row or more", "Add rows.")
        has_labels = task.label_column and name not in hidden
        wanted = [*task.input_columns, *([task.label_column] if has_labels else [])]
        known = [column for column in rows[name].column_names if column != sources.ROW]
        if missing := [column for column in wanted if column not in known]:
            value = Plain(f"without column {missing[0]!r}")
            allowed = f"rows with {', '.join(wanted)}; it has {joined(known)}"
            raise refusal(what, value, allowed, f"Name or rename its columns. {COMMAS}")


def with_validation(
    task: Task, rows: DatasetDict, flag: str, share: float | None, classes: Any = None
) -> DatasetDict:
    """The rows, whose validation split is a share of the training rows.

    Args:
        task: names the splits.
        rows: of each split.
        flag: that gives the share.
        share: None: as they are; per cent of the rows, the last ones; with ``classes`` a part of 1.
        classes: each training row's class; the same share of each is drawn.

    Raises:
        Refused: there is a validation split, or either part would have no rows.
    """
    if share is None:
        return rows
    name = task.validation_splits[0].name
    if name in rows:
        raise refusal(flag, share, f"None with data that has {name}", "Drop the flag.")
    check_splits(task, rows, [task.train_split])
    train = rows[task.train_split]
    how: dict[str, Any] = {"test_size": round(len(train) * share / 100), "shuffle": False}
    if classes is not None:
        how = {"test_size": share, "stratify": classes, "random_state": 0}
    try:
        kept, held_out = train_test_split(range(len(train)), **how)
    except ValueError:
        each = "" if classes is None else " of each class"
        allowed = f"a share that leaves rows{each} on both sides of {len(train)}"
        raise refusal(flag, share, allowed, "Give another share, or validation data.") from None
    parts = {task.train_split: train.select(sorted(kept)), name: train.select(sorted(held_out))}
    return DatasetDict({**rows, **parts})


def chosen_column(flag: str, name: str | None, usual: Sequence[str], columns: Iterable[str]) -> str:
    """The column that the flag names, or else the first of the usual ones that there is.

    Raises:
        Refused: there is none.
    """
    known = list(columns)
    for each in usual if name is None else (name,):
        if each in known:
            return each
    raise refusal(flag, name, f"one of the data's columns: {joined(known)}", "Name it.")


def _labelled(task: Task, name: str, rows: Dataset) -> Dataset:
    """The rows' input columns, and ``labels`` as integers or scores, unless hidden."""
    check_text(task, name, rows)
    is_test = name in {split.name for split in task.test_splits}
    labels = label_numbers(task, name, rows, may_hide=is_test)
    if name == task.train_split and task.objective == "classify" and len(rows) > 1:
        kinds = pc.unique(labels).to_pylist()
        if len(kinds) == 1:
            what = f"column {task.label_column} of split {name!r}{source(rows)}"
            value = Plain(f"{cell(task.label_names[kinds[0]])!r} in all rows")
            remedy = "Add or shuffle rows, or raise max_train_samples."
            raise refusal(what, value, "two labels or more", remedy)
    kept = (*task.input_columns, sources.ROW)
    inputs = rows.select_columns([name for name in rows.column_names if name in kept])
    return inputs if labels is None else inputs.add_column("labels", labels)


def kind(feature: Any) -> str:
    """The type of a column in one word; nested ones are `struct` or `list`."""
    if isinstance(feature, dict):
        return "struct"
    return str(getattr(feature, "dtype", "list")).removeprefix("large_")


def check_text(task: Task, split: str, rows: Dataset, *, blank_cells: bool = False) -> None:
    """Raise ``Refused`` unless each column of text has a text in every row.

    With ``blank_cells`` an empty cell of a csv file is a text too: a blank line.
    """
    for name in task.text_columns:
        column = Column(task.name, split, rows, name)
        if kind(column.feature) not in (TEXT, "null"):
            remedy = "Choose another column, or convert it."
            raise column.of_wrong_type("a column of text (string)", remedy)
        missing = column.stored.null_count
        if missing and not (blank_cells and column.is_csv):
            allowed = f"a text in every row; it is missing in {missing} of {len(rows)}"
            remedy = "Write the text (an empty csv cell is a missing one), or drop the row."
            raise column.refused(column.first([None]), allowed, remedy)


def source(rows: Dataset) -> str:
    """The first local file of the rows, as the end of a phrase."""
    files = sources.files_of(rows)
    return f" in {files[0]}" if files else ""


def label_names(column: Column) -> tuple[str, ...] | None:
    """The labels of someone's own training rows in order; None if the column holds scores.

    Raises:
        Refused: they cannot be labels.
    """
    arrow, is_text = column.stored.type, kind(column.feature) == TEXT
    if pa.types.is_floating(arrow):
        return None
    if not (is_text or pa.types.is_integer(arrow) or pa.types.is_boolean(arrow)):
        raise column.of_wrong_type(ALLOWED, "Name or convert the column.")
    values = column.values
    if isinstance(column.feature, ClassLabel):
        return tuple(column.feature.names)
    if hidden := [value for value in values if value in HIDDEN]:
        raise column.refused(column.first(hidden), ALLOWED, REMEDY)
    if is_text and column.is_csv:  # words among numbers are a slip, and NA is no label
        texts = [value for value in values if not NUMBER.fullmatch(value)]
        slips = texts if len(texts) < len(values) else [x for x in texts if x in MISSING]
        if slips:
            allowed = "numbers in all rows, or words that do not stand for a missing one"
            remedy = "Correct or drop the row; or give such labels as strings in a json file."
            raise column.refused(column.first(slips), allowed, remedy)
    return tuple(map(_label, sorted(values)))


def label_numbers(task: Task, split: str, rows: Dataset, *, may_hide: bool) -> pa.Array | None:
    """Each row's label as the task's integer or score; None where they are hidden.

    With ``may_hide``, in a test split, all labels may be missing, or -1.

    Raises:
        Refused: the first row whose label is none of the task's.
    """
    if may_hide and task.label_column not in rows.column_names:
        return None
    column = Column(task.name, split, rows, task.label_column)
    hidden = [value for value in column.values if may_hide and value in HIDDEN]
    if may_hide and len(hidden) == len(column.values):
        return None
    is_score = task.objective == "regress"
    if hidden and not (is_score and task.score_range is None):
        allowed = "labels in all rows of a test split, or in none"
        raise column.refused(column.first(hidden), allowed, "Fill it in, or drop the column.")
    return _scores(task, column) if is_score else _classes(task, column)


def _classes(task: Task, column: Column) -> pa.Array:
    numbers = [_number(task, column.feature, value) for value in column.values]
    if None in numbers:
        known = task.label_names
        allowed = f"{joined(known)}, or 0 to {len(known) - 1}"
        if task.name == OWN_FILES:
            allowed = f"the labels of the training rows: {joined(known)}"
        wrong = [x for x, number in zip(column.values, numbers, strict=True) if number is None]
        raise column.refused(column.first(wrong), allowed, REMEDY)
    by_value = dict(zip(column.values, numbers, strict=True))
    return pa.array([by_value[value] for value in column.stored.to_pylist()], pa.int64())


def _number(task: Task, feature: Any, value: Any) -> int | None:
    """A label's number in the task's order, or None."""
    known = task.label_names
    if value is None:
        return None
    # Integers that the file itself names are those names, in whatever order.
    if isinstance(feature, ClassLabel) and set(feature.names) <= set(known):
        return known.index(feature.names[value]) if 0 <= value < len(feature.names) else None
    if _label(value) in known:
        return known.index(_label(value))
    # A number that own training rows lack is none of their labels, not the index of one.
    number = int(value) if isinstance(value, str) and DIGITS.fullmatch(value.strip()) else value
    if task.name != OWN_FILES and isinstance(number, int) and 0 <= number < len(known):
        return int(number)
    return None


def _label(value: Any) -> str:
    """A label as a name: of a boolean 0 or 1, as in the data sets that have them."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _scores(task: Task, column: Column) -> pa.Array:
    low, high = task.score_range or (-EXACT, EXACT)
    allowed = "a finite number" + (f", {low:g} to {high:g}" if task.score_range else " below 2**53")
    scores = pd.to_numeric(column.stored.to_pandas(), errors="coerce").to_numpy(float)
    is_wrong = ~((scores >= low) & (scores <= high)) | (kind(column.feature) == "bool")
    if is_wrong.any():
        remedy = "Write or correct it, or choose another task_name."
        raise column.refused(int(np.argmax(is_wrong)), allowed, remedy)
    return pa.array(scores)
