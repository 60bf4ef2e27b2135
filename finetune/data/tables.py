"""Tables of text files, CSV and JSON: each cell as it was written, each fault with its row.

A CSV cell has no type. A column is numbers or booleans if all of its cells are, and text otherwise;
columns that are known to be text stay as they were written: `NA`, `007` and `True` are words there.
An empty cell is missing. Rows are counted from 1, without the header.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from finetune.data.wording import LONGEST_CELL, Words, cell, listed, reason, refusal

MOST_BYTES = 1 << 30  # that are parsed as one block; only so does a fault come with its row
FIRST = 100  # cells that show quickly that a column is text
CHANGED = re.compile(r"Column\(/?(.*)\) changed from (\w+) to (\w+) in row (\d+)", re.DOTALL)
IN_ROW = re.compile(r"JSON parse error: (.*?)\.? in row (\d+)", re.DOTALL)
SPACE = re.compile(r"\s*")
AN_OBJECT = "an object of columns"
JSON_REMEDY = "Write a JSON object a line, or one list of objects."


def read_csv(path: Path, text: Sequence[str] = (), separator: str = ",") -> pa.Table:
    """The rows of a CSV file with a header; the columns ``text`` are text whatever they hold."""
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    header = _header(path, content, separator)
    if b'"' in content:
        _check_quotes(path, content, separator)
    faults: list[Any] = []

    def keep(fault: Any) -> str:
        faults.append(fault)
        return "error"

    try:
        table = pacsv.read_csv(
            io.BytesIO(content),
            pacsv.ReadOptions(
                use_threads=False,
                block_size=min(len(content) + 1, MOST_BYTES),
                column_names=header,
                skip_rows_after_names=1,
            ),
            pacsv.ParseOptions(
                delimiter=separator,
                newlines_in_values=True,
                # Of one column a blank line is a row whose cell is empty.
                ignore_empty_lines=len(header) > 1,
                invalid_row_handler=keep,
            ),
            pacsv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except (pa.ArrowException, ValueError) as error:
        raise _broken_csv(path, header, faults, error) from None
    columns = [c if n in text else _typed(c) for n, c in zip(header, table.columns, strict=True)]
    return pa.table(columns, names=header)


def _header(path: Path, content: bytes, separator: str) -> list[str]:
    stream = io.StringIO(content[: 1 << 20].decode("utf-8", "ignore"), newline="")
    try:
        names = next(filter(None, csv.reader(stream, delimiter=separator)), [])
    except csv.Error as error:
        raise _broken(path, "its header", reason(error)) from None
    if not names:
        raise refusal("the file", str(path), "a file with rows; it is empty", "Add rows.")
    # The index that pandas writes has no name.
    names = [name or f"Unnamed: {number}" for number, name in enumerate(names)]
    for name in names:
        if names.count(name) > 1:
            raise refusal(
                f"the header of {path}",
                Words(listed(names)),
                f"each column once; {name!r} is there {names.count(name)} times",
                "Give the columns names of their own, or drop one.",
            )
    return names


def _check_quotes(path: Path, content: bytes, separator: str) -> None:
    """Raise ``Refused`` if a quote is never closed, or a cell goes on after its last one."""
    if _fault_of_quotes(content, separator, deque(maxlen=0)) is None:
        return
    starts: list[int] = []
    fault = _fault_of_quotes(content, separator, starts)
    raise refusal(
        f"the row that begins in line {starts[-1]} of {path}",
        Words("broken"),
        "cells whose quotes are closed, with a quote in them written twice",
        f"Mend its quotes; reading it said: {fault}",
    )


def _fault_of_quotes(content: bytes, separator: str, starts: list[int] | deque[int]) -> str | None:
    """What is wrong, if anything; ``starts`` takes the line where each row begins."""
    stream = io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="")
    rows = csv.reader(stream, delimiter=separator, strict=True)
    limit = csv.field_size_limit(sys.maxsize)
    try:
        if isinstance(starts, deque):
            deque(rows, maxlen=0)
        else:
            starts.append(1)
            starts.extend(rows.line_num + 1 for _ in rows)
    except csv.Error as error:
        return str(error)
    finally:
        csv.field_size_limit(limit)
    return None


def _broken_csv(path: Path, header: list[str], faults: list[Any], error: Exception) -> Exception:
    if not faults or faults[0].number is None:
        return _broken(path, "its rows", reason(error))
    fault = faults[0]
    return refusal(
        f"row {fault.number - 1} of {path}",
        cell(fault.text),
        f"{fault.expected_columns} cells, of the columns {listed(header)}; it has "
        f"{fault.actual_columns}",
        'Mend the row; a cell with a comma or a line break stands in double quotes ("a, b").',
    )


def _typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column as numbers or booleans if all of its cells are, otherwise as it is."""
    if column.null_count == len(column):
        return column
    for kind in (pa.int64(), pa.float64(), pa.bool_()):
        try:
            pc.cast(pc.utf8_trim_whitespace(column.slice(0, FIRST)), kind)
            return pc.cast(pc.utf8_trim_whitespace(column), kind)
        except pa.ArrowInvalid:
            continue
    return column


def read_json(path: Path) -> pa.Table:
    """The rows of a file with a JSON object a line, or with one list of objects."""
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    if content.lstrip().startswith(b"["):
        content = "\n".join(_of_list(path, content)).encode()
    start = content.lstrip()[: LONGEST_CELL + 1]
    if not start:
        raise refusal("the file", str(path), "a file with rows; it is empty", "Add rows.")
    if not start.startswith(b"{"):  # a file that begins with null would end the process
        what = f"row 1 of {path}"
        raise refusal(what, cell(start.decode(errors="replace")), AN_OBJECT, JSON_REMEDY)
    try:
        table = _parsed(content, None)
        # Text that looks like a date is text.
        dates = [
            pa.field(f.name, pa.string()) for f in table.schema if pa.types.is_temporal(f.type)
        ]
        return _parsed(content, pa.schema(dates)) if dates else table
    except (pa.ArrowException, ValueError) as error:
        raise _broken_json(path, content, str(error)) from None


def _parsed(content: bytes, schema: pa.Schema | None) -> pa.Table:
    size = min(len(content) + 1, MOST_BYTES)
    return pajson.read_json(
        io.BytesIO(content),
        pajson.ReadOptions(use_threads=False, block_size=size),
        pajson.ParseOptions(newlines_in_values=True, explicit_schema=schema),
    )


def _of_list(path: Path, content: bytes) -> Iterator[str]:
    """Each row of a list as a line of its own; a list of strings is a column ``text``."""
    try:
        rows = json.loads(content, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise _broken(path, "its list", reason(error)) from None
    texts = all(isinstance(row, str) for row in rows)
    for number, row in enumerate(rows, 1):
        if not texts and not isinstance(row, dict):
            raise refusal(f"row {number} of {path}", cell(row), AN_OBJECT, JSON_REMEDY)
        yield json.dumps({"text": row} if texts else row)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"a column was specified twice in {listed(name for name, _ in pairs)}")
    return dict(pairs)


def _broken_json(path: Path, content: bytes, said: str) -> Exception:
    changed, in_row = CHANGED.search(said), IN_ROW.search(said)
    if changed and changed[1]:
        column, before, now, row = changed.groups()
        return refusal(
            f"column {column} in row {int(row) + 1} of {path}",
            Words(f"of type {now}"),
            f"one type a column; it was {before} before",
            "Write the column's values in one type.",
        )
    if changed:
        what = f"row {int(changed[4]) + 1} of {path}"
        return refusal(what, Words(f"an {changed[3]}"), AN_OBJECT, JSON_REMEDY)
    row, rest = _broken_row(content.decode(), int(in_row[2]) + 1 if in_row else None)
    fault = in_row[1] if in_row else said
    return refusal(
        f"row {row} of {path}", cell(rest), "a whole JSON object", f"Mend the row: {fault}."
    )


def _broken_row(content: str, known: int | None) -> tuple[int, str]:
    """The number of the first row that is no JSON, unless it is known, and how the row begins."""
    decoder, row, at = json.JSONDecoder(), 1, 0
    while True:
        at = SPACE.match(content, at).end()  # type: ignore[union-attr]
        try:
            end = decoder.raw_decode(content, at)[1]
        except (ValueError, RecursionError):
            end = None
        if end is None or row == known:
            return row, content[at : at + LONGEST_CELL + 1].partition("\n")[0]
        row, at = row + 1, end


def _broken(path: Path, part: str, said: str) -> Exception:
    return refusal("the file", str(path), f"a file whose parts can be read, also {part}", said)
