"""Every wrong file is refused in one line that says which file, row and column it is about."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pytest
from bad_data import (
    GOOD,
    Content,
    arrow,
    bad_utf8,
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
    "empty quoted cell": ("own.csv", f'{HEAD}a,0\n"",1\n', ["row 2 of {file}", "column sentence"]),
    "empty label": ("own.csv", f"{HEAD}a,0\nb,\nc,1\n", ["row 2 of {file}", "label", "is None"]),
    "label NA": ("own.csv", f"{HEAD}a,0\nb,1\nc,NA\n", ["row 3 of {file}", "label", "'NA'"]),
    "word NA": ("own.csv", f"{HEAD}a,yes\nb,no\nc,NA\n", ["row 3 of {file}", "label", "'NA'"]),
    "mixed labels": ("own.csv", f"{HEAD}a,0\nb,one\nc,1\n", ["row 2 of {file}", "label", "'one'"]),
    "huge label": ("own.csv", f"{HEAD}a,1\nb,{10**25}\n", ["row 2 of {file}", "label", "2**53"]),
    "Latin-1": ("own.csv", LATIN, ["line 3 of {file}", r"caf\xe9", "UTF-8", "iconv -f WINDOWS"]),
    "Latin-1 header": ("own.csv", b"caf\xe9,label\na,1\n", ["line 1 of {file}", "UTF-8"]),
    "Latin-1 json": ("own.json", b'{"sentence": "caf\xe9"}', ["line 1 of {file}", "UTF-8"]),
    "UTF-16": (
        "own.csv", GOOD[".csv"].encode("utf-16"), ["{file}", "in UTF-16", "iconv -f UTF-16"],
    ),
    "UTF-16 bare": ("own.csv", GOOD[".csv"].encode("utf-16-le"), ["{file}", "UTF-16", "iconv"]),
    "UTF-16 json": ("own.json", GOOD[".json"].encode("utf-16"), ["{file}", "UTF-16", "iconv"]),
    "UTF-32": ("own.csv", GOOD[".csv"].encode("utf-32"), ["{file}", "in UTF-32"]),
    "a cell too many": ("own.csv", f"{HEAD}a,0\nb,c,1\n", ["row 2 of {file}", "2 cells", "has 3"]),
    "too many always": ("own.csv", f"{HEAD}0,a,0\n1,b,1\n", ["row 1 of {file}", "has 3"]),
    "a cell too few": ("own.csv", f"{HEAD}a,0\nb\nc,1\n", ["row 2 of {file}", "2 cells", "has 1"]),
    "unclosed quote": (
        "own.csv", f'{HEAD}a,0\n"b,1\nc,0\n', ["begins in line 3 of {file}", "quote"],
    ),
    "unclosed last": ("own.csv", 'label,sentence\n0,a\n1,"b\n0,c\n', ["line 3 of {file}", "quote"]),
    "after a quote": ("own.csv", f'{HEAD}a,0\n"b" c,1\n', ["line 3 of {file}", "quote"]),
    "quotes over rows": (
        "own.csv", f'{HEAD}"a,0\nb,1\nc",0\n"d,1\n', ["line 5 of {file}", "quote"],
    ),
    "semicolons": ("own.csv", "sentence;label\na;0\n", ["{file}", "sentence;label", "commas"]),
    "header only": ("own.csv", HEAD, ["{file}", "a row or more"]),
    "blank lines": ("own.csv", "\n\n\n", ["{file}", "it is empty"]),
    "no bytes": ("own.csv", "", ["{file}", "it is empty"]),
    "duplicate columns": (
        "own.csv", "sentence,sentence,label\na,b,1\n", ["{file}", "'sentence'", "2"],
    ),
    "three texts": (
        "own.csv", "id,a,b,label\nx,y,z,1\nx,y,z,0\n", ["id (string), a (str", "one or two"],
    ),
    "-1": ("own.csv", f"{HEAD}a,0\nb,-1\nc,1\n", ["row 2 of {file}", "is -1", "GLUE hides"]),
    "-1 as text": (
        "own.json", '{"sentence": "a", "label": "-1"}', ["row 1 of {file}", "GLUE hides"],
    ),
    "one class": (
        "own.csv", f"{HEAD}a,1\nb,1\n", ["{file}", "label", "1 in all rows", "two labels"],
    ),
    "infinite": (
        "own.csv", f"{HEAD}a,0.5\nb,inf\n", ["row 2 of {file}", "label", "is inf", "finite"],
    ),
    "NaN": ("own.csv", f"{HEAD}a,0.5\nb,nan\n", ["row 2 of {file}", "label", "is nan", "finite"]),
    "NaN json": (
        "own.json",
        '{"sentence": "a", "label": 0.5}\n{"sentence": "b", "label": NaN}\n',
        ["row 2 of {file}", "label", "is nan", "finite"],
    ),
    "1e400": ("own.csv", f"{HEAD}a,0.5\nb,1e400\n", ["row 2 of {file}", "label", "is inf"]),
    "beyond int64": (
        "own.json",
        f'{{"sentence": "a", "label": 1}}\n{{"sentence": "b", "label": {10**20}}}\n',
        ["row 2 of {file}", "label", "1e+20", "2**53"],
    ),
    "cut short": ("own.json", GOOD[".json"][:-12], ["row 2 of {file}", "a dog"]),
    "cut in a list": (
        "own.json", '[{"sentence": "a", "label": 1},', ["{file}", "its list", "line 1"],
    ),
    "garbage": ("own.jsonl", GOOD[".json"] + "what\n", ["row 3 of {file}", "'what'"]),
    "no objects": ("own.json", '[{"sentence": "a", "label": 1}, 3]', ["row 2 of {file}", "is 3"]),
    "number json": ("own.json", "3\n", ["row 1 of {file}", "an object of columns"]),
    "null before rows": ("own.json", 'null\n{"sentence": "a"}', ["row 1 of {file}", "null"]),
    "commas json": (
        "own.json", '{"sentence": "a", "label": 1},\n{"sentence": "b", "label": 0}\n',
        ["row 2 of {file}", "','", "a whole JSON object"],
    ),
    "a number too big": ("own.json", '{"a": 1}\n{"a": 1e999}\n', ["row 2 of {file}", "too big"]),
    "NUL in a name": ("own.json", '{"a\\u0000": "b", "label": 1}', ["{file}", "can be read"]),
    "blank json": ("own.json", "\n  \n", ["{file}", "it is empty"]),
    "empty list": ("own.json", "[]", ["{file}", "it is empty"]),
    "types json": (
        "own.json",
        '{"sentence": "a", "label": 1}\n{"sentence": 5, "label": 0}\n',
        ["column sentence in row 2 of {file}", "of type number", "it was string"],
    ),
    "types in a list": (
        "own.json",
        '[{"sentence": "a", "label": 1}, {"sentence": "b", "label": true}]',
        ["column label in row 2 of {file}", "of type boolean", "it was number"],
    ),
    "twice json": ("own.json", '{"sentence": "a", "sentence": "b"}', ["row 1 of {file}", "twice"]),
    "twice in a list": ("own.json", '[{"a": "b", "a": "c"}]', ["{file}", "twice", "a, a"]),
    "lone surrogate": ("own.json", '{"sentence": "\\ud800"}', ["row 1 of {file}", "surrogate"]),
    "nested": (
        "own.json",
        '{"sentence": {"en": "a"}, "label": 1}',
        ["{file}", "sentence (struct)", "one or two columns of text"],
    ),
    "null json": (
        "own.json",
        '{"sentence": "a", "label": 1}\n{"sentence": null, "label": 0}\n',
        ["row 2 of {file}", "column sentence", "is None"],
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
    "no parquet": ("own.parquet", b"PAR1 and nothing", ["{file}", "a whole parquet file"]),
    "csv as parquet": ("own.parquet", GOOD[".csv"], ["{file}", "a whole parquet file"]),
    "cut parquet": ("own.parquet", cut, ["{file}", "a whole parquet file"]),
    "damaged parquet": ("own.parquet", damaged, ["{file}", "a whole parquet file"]),
    "empty parquet": (
        "own.parquet",
        arrow(sentence=pa.array([], pa.string()), label=pa.array([], pa.int64())),
        ["{file}", "a row or more"],
    ),
    "parquet UTF-8": ("own.parquet", bad_utf8, ["row 2 of {file}", "column sentence", "UTF-8"]),
    "bytes": ("own.parquet", arrow(sentence=pa.array([b"a"]), label=pa.array([1])), ["(binary)"]),
    "date labels": (
        "own.parquet",
        arrow(sentence=pa.array(["a"]), label=pa.array([0], pa.date32())),
        ["row 1 of {file}", "label", "1970", "integers, booleans, words"],
    ),
    "parquet as csv": ("own.csv", parquet(sentence=["a"], label=[1]), ["{file}", "parquet"]),
    "gzip as csv": ("own.csv", gzip.compress(GOOD[".csv"].encode()), ["{file}", "gzip", "Unpack"]),
    "gzip": ("own.csv.gz", gzip.compress(GOOD[".csv"].encode()), ["{file}", ".csv, .json, .jsonl"]),
    "suffix": ("own.tsv", "sentence\tlabel\na\t1\n", ["{file}", ".csv, .json, .jsonl, .parquet"]),
    "directory": ("own.csv", lambda path: path.mkdir(), ["{file}", "It is a directory"]),
    "broken link": (
        "own.csv", lambda path: path.symlink_to("gone.csv"), ["{file}", "link to gone"],
    ),
    "pipe": ("own.csv", lambda path: os.mkfifo(path), ["{file}", "no regular file"]),
    "odd names": ("own.csv", '"a\nb\x07",c\nx,1\n', ["{file}", r"columns a b\x07 (string)"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_own_files(tmp_path: Path, case: str) -> None:
    name, content, words = FILES[case]
    path = write(tmp_path / "data" / name, content)
    said = refusal("glue", train_file=path, validation_file=path)
    for word in words:
        assert word.replace("{file}", path) in said


MAINS = {"glue": glue.main, "lm": lm.main, "code_classification": code_classification.main}


@pytest.mark.parametrize("script", MAINS)
def test_no_model_is_looked_for(tmp_path: Path, script: str) -> None:
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
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("kind", GOOD)
def test_a_file_without_permission(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"own{kind}", GOOD[kind])
    os.chmod(path, 0)
    said = refusal("lm", train_file=path, validation_file=path)
    assert path in said
    assert "Permission denied" in said


@pytest.mark.parametrize("kind", GOOD)
def test_a_file_that_cannot_be_opened(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / f"own{kind}", GOOD[kind])

    def no(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(Path, "open", no)
    said = refusal("lm", train_file=path, validation_file=path)
    assert said.startswith(f"train_file is {path!r}; allowed: a file that can be read")
    assert "Permission denied" in said


def test_a_long_cell_and_many_columns_stay_one_short_line(tmp_path: Path) -> None:
    names = ",".join(f"column_{i}" for i in range(500))
    path = write(tmp_path / "own.csv", f"{names}\n{'x' * 10**6}\n")
    assert "column_19, and 480 more" in refusal("glue", train_file=path, validation_file=path)


def test_nothing_of_this_is_said_of_good_files(tmp_path: Path) -> None:
    for kind, content in GOOD.items():
        path = write(tmp_path / f"own{kind}", content)
        script = "lm" if kind == ".txt" else "glue"
        _, rows = load(script, train_file=path, validation_file=path)
        assert len(rows["train"]) == 2
