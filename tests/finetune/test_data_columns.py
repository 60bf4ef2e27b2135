"""Columns of a task that hold what it cannot use, and splits that do not fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_data import Content, refusal, write

HEAD = "sentence,label\n"
# Own files beside a task whose columns are known, for each script.
TASKS: dict[str, tuple[str, str, str, Content, list[str]]] = {
    "cola word": (
        "glue", "cola", "own.csv", f"{HEAD}a,0\nb,maybe\n", ["row 2", "'maybe'", "accept"],
    ),
    "cola float": (
        "glue", "cola", "own.csv", f"{HEAD}a,0.0\nb,1.0\n", ["row 1", "0.0", "or 0 to 1"],
    ),
    "cola ints": (
        "glue", "cola", "own.json", '{"sentence": 5, "label": 1}\n',
        ["column sentence of split 'train' in {file}", "of type Value('int64')", "column of text"],
    ),
    "cola one class": ("glue", "cola", "own.csv", f"{HEAD}a,1\nb,1\n", ["{file}", "two labels"]),
    "stsb range": (
        "glue", "stsb", "own.csv", "sentence1,sentence2,label\na,b,1.5\na,b,7\n",
        ["row 2 of {file}", "label of task stsb is 7.0", "0 to 5"],
    ),
    "stsb -1": (
        "glue", "stsb", "own.csv", "sentence1,sentence2,label\na,b,-1\na,b,2\n",
        ["row 1 of {file}", "is -1", "0 to 5"],
    ),
    "stsb words": (
        "glue", "stsb", "own.csv", "sentence1,sentence2,label\na,b,1.5\na,b,much\n",
        ["row 2 of {file}", "'much'", "a number"],
    ),
    "stsb booleans": (
        "glue", "stsb", "own.json", '{"sentence1": "a", "sentence2": "b", "label": true}',
        ["row 1 of {file}", "True", "a number"],
    ),
    "second text": (
        "glue", "rte", "own.csv", "sentence1,sentence2,label\na,b,1\na,,0\n",
        ["row 2 of {file}", "column sentence2"],
    ),
    "defect null": (
        "code_classification", "defect", "own.json", '{"func": null, "target": true}',
        ["row 1 of {file}", "column func", "is None"],
    ),
    "defect -1": (
        "code_classification", "defect", "own.csv", "func,target\nf,1\ng,-1\n",
        ["row 2 of {file}", "column target", "GLUE hides"],
    ),
    "defect nested": (
        "code_classification", "defect", "own.json", '{"func": ["f"], "target": true}',
        ["column func of split 'train' in {file}", "column of text"],
    ),
    "lm null": (
        "lm", "wikitext2", "own.json", '{"text": "a"}\n{"text": null}\n',
        ["row 2 of {file}", "column text", "is None"],
    ),
    "lm numbers": ("lm", "", "own.json", '{"n": 1}', ["text_column", "columns: n"]),
    "lm Latin-1": ("lm", "", "own.txt", b"a\nb\ncaf\xe9\n", ["line 3 of {file}", "UTF-8", "iconv"]),
    "lm UTF-16": ("lm", "", "own.txt", "a b".encode("utf-16"), ["{file}", "UTF-16", "iconv"]),
    "lm binary": ("lm", "", "own.txt", b"PK\x03\x04 a book", ["{file}", "zip or Excel"]),
    "lm bytes": ("lm", "", "own.txt", b"a\x00b", ["{file}", "no text"]),
    "lm header only": ("lm", "", "own.csv", "text\n", ["{file}", "a row or more"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TASKS)
def test_own_files_of_a_task(tmp_path: Path, case: str) -> None:
    script, task, name, content, words = TASKS[case]
    path = write(tmp_path / name, content)
    said = refusal(script, task_name=task or None, train_file=path, validation_file=path)
    for word in words:
        assert word.replace("{file}", path) in said


def test_splits_that_do_not_fit(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", f"{HEAD}a,3\nb,7\n")
    other = write(tmp_path / "other.csv", f"{HEAD}a,3\nb,1\n")
    said = refusal("glue", train_file=train, validation_file=other)
    assert f"row 2 of {other}, column label" in said
    assert "is 1; allowed: the labels of the training rows: 3, 7" in said
    said = refusal("glue", train_file=train)
    assert f"in {train} is \"without split 'validation'\"" in said
    bare = write(tmp_path / "bare.csv", "text,label\na,3\n")
    said = refusal("glue", train_file=train, validation_file=bare)
    assert f"in {bare} is \"without column 'sentence'\"" in said
    hidden = write(tmp_path / "hidden.csv", f"{HEAD}a,3\nb,\n")
    said = refusal("glue", train_file=train, validation_file=train, test_file=hidden, predict=True)
    assert f"row 2 of {hidden}, column label" in said
    assert "labels in all rows of a test split, or in none" in said
