"""What the tests of bad data share: files as a person may bring them, and what reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

import tasks
from finetune.data import rows, text
from finetune.errors import Refused
from finetune.settings.groups import DataArguments
from finetune.settings.language import LanguageDataArguments

GOOD = {
    ".csv": "sentence,label\na cat,0\na dog,1\n",
    ".json": '{"sentence": "a cat", "label": 0}\n{"sentence": "a dog", "label": 1}\n',
    ".jsonl": '{"sentence": "a cat", "label": 0}\n{"sentence": "a dog", "label": 1}\n',
    ".txt": "a cat\na dog\n",
}
Content = str | bytes | Callable[[Path], object]


def parquet(**columns: object) -> Content:
    return lambda path: Dataset.from_dict(columns).to_parquet(path)


def arrow(**columns: pa.Array) -> Content:
    def save(path: Path) -> None:
        pq.write_table(pa.table(columns), path)

    return save


def cut(path: Path) -> None:
    Dataset.from_dict({"sentence": ["a"] * 99, "label": [0, 1, 0] * 33}).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])


def damaged(path: Path) -> None:
    """A parquet file whose end is whole and whose rows are not."""
    Dataset.from_dict({"sentence": ["a"] * 99, "label": [0, 1, 0] * 33}).to_parquet(path)
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)


def write(path: Path, content: Content) -> str:
    """The content in this file; a function writes it itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def load(script: str, *, predict: bool = False, **flags: Any) -> tuple[tasks.Task, DatasetDict]:
    """The task and the rows, as this script reads them."""
    if script == "lm":
        return text.load(LanguageDataArguments(**flags), predict)
    return rows.load(DataArguments(**flags), script, predict)


def load_own(
    folder: Path, name: str, content: Content, script: str = "glue", **flags: Any
) -> tuple[tasks.Task, DatasetDict]:
    """One file of this content, to train and to evaluate on."""
    path = write(folder / name, content)
    return load(script, **{"train_file": path, "validation_file": path} | flags)


def refusal(script: str, **flags: Any) -> str:
    """The one line that refuses to read."""
    with pytest.raises(Refused) as caught:
        load(script, **flags)
    return one_line(caught.value)


def one_line(error: Refused) -> str:
    """The error's message, which has the scripts' form, and no other library's error behind it."""
    message = str(error)
    assert message.isprintable(), message
    assert " is " in message
    assert "; allowed: " in message
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    assert len(message) < 1500
    return message
