"""Whole columns, looked at with Arrow: no Python for each row, however many there are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from finetune.data import local
from finetune.data.wording import Words, cell, refusal
from tasks import Task

TEXT_KINDS = ("string", "large_string")
ABSENT = "null"


def of(rows: Dataset, name: str) -> pa.ChunkedArray:
    """A column as it is stored."""
    return rows.select_columns([name]).with_format("arrow")[:].column(name)


def kind(feature: Any) -> str:
    """The type of a column in one word; nested ones are `struct` or `list`."""
    if isinstance(feature, dict):
        return "struct"
    return str(getattr(feature, "dtype", "list"))


def first(mask: pa.ChunkedArray) -> int | None:
    """The index of the first row for which the mask holds, or None."""
    index = pc.index(mask, True).as_py()
    return None if index < 0 else index


def check_text(task: Task, split: str, rows: Dataset, *, blank_cells: bool = False) -> None:
    """Raise ``Refused`` unless each column of text has a text in every row.

    With ``blank_cells`` an empty cell of a csv file is a text too: a blank line.
    """
    for name in task.text_columns:
        if kind(rows.features[name]) not in (*TEXT_KINDS, ABSENT):
            raise refusal(
                f"column {name} of split {split!r}{_source(rows)}",
                Words(f"of type {rows.features[name]}"),
                "a column of text (string)",
                "Choose another column, or convert it.",
            )
        column = of(rows, name)
        if not (blank_cells and all(p.suffix.lower() == ".csv" for p in local.files_of(rows))):
            _check_present(task, split, rows, name, column)
        _check_utf8(task, split, rows, name, column)


def _check_present(
    task: Task, split: str, rows: Dataset, name: str, column: pa.ChunkedArray
) -> None:
    index = first(pc.is_null(column)) if column.null_count else None
    if index is not None:
        raise refusal(
            f"In {local.place(split, rows, index)}, column {name} of task {task.name}",
            None,
            f"a text in every row; it is missing in {column.null_count} of {len(column)}",
            "Write the text (an empty csv cell is a missing one), or drop the row.",
        )


def _check_utf8(task: Task, split: str, rows: Dataset, name: str, column: pa.ChunkedArray) -> None:
    seen = 0
    for chunk in column.chunks:
        try:
            chunk.validate(full=True)
        except pa.ArrowInvalid:
            plain = chunk.view(
                pa.large_binary() if chunk.type == pa.large_string() else pa.binary()
            )
            for number, value in enumerate(plain):
                if not _is_utf8(value.as_py()):
                    where = local.place(split, rows, seen + number)
                    raise refusal(
                        f"In {where}, column {name} of task {task.name}",
                        cell(value.as_py()),
                        "text in UTF-8",
                        "Decode it rightly before it is written.",
                    ) from None
        seen += len(chunk)


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _source(rows: Dataset) -> str:
    known = local.files_of(rows)
    return f" in {known[0]}" if known else ""
