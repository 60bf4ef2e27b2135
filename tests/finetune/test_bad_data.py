"""Wrong files and folders are refused in one line that names the file, and where it can the row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from bad_data import GOOD, Content, arrow, cut, damaged, load, one_line, parquet, refusal, write

from finetune import glue
from finetune.errors import Refused

HEAD = "sentence,label\n"
LATIN = "sentence,label\na,0\ncafé au lait,1\n".encode("latin-1")
# Own files of glue.py: the name, what is in it, and words of the refusal, `{file}` for the path.
FILES: dict[str, tuple[str, Content, list[str]]] = {
    "empty cell": ("own.csv", f"{HEAD}a,0\n,1\n", ["row 2 of {file}", "sentence", "is None"]),
    "empty label": ("own.csv", f"{HEAD}a,0\nb,\nc,1\n", ["row 2 of {file}", "label", "is None"]),
    "word NA": ("own.csv", f"{HEAD}a,yes\nb,no\nc,NA\n", ["row 3 of {file}", "label", "'NA'"]),
    "mixed labels": ("own.csv", f"{HEAD}a,0\nb,one\nc,1\n", ["row 2 of {file}", "label", "'one'"]),
    "Latin-1": ("own.csv", LATIN, ["{file}", "text in UTF-8", "'utf-8' codec can't decode"]),
    "Latin-1 json": ("own.json", b'{"text": "caf\xe9", "label": 1}', ["{file}", "can't decode"]),
    "UTF-16": ("own.csv", GOOD[".csv"].encode("utf-16-le"), ["{file}", "NUL bytes", "UTF-16"]),
    "a cell too many": ("own.csv", f"{HEAD}0,a,0\n1,b,1\n", ["{file}", "a name for each column"]),
    "a longer row": ("own.csv", f"{HEAD}a,0\n1,b,1\n", ["{file}", "a cell for each", "line 3"]),
    "a cell too few": ("own.csv", f"{HEAD}a,0\nb\nc,1\n", ["{file}", "a cell for each", "line 3"]),
    "no cells": ("own.csv", f"{HEAD}a,0\n,\nb,1\n", ["row 2 of {file}", "is None"]),
    "unclosed": ("own.csv", 'label,sentence\n0,a\n1,"b\n0,c\n', ["{file}", "unexpected end of"]),
    "a stray quote": ("own.csv", f'{HEAD}"a,0\nb,1\nc "d",0\ne,1\n', ["{file}", "',' expected"]),
    "semicolons": ("own.csv", "sentence;label\na;0\n", ["{file}", "sentence;label", "commas"]),
    "header only": ("own.csv", HEAD, ["{file}", "label", "Value('null')"]),
    "no bytes": ("own.csv", "", ["{file}", "No columns to parse"]),
    "duplicate columns": ("own.csv", "text,text,label\na,b,1\n", ["{file}", "each name once"]),
    "-1": ("own.csv", f"{HEAD}a,0\nb,-1\nc,1\n", ["row 2 of {file}", "is -1", "GLUE hides"]),
    "one class": ("own.csv", f"{HEAD}a,1\nb,1\n", ["{file}", "label", "'1' in all rows"]),
    "NaN": ("own.csv", f"{HEAD}a,0.5\nb,nan\n", ["row 2 of {file}", "label", "is 'nan'"]),
    "cut short": ("own.json", GOOD[".json"][:-12], ["{file}", "in row 1"]),
    "no objects": ("own.json", '[{"sentence": "a", "label": 1}, 3]', ["{file}"]),
    "nested": ("own.json", '{"sentence": {"a": "b"}, "label": 1}', ["{file}", "sentence (struct)"]),
    "None parquet": (
        "own.parquet",
        parquet(sentence=["a", None, "b"], label=[0, 1, 0]),
        ["row 2 of {file}", "column sentence", "is None", "1 of 3"],
    ),
    "csv as parquet": ("own.parquet", GOOD[".csv"], ["{file}", "Parquet magic bytes not found"]),
    "null first": ("own.json", 'null\n{"sentence": "a", "label": 0}\n', ["{file}", "with null"]),
    "damaged parquet": ("own.parquet", damaged, ["{file}", "unreadable"]),
    "date labels": (
        "own.parquet",
        arrow(sentence=pa.array(["a"]), label=pa.array([0], pa.date32())),
        ["column label of split 'train' in {file}", "date32", "integers, booleans, words"],
    ),
    "suffix": ("own.tsv", "sentence\tlabel\na\t1\n", ["{file}", ".csv, .json, .jsonl, .parq"]),
    "odd names": ("own.csv", '"a\nb\x07",c\nx,1\n', ["{file}", r"columns a b\x07 (string)"]),
}
# Own files beside a task whose columns are known, for each script.
TASKS: dict[str, tuple[str, str, str, Content, list[str]]] = {
    "cola word": (
        *("glue", "cola", "own.csv"),
        f"{HEAD}a,0\nb,maybe\n",
        ["row 2", "'maybe'", "unacceptable, acceptable, or 0 to 1"],
    ),
    "cola float": ("glue", "cola", "own.csv", f"{HEAD}a,0.0\nb,1.0\n", ["row 1", "0.0"]),
    "cola -1": ("glue", "cola", "own.csv", f"{HEAD}a,0\nb,-1\n", ["row 2 of {file}", "GLUE hides"]),
    "cola null": ("glue", "cola", "own.csv", f"{HEAD}a,0\nb,\n", ["row 2 of {file}", "is None"]),
    "cola ints": (
        *("glue", "cola", "own.json", '{"sentence": 5, "label": 1}\n'),
        ["column sentence of split 'train' in {file}", "of type Value('int64')", "column of text"],
    ),
    "no column": (
        "glue",
        "cola",
        "own.csv",
        "text,label\na,0\n",
        ["{file}", "without column 'sen"],
    ),
    "stsb range": (
        *("glue", "stsb", "own.csv", "sentence1,sentence2,label\na,b,1.5\na,b,7\n"),
        ["row 2 of {file}", "label of task stsb is 7.0", "0 to 5"],
    ),
    "stsb words": (
        *("glue", "stsb", "own.csv", "sentence1,sentence2,label\na,b,1.5\na,b,much\n"),
        ["row 2 of {file}", "'much'", "a finite number"],
    ),
    "stsb booleans": (
        *("glue", "stsb", "own.json", '{"sentence1": "a", "sentence2": "b", "label": true}'),
        ["row 1 of {file}", "True", "a finite number"],
    ),
    "lm null": (
        *("lm", "wikitext2", "own.json", '{"text": "a"}\n{"text": null}\n'),
        ["row 2 of {file}", "column text", "is None"],
    ),
    "lm bytes": ("lm", "", "own.txt", b"a\nb\x00", ["{file}", "NUL bytes"]),
    "lm nothing": ("lm", "", "own.txt", "", ["{file}", "unreadable"]),
}
CASES = {name: ("glue", "", *case) for name, case in FILES.items()} | TASKS


@pytest.mark.parametrize("case", CASES)
def test_own_files(tmp_path: Path, case: str) -> None:
    script, task, name, content, expected = CASES[case]
    path = write(tmp_path / name, content)
    message = refusal(script, task_name=task or None, train_file=path, validation_file=path)
    for text in expected:
        assert text.replace("{file}", path) in message


def test_splits_that_do_not_fit(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", f"{HEAD}a,3\nb,7\n")
    other = write(tmp_path / "other.csv", f"{HEAD}a,3\nb,1\n")
    message = refusal("glue", train_file=train, validation_file=other)
    assert f"row 2 of {other}, column label" in message
    assert "is 1; allowed: the labels of the training rows: 3, 7" in message
    message = refusal("glue", train_file=train)
    assert f"in {train} is without split 'validation';" in message
    hidden = write(tmp_path / "hidden.csv", f"{HEAD}a,3\nb,\n")
    files = {"train_file": train, "validation_file": train, "test_file": hidden}
    message = refusal("glue", **files, predict=True)
    assert f"row 2 of {hidden}, column label" in message
    assert "labels in all rows of a test split, or in none" in message
    # Sorted rows of which the first ones alone are taken.
    rows = write(tmp_path / "sorted.csv", f"{HEAD}a,3\nb,3\nc,7\n")
    message = refusal("glue", train_file=rows, validation_file=rows, max_train_samples=2)
    assert "'3' in all rows" in message


def test_data_are_read_before_a_model_is_looked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", LATIN)
    argv = ["--train_file", path, "--validation_file", path, "--model_name_or_path", "no_model"]
    with pytest.raises(Refused) as caught:
        glue.main([*argv, "--output_dir", str(tmp_path / "out")])
    assert f"the data in {path}" in one_line(caught.value)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".run.lock"]


def test_a_long_cell_and_many_columns_stay_one_short_line(tmp_path: Path) -> None:
    names, row = (",".join(f"{word}{i}" for i in range(500)) for word in ("column_", "x" * 1000))
    path = write(tmp_path / "own.csv", f"{names}\n{row}\n")
    assert "column_19 (string), and 480 more" in refusal("glue", train_file=path)
    path = write(tmp_path / "own.csv", f"{HEAD}a,0\nb,{'x' * 10**6}\n")
    files = {"train_file": path, "validation_file": path}
    assert "xxx...; allowed" in refusal("glue", task_name="cola", **files)


def test_good_files_are_read(tmp_path: Path) -> None:
    for kind, content in GOOD.items():
        path = write(tmp_path / f"own{kind}", content)
        script = "lm" if kind == ".txt" else "glue"
        _, rows = load(script, train_file=path, validation_file=path)
        assert len(rows["train"]) == 2


# Folders in the hub's layout: the card, the validation split's file, and words of the refusal.
CARD = "---\nconfigs:\n- config_name: cola\n  data_files:\n"
TRAIN, VALIDATION = (f"  - split: {s}\n    path: cola/{s}-*\n" for s in ("train", "validation"))
ROWS = parquet(sentence=["a", "b"], label=[0, 1])
FOLDERS: dict[str, tuple[str | None, Content, list[str]]] = {
    "cut, with a card": (f"{CARD}{TRAIN}{VALIDATION}---\n", cut, ["{path} is unreadable"]),
    "cut, without": (None, cut, ["{path} is unreadable"]),
    "damaged": (f"{CARD}{TRAIN}{VALIDATION}---\n", damaged, ["{path} is unreadable"]),
    "other splits": (
        f"{CARD}{TRAIN}{VALIDATION.replace('split: validation', 'split: dev')}---\n",
        *(ROWS, ["without split 'validation'", "it has train, dev", "{folder}"]),
    ),
    "another config": (
        f"{CARD.replace('cola', 'colla')}{TRAIN}---\n", ROWS, ["dataset_name", "{folder}", "colla"],
    ),
    "None in a row": (
        f"{CARD}{TRAIN}{VALIDATION}---\n",
        *(parquet(sentence=["a", None], label=[0, 1]), ["row 2 of {path}", "is None"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(tmp_path: Path, case: str) -> None:
    card, content, expected = FOLDERS[case]
    folder = tmp_path / "data"
    write(folder / "cola" / "train-0.parquet", ROWS)
    path = write(folder / "cola" / "validation-0.parquet", content)
    if card is not None:
        write(folder / "README.md", card)
    message = refusal("glue", task_name="cola", dataset_name=str(folder))
    for text in expected:
        assert text.format(path=path, folder=folder) in message


def test_rows_of_many_files(tmp_path: Path) -> None:
    for number, texts in enumerate((["a", "b", "c"], ["d", None], ["e"])):
        path = tmp_path / "cola" / f"train-{number}.parquet"
        write(path, parquet(sentence=texts, label=[0, 1, 0][: len(texts)]))
    write(tmp_path / "cola" / "validation-0.parquet", parquet(sentence=["a"], label=[1]))
    message = refusal("glue", task_name="cola", dataset_name=str(tmp_path))
    assert f"row 5 of split 'train' (3 files in {tmp_path / 'cola'})" in message
    write(tmp_path / "cola" / "train-1.parquet", parquet(sentence=[["a"]], label=[1]))
    message = refusal("glue", task_name="cola", dataset_name=str(tmp_path))
    assert "whose columns have one type each" in message


def test_a_source_that_cannot_be_reached(tmp_path: Path) -> None:
    for name in ("nobody/nothing_of_this_name", "/no/such/folder"):
        for script, task in {"glue": "cola", "lm": "wikitext2"}.items():
            message = refusal(script, task_name=task, dataset_name=name)
            start = f"dataset_name is {name!r}; allowed: a hub id that can be reached"
            assert message.startswith(start)
    path = write(tmp_path / "own.csv", GOOD[".csv"])
    assert "none beside own files" in refusal("glue", train_file=path, dataset_name="x")
    test = {"train_file": path, "validation_file": path, "test_file": path}
    message = refusal("image_classification", task_name="mnist", **test)
    assert "None with task mnist, which has no such split" in message
    assert "allowed: cola, sst2" in refusal("glue")
