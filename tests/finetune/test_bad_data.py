"""Every wrong file is refused in one line that names the file, and where it can the row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from bad_data import (
    GOOD,
    Content,
    arrow,
    cut,
    damaged,
    load,
    one_line,
    parquet,
    refusal,
    write,
)

from finetune import code_classification, glue, lm
from finetune.errors import Refused

HEAD = "sentence,label\n"
LATIN = "sentence,label\na,0\ncafé au lait,1\n".encode("latin-1")
# Own files of glue.py: the name, what is in it, and words of the refusal, `{file}` for the path.
FILES: dict[str, tuple[str, Content, list[str]]] = {
    "empty cell": (
        "own.csv", f"{HEAD}a,0\n,1\n", ["row 2 of {file}", "column sentence", "is None"],
    ),
    "empty label": ("own.csv", f"{HEAD}a,0\nb,\nc,1\n", ["row 2 of {file}", "label", "is None"]),
    "label NA": ("own.csv", f"{HEAD}a,0\nb,1\nc,NA\n", ["row 3 of {file}", "label", "'NA'"]),
    "word NA": ("own.csv", f"{HEAD}a,yes\nb,no\nc,NA\n", ["row 3 of {file}", "label", "'NA'"]),
    "mixed labels": ("own.csv", f"{HEAD}a,0\nb,one\nc,1\n", ["row 2 of {file}", "label", "'one'"]),
    "huge label": ("own.csv", f"{HEAD}a,1\nb,{10**25}\n", ["row 2 of {file}", "label", "2**53"]),
    "Latin-1": ("own.csv", LATIN, ["line 3 of {file}", r"caf\xe9", "UTF-8", "iconv -f WINDOWS"]),
    "UTF-16": ("own.csv", GOOD[".csv"].encode("utf-16-le"), ["line 1 of {file}", "-f UTF-16"]),
    "UTF-16 json": ("own.json", GOOD[".json"].encode("utf-16"), ["line 1 of {file}", "UTF-16"]),
    "a cell too many": ("own.csv", f"{HEAD}a,0\nb,c,1\n", ["{file}", "Row #3", "got 3", "header"]),
    "too many always": ("own.csv", f"{HEAD}0,a,0\n1,b,1\n", ["{file}", "Row #2", "got 3"]),
    "a cell too few": ("own.csv", f"{HEAD}a,0\nb\nc,1\n", ["{file}", "Row #3", "got 1"]),
    "unclosed last": (
        "own.csv", 'label,sentence\n0,a\n1,"b\n0,c\n', ["a quote up to line 4 of {file}"],
    ),
    "after a quote": ("own.csv", f'{HEAD}a,0\n"b" c,1\n', ["a quote up to line 3 of {file}"]),
    "semicolons": ("own.csv", "sentence;label\na;0\n", ["{file}", "sentence;label", "commas"]),
    "header only": ("own.csv", HEAD, ["{file}", "a row or more"]),
    "no bytes": ("own.csv", "", ["{file}", "Empty CSV file"]),
    "duplicate columns": (
        "own.csv", "sentence,sentence,label\na,b,1\n", ["{file}", "sentence, sentence", "once"],
    ),
    "-1": ("own.csv", f"{HEAD}a,0\nb,-1\nc,1\n", ["row 2 of {file}", "is -1", "GLUE hides"]),
    "one class": (
        "own.csv", f"{HEAD}a,1\nb,1\n", ["{file}", "label", "1 in all rows", "two labels"],
    ),
    "infinite": (
        "own.csv", f"{HEAD}a,0.5\nb,inf\n", ["row 2 of {file}", "label", "is inf", "finite"],
    ),
    "NaN": ("own.csv", f"{HEAD}a,0.5\nb,nan\n", ["row 2 of {file}", "label", "is nan", "finite"]),
    "cut short": ("own.json", GOOD[".json"][:-12], ["{file}", "in row 1 (rows of json", "from 0"]),
    "no objects": ("own.json", '[{"sentence": "a", "label": 1}, 3]', ["{file}"]),
    "null before rows": ("own.json", 'null\n{"sentence": "a"}', ["line 1 of {file}", "null"]),
    "blank json": ("own.json", "\n  \n", ["{file}", "no data"]),
    "types json": (
        "own.json",
        '{"sentence": "a", "label": 1}\n{"sentence": 5, "label": 0}\n',
        ["{file}", "sentence (", "Give --label_column_name"],
    ),
    "nested": (
        "own.json", '{"sentence": {"en": "a"}, "label": 1}', ["{file}", "sentence (struct)"],
    ),
    "key left out": (
        "own.json",
        '{"sentence": "a", "label": 1}\n{"sentence": "b"}\n',
        ["row 2 of {file}", "column label", "is None"],
    ),
    "None parquet": (
        "own.parquet",
        parquet(sentence=["a", None, "b"], label=[0, 1, 0]),
        ["row 2 of {file}", "column sentence", "is None", "1 of 3"],
    ),
    "csv as parquet": ("own.parquet", GOOD[".csv"], ["{file}", "Parquet magic bytes not found"]),
    "cut parquet": ("own.parquet", cut, ["{file}", "unreadable"]),
    "damaged parquet": ("own.parquet", damaged, ["{file}", "unreadable"]),
    "empty parquet": (
        "own.parquet",
        arrow(sentence=pa.array([], pa.string()), label=pa.array([], pa.int64())),
        ["{file}", "unreadable"],
    ),
    "bytes": ("own.parquet", arrow(sentence=pa.array([b"a"]), label=pa.array([1])), ["(binary)"]),
    "date labels": (
        "own.parquet",
        arrow(sentence=pa.array(["a"]), label=pa.array([0], pa.date32())),
        ["row 1 of {file}", "label", "1970", "integers, booleans, words"],
    ),
    "suffix": ("own.tsv", "sentence\tlabel\na\t1\n", ["{file}", ".csv, .json, .jsonl, .parquet"]),
    "directory": ("own.csv", lambda path: path.mkdir(), ["{file}", "an existing file"]),
    "broken link": (
        "own.csv", lambda path: path.symlink_to("gone.csv"), ["{file}", "an existing file"],
    ),
    "odd names": ("own.csv", '"a\nb\x07",c\nx,1\n', ["{file}", r"columns a b\x07 (string)"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_own_files(tmp_path: Path, case: str) -> None:
    name, content, words = FILES[case]
    path = write(tmp_path / "data" / name, content)
    message = refusal("glue", train_file=path, validation_file=path)
    for word in words:
        assert word.replace("{file}", path) in message


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
    "stsb words": (
        "glue", "stsb", "own.csv", "sentence1,sentence2,label\na,b,1.5\na,b,much\n",
        ["row 2 of {file}", "'much'", "a finite number"],
    ),
    "stsb booleans": (
        "glue", "stsb", "own.json", '{"sentence1": "a", "sentence2": "b", "label": true}',
        ["row 1 of {file}", "True", "a finite number"],
    ),
    "second text": (
        "glue", "rte", "own.csv", "sentence1,sentence2,label\na,b,1\na,,0\n",
        ["row 2 of {file}", "column sentence2"],
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
    "lm bytes": ("lm", "", "own.txt", b"a\x00b", ["line 1 of {file}", "UTF-8"]),
    "lm nothing": ("lm", "", "own.txt", "", ["{file}", "unreadable"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TASKS)
def test_own_files_of_a_task(tmp_path: Path, case: str) -> None:
    script, task, name, content, words = TASKS[case]
    path = write(tmp_path / name, content)
    message = refusal(script, task_name=task or None, train_file=path, validation_file=path)
    for word in words:
        assert word.replace("{file}", path) in message


def test_splits_that_do_not_fit(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", f"{HEAD}a,3\nb,7\n")
    other = write(tmp_path / "other.csv", f"{HEAD}a,3\nb,1\n")
    message = refusal("glue", train_file=train, validation_file=other)
    assert f"row 2 of {other}, column label" in message
    assert "is 1; allowed: the labels of the training rows: 3, 7" in message
    message = refusal("glue", train_file=train)
    assert f"in {train} is \"without split 'validation'\"" in message
    bare = write(tmp_path / "bare.csv", "text,label\na,3\n")
    message = refusal("glue", train_file=train, validation_file=bare)
    assert f"in {bare} is \"without column 'sentence'\"" in message
    hidden = write(tmp_path / "hidden.csv", f"{HEAD}a,3\nb,\n")
    files = {"train_file": train, "validation_file": train, "test_file": hidden}
    message = refusal("glue", **files, predict=True)
    assert f"row 2 of {hidden}, column label" in message
    assert "labels in all rows of a test split, or in none" in message


MAINS = {"glue": glue.main, "lm": lm.main, "code_classification": code_classification.main}


@pytest.mark.parametrize("script", MAINS)
def test_data_are_read_before_a_model_is_looked_for(tmp_path: Path, script: str) -> None:
    path = write(tmp_path / "own.csv", LATIN)
    flags = {
        "train_file": path,
        "validation_file": path,
        "model_name_or_path": "no_model",
        "output_dir": str(tmp_path / "out"),
    }
    with pytest.raises(Refused) as caught:
        MAINS[script]([word for name, value in flags.items() for word in (f"--{name}", value)])
    assert f"line 3 of {path}" in one_line(caught.value)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".run.lock"]


def test_a_long_cell_and_many_columns_stay_one_short_line(tmp_path: Path) -> None:
    names, row = (",".join(f"{word}{i}" for i in range(500)) for word in ("column_", "x" * 1000))
    path = write(tmp_path / "own.csv", f"{names}\n{row}\n")
    assert "column_19 (string), and 480 more" in refusal("glue", train_file=path)
    path = write(tmp_path / "own.csv", f"{HEAD}a,0\nb,{'x' * 10**6}\n")
    assert "xxx...; allowed" in refusal(
        "glue", task_name="cola", train_file=path, validation_file=path
    )


def test_good_files_are_read(tmp_path: Path) -> None:
    for kind, content in GOOD.items():
        path = write(tmp_path / f"own{kind}", content)
        script = "lm" if kind == ".txt" else "glue"
        _, rows = load(script, train_file=path, validation_file=path)
        assert len(rows["train"]) == 2
