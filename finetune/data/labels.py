"""The column of labels: which labels there are, and each row's number or score."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset

from finetune.data import columns, local
from finetune.data.wording import Words, cell, listed, refusal
from finetune.errors import Refused
from tasks import Task

logger = logging.getLogger(__name__)

HIDDEN = -1
OWN_FILES = "own_files"
EXACT = float(2**53)  # beyond it a float holds no whole number exactly
# How programs write a missing value into csv.
MISSING = ("NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "<NA>")
NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
DIGITS = re.compile(r"[0-9]{1,9}")
IS_HIDDEN = (
    "-1 is how GLUE hides the labels of its test splits. Drop such rows, or write classes as "
    "words or as 0, 1 ..."
)


def label_text(value: Any) -> str:
    """A label as a name: of a boolean 0 or 1, as in the data sets that have them."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def own_names(split: str, rows: Dataset, name: str) -> tuple[str, ...] | None:
    """The labels of someone's own training rows in order; None if the column holds scores.

    Raises ``Refused`` if they are of no use as labels.
    """
    column, refuse = columns.of(rows, name), _refuser(OWN_FILES, name, split, rows)
    kind = column.type
    if pa.types.is_floating(kind):
        _warn_of_whole(name, column)
        return None
    allowed = "integers, booleans, words, or floats for scores"
    if not _is_class(kind):
        raise refuse(columns.first(pc.is_null(column)) or 0, allowed, "Convert the column.")
    _check_missing(column, allowed, refuse)
    if isinstance(rows.features[name], ClassLabel) and len(rows.features[name].names) > 1:
        return tuple(rows.features[name].names)
    if _is_text(kind):
        _check_words(rows, column, refuse)
    hidden = _hidden(column)
    if (index := columns.first(hidden)) is not None:
        raise refuse(index, allowed, IS_HIDDEN)
    found = sorted(set(column.unique().to_pylist()))
    if len(found) < 2:
        raise _one_class(split, rows, name, found)
    return tuple(label_text(value) for value in found)


def numbers(task: Task, split: str, rows: Dataset, *, may_hide: bool) -> pa.Array | None:
    """Each row's label as the task's integer or score; None where they are hidden.

    With ``may_hide``, in a test split, all labels may be missing, or -1.

    Raises ``Refused`` for the first row whose label is none of the task's.
    """
    if may_hide and task.label_column not in rows.column_names:
        return None
    column = columns.of(rows, task.label_column)
    refuse = _refuser(task.name, task.label_column, split, rows)
    if may_hide:
        hidden = pc.or_(_hidden(column), pc.is_null(column))
        if pc.all(hidden).as_py():
            return None
        index = columns.first(hidden)
        if index is not None and (task.objective != "regress" or task.score_range is not None):
            allowed = "labels in all rows of a test split, or in none"
            raise refuse(index, allowed, "Fill it in, or drop the column.")
    if task.objective == "regress":
        return _scores(task, column, refuse)
    return _classes(task, rows, column, refuse)


def warn_of_one_class(task: Task, labels: pa.Array, total: int) -> None:
    """Say so if the first so many training rows hold one label alone."""
    found = pc.unique(labels)
    if task.objective == "classify" and len(found) == 1 and len(labels) < total:
        logger.warning(
            f"The first {len(labels)} training rows of task {task.name} all have the label "
            f"{task.label_names[found[0].as_py()]}: shuffle the rows, or raise max_train_samples."
        )


def check_classes(task: Task, split: str, rows: Dataset) -> None:
    """Raise ``Refused`` if all of many training rows have one label."""
    if task.objective != "classify" or not _is_class(columns.of(rows, task.label_column).type):
        return
    found = columns.of(rows, task.label_column).unique().to_pylist()
    if len(found) == 1 and len(rows) > 1:
        raise _one_class(split, rows, task.label_column, found)


Refuse = Callable[..., Refused]


def _refuser(task: str, name: str, split: str, rows: Dataset) -> Refuse:
    """What makes the refusal of a row's label, from its index, what is allowed and a remedy."""

    def refuse(index: int, allowed: str, remedy: str) -> Refused:
        value = columns.of(rows.select([index]), name)[0].as_py()
        where = local.place(split, rows, index)
        what = f"In {where}, column {name} of task {task}"
        return refusal(what, cell(value), allowed, remedy)

    return refuse


def _classes(task: Task, rows: Dataset, column: pa.ChunkedArray, refuse: Refuse) -> pa.Array:
    known = task.label_names
    allowed = f"{listed(known)}, or 0 to {len(known) - 1}"
    if task.name == OWN_FILES:
        allowed = f"the labels of the training rows: {listed(known)}"
    _check_missing(column, allowed, refuse)
    values = column.unique()
    mapped = [_number(task, rows.features[task.label_column], v) for v in values.to_pylist()]
    wrong = values.filter(pa.array([number is None for number in mapped]))
    if len(wrong):
        index = columns.first(pc.is_in(column, value_set=wrong)) or 0
        is_hidden = columns.of(rows.select([index]), task.label_column)[0].as_py() in (HIDDEN, "-1")
        remedy = "Correct the row, or choose another task_name."
        raise refuse(index, allowed, IS_HIDDEN if is_hidden else remedy)
    found = pc.take(pa.array(mapped, pa.int64()), pc.index_in(column, value_set=values))
    return found.combine_chunks()


def _number(task: Task, feature: Any, value: Any) -> int | None:
    """A label's number in the task's order, or None."""
    known = task.label_names
    # Integers that the file itself names are those names, in whatever order.
    if isinstance(feature, ClassLabel) and set(feature.names) <= set(known):
        return known.index(feature.names[value]) if 0 <= value < len(feature.names) else None
    if label_text(value) in known:
        return known.index(label_text(value))
    # A number that own training rows lack is none of their labels, not the place of one.
    number = int(value) if isinstance(value, str) and DIGITS.fullmatch(value.strip()) else value
    if task.name != OWN_FILES and isinstance(number, int) and 0 <= number < len(known):
        return int(number)
    return None


def _scores(task: Task, column: pa.ChunkedArray, refuse: Refuse) -> pa.Array:
    allowed, remedy = "a number", "Correct the row, or choose another task_name."
    if _is_text(column.type):
        _check_missing(column, allowed, refuse)
        wrong = columns.first(pc.invert(pc.match_substring_regex(column, NUMBER)))
        raise refuse(wrong or 0, allowed, "Write all of the column as numbers.")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        _check_missing(column, allowed, refuse)
        raise refuse(0, allowed, "Write all of the column as numbers.")
    _check_missing(column, allowed, refuse)
    scores = pc.cast(column, pa.float64(), safe=False)
    wrong = columns.first(pc.invert(pc.is_finite(scores)))
    if wrong is not None:
        raise refuse(wrong, f"{allowed} that is finite", remedy)
    wrong = columns.first(pc.greater_equal(pc.abs(scores), EXACT))
    if wrong is not None:
        raise refuse(wrong, f"{allowed} below 2**53", remedy)
    if task.score_range is not None:
        low, high = task.score_range
        wrong = columns.first(pc.or_(pc.less(scores, low), pc.greater(scores, high)))
        if wrong is not None:
            raise refuse(wrong, f"{low:g} to {high:g}, as predictions are cut to these", remedy)
    return scores.combine_chunks()


def _check_words(rows: Dataset, column: pa.ChunkedArray, refuse: Refuse) -> None:
    """In csv, where nothing has a type, words among numbers are a slip, and `NA` is no label."""
    if not all(path.suffix.lower() == ".csv" for path in local.files_of(rows)):
        return
    index = columns.first(pc.is_in(column, value_set=pa.array(MISSING, column.type)))
    if index is not None:
        remedy = "If it is missing, drop the row; if it is a label, write it as another word."
        raise refuse(index, "a label in every row", remedy)
    numeric = pc.match_substring_regex(column, NUMBER)
    if not pc.any(numeric).as_py():
        return
    index = columns.first(pc.invert(numeric)) or 0
    found = columns.first(numeric)
    if pc.all(numeric).as_py():
        raise refuse(found, "integers below 2**63, or words", "Write smaller numbers, or words.")
    remedy = "Correct the row; or give labels of both kinds as strings in a json file."
    raise refuse(index, f"numbers in all rows, as in row {(found or 0) + 1}, or words", remedy)


def _check_missing(column: pa.ChunkedArray, allowed: str, refuse: Refuse) -> None:
    if column.null_count:
        remedy = "Write the label (an empty csv cell is a missing one), or drop the row."
        raise refuse(columns.first(pc.is_null(column)), allowed, remedy)


def _hidden(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which labels are -1; of a missing one that is not known, and counts as no."""
    kind = column.type
    if _is_text(kind):
        found = pc.equal(column, pa.scalar(str(HIDDEN), kind))
    elif pa.types.is_signed_integer(kind) or pa.types.is_floating(kind):
        found = pc.equal(column, pa.scalar(HIDDEN, kind))
    else:
        return pa.chunked_array([pa.repeat(False, len(column))])
    return pc.fill_null(found, False)


def _warn_of_whole(name: str, column: pa.ChunkedArray) -> None:
    finite = column.filter(pc.is_finite(column))
    if len(finite) and pc.all(pc.equal(finite, pc.floor(finite))).as_py():
        logger.warning(
            f"Column {name} holds whole numbers written as floats ({finite[0].as_py()} ...): they "
            "are taken for scores (regression). For classes write integers or words."
        )


def _one_class(split: str, rows: Dataset, name: str, found: list[Any]) -> Refused:
    known, feature = local.files_of(rows), rows.features[name]
    named = isinstance(feature, ClassLabel) and isinstance(found[0], int)
    value = feature.names[found[0]] if named and found[0] < len(feature.names) else cell(found[0])
    return refusal(
        f"column {name} of split {split!r}" + (f" in {known[0]}" if known else ""),
        Words(f"{value!r} in all rows"),
        "two labels or more",
        "Add rows with other labels.",
    )


def _is_class(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
