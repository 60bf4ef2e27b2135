"""Odd files that are right are read as they were written: nothing is lost, and nothing guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_data import Content, load, load_own, write
from datasets import ClassLabel, Dataset, Features, Value

import tasks

HEAD = "sentence,label\n"
# What is in a file, and the texts and labels that are read from it.
KEPT: dict[str, tuple[str, Content, list[str], list[float]]] = {
    "NA": (".csv", f"{HEAD}NA,0\nnull,1\nNone,0\n", ["NA", "null", "None"], [0, 1, 0]),
    "booleans": (".csv", f"{HEAD}True,0\nfalse,1\n", ["True", "false"], [0, 1]),
    "numbers": (".csv", f"{HEAD}007,0\n1e3,1\n", ["007", "1e3"], [0, 1]),
    "numbers, then words": (
        ".csv", f"{HEAD}12,0\n" + "12,1\n" * 20_000 + "word,0\n",
        ["12"] * 20_001 + ["word"], [0] + [1] * 20_000 + [0],
    ),
    "BOM": (".csv", f"\ufeff{HEAD}a,0\nb,1\n", ["a", "b"], [0, 1]),
    "BOM and quotes": (".csv", '\ufeff"sentence","label"\na,0\nb,1\n', ["a", "b"], [0, 1]),
    "BOM json": (".json", '\ufeff{"sentence": "a", "label": 0}', ["a"], [0]),
    "line ends": (".csv", f"{HEAD}a,0\nb,1\n".replace("\n", "\r\n"), ["a", "b"], [0, 1]),
    "old line ends": (".csv", f"{HEAD}a,0\nb,1\n".replace("\n", "\r"), ["a", "b"], [0, 1]),
    "no last line end": (".csv", f"{HEAD}a,0\nb,1", ["a", "b"], [0, 1]),
    "blank lines": (".csv", f"{HEAD}\na,0\n\nb,1\n\n", ["a", "b"], [0, 1]),
    "lines in a cell": (
        ".csv", f'{HEAD}"a\n""b"", c",0\n"d\r\ne",1\n', ['a\n"b", c', "d\r\ne"], [0, 1],
    ),
    "quotes in a cell": (".csv", f'{HEAD}5" of rain,0\nb,1\n', ['5" of rain', "b"], [0, 1]),
    "a long cell": (".csv", f"{HEAD}{'x' * 10**6},0\nb,1\n", ["x" * 10**6, "b"], [0, 1]),
    "a long quoted cell": (".csv", f'{HEAD}"{"x" * 10**6}",0\nb,1\n', ["x" * 10**6, "b"], [0, 1]),
    "a long json": (".json", f'{{"sentence": "{"x" * 10**6}", "label": 1}}', ["x" * 10**6], [1]),
    "spaces": (".csv", f"{HEAD}a, 0\n b ,1\n", ["a", " b "], [0, 1]),
    "pandas's index": (".csv", ",sentence,label\n0,a,0\n1,b,1\n", ["a", "b"], [0, 1]),
    "a list": (
        ".json", '\n[{"sentence": "a", "label": 0},\n{"label": 1, "sentence": "b"}]',
        ["a", "b"], [0, 1],
    ),
    "a list in jsonl": (".jsonl", '[{"sentence": "a", "label": 0}]', ["a"], [0]),
    "objects over lines": (
        ".json", '{"sentence": "a",\n "label": 0}\n{"sentence": "b",\n"label": 1}',
        ["a", "b"], [0, 1],
    ),
    "words": (".csv", f"{HEAD}a,acceptable\nb,unacceptable\n", ["a", "b"], [1, 0]),
    "boolean labels": (".csv", f"{HEAD}a,False\nb,True\n", ["a", "b"], [0, 1]),
    "an empty text that is meant": (".json", '{"sentence": "", "label": 1}', [""], [1]),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_a_tasks_columns(tmp_path: Path, case: str) -> None:
    suffix, content, texts, labels = KEPT[case]
    _, found = load_own(tmp_path, f"own{suffix}", content, task_name="cola")
    assert found["train"]["sentence"][:] == texts
    assert found["train"]["labels"][:] == labels


# The same as text for a language model.
LINES: dict[str, tuple[str, str, list[str | None]]] = {
    "an empty cell": (".csv", "n,text\n1,a\n2,\n3,b\n", ["a", None, "b"]),
    "a blank line": (".csv", "text\na\n\nb\n", ["a", None, "b"]),
    "a quoted blank line": (".csv", 'text\na\n""\nb\n', ["a", None, "b"]),
    "NA": (".csv", "n,text\n1,NA\n2,a\n", ["NA", "a"]),
    "BOM": (".txt", "\ufeffa\nb\n", ["a\n", "b\n"]),
    "line ends": (".txt", "a\r\nb\r\n", ["a\n", "b\n"]),
    "a list of strings": (".json", '["a", "b"]', ["a", "b"]),
    "upper case": (".TXT", "a\nb", ["a\n", "b"]),
}


@pytest.mark.parametrize("case", LINES)
def test_lines_of_text(tmp_path: Path, case: str) -> None:
    suffix, content, lines = LINES[case]
    _, found = load_own(tmp_path, f"own{suffix}", content, script="lm")
    assert found["train"]["text"][:] == lines


def test_names_in_any_script(tmp_path: Path) -> None:
    task, found = load_own(tmp_path, "größe 表.csv", "文,label\n猫,hé\n犬,b\n")
    assert (task.text_columns, task.label_names) == (("文",), ("b", "hé"))
    assert found["train"]["文"][:] == ["猫", "犬"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    target = write(tmp_path / "a" / "real.csv", f"{HEAD}a,0\nb,1\n")
    link = tmp_path / "own.csv"
    link.symlink_to(target)
    _, found = load("glue", train_file=str(link), validation_file=str(link))
    assert found["train"]["labels"][:] == [0, 1]


def test_a_test_file_needs_no_labels(tmp_path: Path) -> None:
    own = write(tmp_path / "own.csv", f"{HEAD}a,0\nb,1\n")
    for name, content in {
        "bare": "sentence\nc\n",
        "hidden": f"{HEAD}c,-1\n",
        "empty": f"{HEAD}c,\n",
    }.items():
        test = write(tmp_path / f"{name}.csv", content)
        files = {"train_file": own, "validation_file": own, "test_file": test}
        _, found = load("glue", **files, predict=True)
        assert found["test"].column_names == ["sentence"]


def test_scores_below_zero_are_no_hidden_labels(tmp_path: Path) -> None:
    own = write(tmp_path / "own.csv", f"{HEAD}a,-1.0\nb,0.5\n")
    files = {"train_file": own, "validation_file": own, "test_file": own}
    _, found = load("glue", **files, predict=True)
    assert found["test"]["labels"][:] == found["train"]["labels"][:] == [-1.0, 0.5]


def test_whole_floats_are_scores_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, _ = load_own(tmp_path, "own.csv", f"{HEAD}a,0.0\nb,1.0\n")
    assert task.objective == "regress"
    assert "Column label holds whole numbers written as floats" in caplog.text
    caplog.clear()
    load_own(tmp_path, "other.csv", f"{HEAD}a,0.0\nb,1.5\n")
    assert "whole numbers" not in caplog.text


def test_the_first_rows_with_one_label_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = f"{HEAD}a,1\nb,1\nc,0\n"
    load_own(tmp_path, "own.csv", content, task_name="cola", max_train_samples=2)
    assert "The first 2 training rows of task cola all have the label acceptable" in caplog.text


def test_names_of_labels_in_the_file_decide_their_order(tmp_path: Path) -> None:
    """Integers stand for the names that a parquet file gives them, not for the task's order."""
    order = Features(
        {"sentence": Value("string"), "label": ClassLabel(names=["positive", "negative"])}
    )
    table = Dataset.from_dict({"sentence": ["good", "bad"], "label": [0, 1]}, features=order)
    _, found = load_own(
        tmp_path, "own.parquet", lambda path: table.to_parquet(path), task_name="sst2"
    )
    assert tasks.get("sst2").label_names == ("negative", "positive")
    assert found["train"]["labels"][:] == [1, 0]
