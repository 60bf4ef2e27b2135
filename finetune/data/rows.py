"""Rows of a task: the splits that a run needs, their texts and labels checked with Arrow.

No check loops over the rows in Python.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict

from finetune.data import sources
from finetune.data.wording import Words, cell, listed, refusal
from finetune.errors import Refused
from finetune.settings.groups import DataArguments, SourceArguments
from tasks import Task, metrics

logger = logging.getLogger(__name__)

TEXT_KINDS = ("string", "large_string")
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
ALLOWED = "integers, booleans, words, or floats for scores"
COMMAS = "The cells of a csv file have commas between them."


def load(arguments: DataArguments, family: str, predict: bool) -> tuple[Task, DatasetDict]:
    """Read the task and its checked rows; with ``predict`` the test splits are needed too.

    Raises ``ValueError`` if the source, a split or a column is missing, or a label is out of range.
    """
    infer, adapt = partial(_own_task, arguments, family), partial(_with_columns, arguments)
    text = arguments.text_column_names or ()
    task, rows = sources.read(arguments, family, infer=infer, adapt=adapt, text=text)
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
    train = rows.get("train", Dataset.from_dict({}))
    kinds = {name: kind(feature) for name, feature in train.features.items()}
    known = [n for n, kind in kinds.items() if n != label and kind in TEXT_KINDS]
    texts = arguments.text_column_names or known
    if label not in kinds or (len(texts) != 1 and texts is known):
        pair = f", or the two of a pair: {','.join(known[:2])}" if len(known) > 1 else ""
        value = f"a table with the columns {listed(f'{n} ({k})' for n, k in kinds.items())}"
        allowed = (
            f"one with the column {label} of labels and one column of text (string), or with one "
            f"or two columns of text that are named; it has {len(texts)}"
        )
        name = known[-1] if known else "NAME"
        remedy = f"Give --label_column_name, --text_column_names {name}{pair}. {COMMAS}"
        raise refusal(f"train_file{source(train)}", Words(value), allowed, remedy)
    names = label_names("train", train, label)
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
    return DatasetDict({name: _labelled(task, name, used[name], rows[name]) for name in used})


def needed(
    task: Task, rows: DatasetDict, arguments: SourceArguments, predict: bool
) -> dict[str, Dataset]:
    """The splits for training and validation, and with ``predict`` for tests, cut to their limits.

    Raises ``Refused`` if a split, its rows or a column is missing.
    """
    names = needed_splits(task, predict)
    check_splits(task, rows, names)
    limits = {split.name: arguments.max_predict_samples for split in task.test_splits}
    limits |= {split.name: arguments.max_eval_samples for split in task.validation_splits}
    limits[task.train_split] = arguments.max_train_samples
    return {n: rows[n].take(min(limits[n] or len(rows[n]), len(rows[n]))) for n in names}


def needed_splits(task: Task, predict: bool) -> list[str]:
    """The names of the splits that a run reads."""
    tests = task.test_splits if predict else ()
    return [task.train_split, *(split.name for split in (*task.validation_splits, *tests))]


def check_splits(task: Task, rows: DatasetDict, names: Sequence[str]) -> None:
    """Raise ``Refused`` unless each of these splits is there, with its columns and a row."""
    hidden = {split.name for split in task.test_splits}
    for name in names:
        if name not in rows:
            where = source(next(iter(rows.values()))) if rows else ""
            what, value = f"the data of task {task.name}{where}", f"without split {name!r}"
            allowed = f"data with the splits {', '.join(names)}; it has {listed(rows) or 'none'}"
            raise refusal(what, value, allowed, "Add it, or choose another task or data set.")
        what = f"split {name!r} of task {task.name}{source(rows[name])}"
        if not len(rows[name]):
            raise refusal(what, [], "a row or more", "Add rows.")
        has_labels = task.label_column and name not in hidden
        wanted = [*task.input_columns, *([task.label_column] if has_labels else [])]
        known = [column for column in rows[name].column_names if column != sources.ROW]
        if missing := [column for column in wanted if column not in known]:
            value = f"without column {missing[0]!r}"
            allowed = f"rows with {', '.join(wanted)}; it has {listed(known)}"
            raise refusal(what, value, allowed, f"Name or rename its  {COMMAS}")


def with_validation(task: Task, rows: DatasetDict, share: float | None) -> DatasetDict:
    """The rows; with a share in per cent the validation split is the end of the training rows."""
    if share is None:
        return rows
    name = task.validation_splits[0].name
    if name in rows:
        allowed = f"None with data that has {name}"
        raise refusal("validation_split_percentage", share, allowed, "Drop the flag.")
    check_splits(task, rows, [task.train_split])
    train = rows[task.train_split]
    first = len(train) - round(len(train) * share / 100)
    if not 0 < first < len(train):
        allowed = f"a share that leaves rows on both sides of {len(train)}"
        remedy = "Give another share, or a validation_file."
        raise refusal("validation_split_percentage", share, allowed, remedy)
    parts = {task.train_split: train.take(first), name: train.skip(first)}
    return DatasetDict({**rows, **parts})


def _labelled(task: Task, name: str, used: Dataset, rows: Dataset) -> Dataset:
    """The used rows' input columns, and ``labels`` as integers or scores, unless hidden."""
    check_text(task, name, used)
    inputs = used.select_columns(
        [name for name in used.column_names if name in (*task.input_columns, sources.ROW)]
    )
    is_test = name in {split.name for split in task.test_splits}
    found = label_numbers(task, name, used, may_hide=is_test)
    if name == task.train_split and task.objective == "classify":
        check_classes(task.label_column, name, rows)
        kinds = pc.unique(found)
        if len(kinds) == 1 and len(used) < len(rows):
            logger.warning(
                f"The first {len(used)} training rows of task {task.name} all have the label "
                f"{task.label_names[kinds[0].as_py()]}: shuffle the rows, or raise "
                "max_train_samples."
            )
    return inputs if found is None else inputs.add_column("labels", found)


def stored(rows: Dataset, name: str) -> pa.ChunkedArray:
    """A column as it is stored."""
    return rows.select_columns([name]).with_format("arrow")[:].column(name)


def kind(feature: Any) -> str:
    """The type of a column in one word; nested ones are `struct` or `list`."""
    if isinstance(feature, dict):
        return "struct"
    return str(getattr(feature, "dtype", "list"))


def check_text(task: Task, split: str, rows: Dataset, *, blank_cells: bool = False) -> None:
    """Raise ``Refused`` unless each column of text has a text in every row.

    With ``blank_cells`` an empty cell of a csv file is a text too: a blank line.
    """
    may_be_blank = blank_cells and all(p.suffix.lower() == ".csv" for p in sources.files_of(rows))
    for name in task.text_columns:
        if kind(rows.features[name]) not in (*TEXT_KINDS, "null"):
            what, value = f"column {name} of split {split!r}{source(rows)}", rows.features[name]
            remedy = "Choose another column, or convert it."
            raise refusal(what, Words(f"of type {value}"), "a column of text (string)", remedy)
        column = stored(rows, name)
        if column.null_count and not may_be_blank:
            allowed = f"a text in every row; it is missing in {column.null_count} of {len(column)}"
            remedy = "Write the text (an empty csv cell is a missing one), or drop the row."
            raise _refuser(task.name, name, split, rows)(pc.is_null(column), allowed, remedy)


def source(rows: Dataset) -> str:
    """The first local file of the rows, as the end of a phrase."""
    known = sources.files_of(rows)
    return f" in {known[0]}" if known else ""


def label_names(split: str, rows: Dataset, name: str) -> tuple[str, ...] | None:
    """The labels of someone's own training rows in order; None if the column holds scores.

    Raises ``Refused`` if they cannot be labels.
    """
    column, refuse = stored(rows, name), _refuser(OWN_FILES, name, split, rows)
    if pa.types.is_floating(column.type):
        finite = column.filter(pc.is_finite(column))
        if len(finite) and pc.all(pc.equal(finite, pc.floor(finite))).as_py():
            logger.warning(
                f"Column {name} holds whole numbers written as floats ({finite[0].as_py()} ...): "
                "they are scores (regression). For classes write integers or words."
            )
        return None
    if not _is_class(column.type):
        raise refuse(pa.chunked_array([[True]]), ALLOWED, "Convert the column.")
    _check_present(column, ALLOWED, refuse)
    if isinstance(rows.features[name], ClassLabel) and len(rows.features[name].names) > 1:
        return tuple(rows.features[name].names)
    _check_words(rows, column, refuse)
    if pc.any(_hidden(column)).as_py():
        raise refuse(_hidden(column), ALLOWED, IS_HIDDEN)
    check_classes(name, split, rows)
    return tuple(map(_text, sorted(column.unique().to_pylist())))


def label_numbers(task: Task, split: str, rows: Dataset, *, may_hide: bool) -> pa.Array | None:
    """Each row's label as the task's integer or score; None where they are hidden.

    With ``may_hide``, in a test split, all labels may be missing, or -1.

    Raises ``Refused`` for the first row whose label is none of the task's.
    """
    if may_hide and task.label_column not in rows.column_names:
        return None
    column = stored(rows, task.label_column)
    refuse = _refuser(task.name, task.label_column, split, rows)
    if may_hide:
        hidden = pc.or_(_hidden(column), pc.is_null(column))
        if pc.all(hidden).as_py():
            return None
        is_class = task.objective != "regress" or task.score_range is not None
        if is_class and pc.any(hidden).as_py():
            allowed = "labels in all rows of a test split, or in none"
            raise refuse(hidden, allowed, "Fill it in, or drop the column.")
    if task.objective == "regress":
        return _scores(task, column, refuse)
    return _classes(task, rows, column, refuse)


def check_classes(name: str, split: str, rows: Dataset) -> None:
    """Raise ``Refused`` if all of many rows have one label."""
    labels = stored(rows, name).unique().to_pylist() if len(rows) > 1 else []
    if len(labels) == 1:
        feature, what = rows.features[name], f"column {name} of split {split!r}{source(rows)}"
        label = feature.int2str(labels[0]) if isinstance(feature, ClassLabel) else labels[0]
        value = Words(f"{cell(label)!r} in all rows")
        raise refusal(what, value, "two labels or more", "Add rows with other labels.")


# Makes the error of the first row for which the mask holds: of what is allowed, and a remedy.
Refuse = Callable[[pa.ChunkedArray, str, str], Refused]


def _refuser(task: str, name: str, split: str, rows: Dataset) -> Refuse:
    def refuse(mask: pa.ChunkedArray, allowed: str, remedy: str) -> Refused:
        index = pc.index(mask, True).as_py()
        value = stored(rows.select([index]), name)[0].as_py()
        what = f"In {sources.place(split, rows, index)}, column {name} of task {task}"
        return refusal(what, cell(value), allowed, remedy)

    return refuse


def _classes(task: Task, rows: Dataset, column: pa.ChunkedArray, refuse: Refuse) -> pa.Array:
    known = task.label_names
    allowed = f"{listed(known)}, or 0 to {len(known) - 1}"
    if task.name == OWN_FILES:
        allowed = f"the labels of the training rows: {listed(known)}"
    _check_present(column, allowed, refuse)
    values = column.unique()
    numbers = [_number(task, rows.features[task.label_column], v) for v in values.to_pylist()]
    wrong = pc.is_in(column, value_set=values.filter(pa.array([n is None for n in numbers])))
    if pc.any(wrong).as_py():
        is_hidden = pc.index(wrong, True).as_py() == pc.index(_hidden(column), True).as_py()
        raise refuse(wrong, allowed, IS_HIDDEN if is_hidden else "Correct the row.")
    return pc.take(pa.array(numbers, pa.int64()), pc.index_in(column, values)).combine_chunks()


def _number(task: Task, feature: Any, value: Any) -> int | None:
    """A label's number in the task's order, or None."""
    known = task.label_names
    # Integers that the file itself names are those names, in whatever order.
    if isinstance(feature, ClassLabel) and set(feature.names) <= set(known):
        return known.index(feature.names[value]) if 0 <= value < len(feature.names) else None
    if _text(value) in known:
        return known.index(_text(value))
    # A number that own training rows lack is none of their labels, not the place of one.
    number = int(value) if isinstance(value, str) and DIGITS.fullmatch(value.strip()) else value
    if task.name != OWN_FILES and isinstance(number, int) and 0 <= number < len(known):
        return int(number)
    return None


def _text(value: Any) -> str:
    """A label as a name: of a boolean 0 or 1, as in the data sets that have them."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _scores(task: Task, column: pa.ChunkedArray, refuse: Refuse) -> pa.Array:
    low, high = task.score_range or (-EXACT, EXACT)
    allowed = "a finite number" + (f", {low:g} to {high:g}" if task.score_range else " below 2**53")
    _check_present(column, allowed, refuse)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        wrong = pa.chunked_array([[True]])
        if _is_text(column.type):
            wrong = pc.invert(pc.match_substring_regex(column, NUMBER))
        raise refuse(wrong, allowed, "Write all of the column as numbers.")
    scores = pc.cast(column, pa.float64(), safe=False)
    wrong = pc.invert(pc.and_(pc.greater_equal(scores, low), pc.less_equal(scores, high)))
    if pc.any(wrong).as_py():
        raise refuse(wrong, allowed, "Correct the row, or choose another task_name.")
    return scores.combine_chunks()


def _check_words(rows: Dataset, column: pa.ChunkedArray, refuse: Refuse) -> None:
    """In csv, where nothing has a type, words among numbers are a slip, and `NA` is no label."""
    is_csv = all(path.suffix.lower() == ".csv" for path in sources.files_of(rows))
    if not is_csv or not _is_text(column.type):
        return
    numeric = pc.match_substring_regex(column, NUMBER)
    slips = pc.is_in(column, value_set=pa.array(MISSING, column.type))
    if pc.any(numeric).as_py():
        slips = pc.or_(slips, pc.invert(numeric))
    if pc.any(slips).as_py():
        allowed = "numbers in all rows, or words in all of them that do not stand for a missing one"
        remedy = "Correct or drop the row; or give such labels as strings in a json file."
        raise refuse(slips, allowed, remedy)


def _check_present(column: pa.ChunkedArray, allowed: str, refuse: Refuse) -> None:
    if column.null_count:
        remedy = "Write the label (an empty csv cell is a missing one), or drop the row."
        raise refuse(pc.is_null(column), allowed, remedy)


def _hidden(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which labels are -1; a missing one is not."""
    kind = column.type
    is_number = pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)
    if not (is_number or _is_text(kind)):
        return pa.chunked_array([pa.repeat(False, len(column))])
    return pc.fill_null(pc.equal(column, pa.scalar(-1 if is_number else "-1", kind)), False)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string())


def _is_class(kind: pa.DataType) -> bool:
    return _is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
