"""Odd files that are right are read as they were written, and as they are at that moment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from bad_data import Content, load, load_own, write
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from tiny_task import save_splits

import tasks
from finetune.data import sources

HEAD = "sentence,label\n"
# What is in a file, and the texts and labels that are read from it.
KEPT: dict[str, tuple[str, Content, list[str], list[float]]] = {
    "NA": (".csv", f"{HEAD}NA,0\nnull,1\nNone,0\n", ["NA", "null", "None"], [0, 1, 0]),
    "booleans": (".csv", f"{HEAD}True,0\nfalse,1\n", ["True", "false"], [0, 1]),
    "numbers, then words": (
        ".csv", f"{HEAD}012,0\n" + "1e3,1\n" * 20_000 + "word,0\n",
        ["012", *["1e3"] * 20_000, "word"], [0] + [1] * 20_000 + [0],
    ),
    "BOM and quotes": (".csv", '\ufeff"sentence","label"\na,0\nb,1\n', ["a", "b"], [0, 1]),
    "BOM json": (".json", '\ufeff{"sentence": "a", "label": 0}', ["a"], [0]),
    "line ends": (".csv", f"{HEAD}a,0\nb,1\n".replace("\n", "\r\n"), ["a", "b"], [0, 1]),
    "old line ends": (".csv", f"{HEAD}a,0\nb,1".replace("\n", "\r"), ["a", "b"], [0, 1]),
    "blank lines": (".csv", f"{HEAD}\na,0\n\nb,1\n\n", ["a", "b"], [0, 1]),
    "lines in a cell": (
        ".csv", f'{HEAD}"a\n""b"", c",0\n"d\r\ne",1\n', ['a\n"b", c', "d\r\ne"], [0, 1],
    ),
    "quotes in a cell": (".csv", f'{HEAD}5" of rain,0\nb,1\n', ['5" of rain', "b"], [0, 1]),
    "a long quoted cell": (".csv", f'{HEAD}"{"x" * 10**6}",0\nb,1\n', ["x" * 10**6, "b"], [0, 1]),
    "spaces": (".csv", f"{HEAD}a, 0\n b ,1\n", ["a", " b "], [0, 1]),
    "pandas's index": (".csv", ",sentence,label\n0,a,0\n1,b,1\n", ["a", "b"], [0, 1]),
    "a list": (
        ".json", '\n[{"sentence": "a", "label": 0},\n{"label": 1, "sentence": "b"}]',
        ["a", "b"], [0, 1],
    ),
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
    _, rows = load_own(tmp_path, f"own{suffix}", content, task_name="cola")
    assert rows["train"]["sentence"][:] == texts
    assert rows["train"]["labels"][:] == labels


# The same as text for a language model.
LINES: dict[str, tuple[str, str, list[str | None]]] = {
    "an empty cell": (".csv", "n,text\n1,NA\n2,\n3,b\n", ["NA", None, "b"]),
    "a blank line": (".csv", 'text\na\n\n""\nb\n', ["a", None, None, "b"]),
    "BOM": (".txt", "\ufeffa\r\nb\n", ["a\n", "b\n"]),
    "a list of strings": (".json", '["a", "b"]', ["a", "b"]),
    "upper case": (".TXT", "a\nb", ["a\n", "b"]),
}


@pytest.mark.parametrize("case", LINES)
def test_lines_of_text(tmp_path: Path, case: str) -> None:
    suffix, content, lines = LINES[case]
    _, rows = load_own(tmp_path, f"own{suffix}", content, script="lm")
    assert rows["train"]["text"][:] == lines


def test_names_in_any_script_and_a_link(tmp_path: Path) -> None:
    target = write(tmp_path / "a" / "größe 表.csv", "文,label\n猫,hé\n犬,b\n")
    link = tmp_path / "own.csv"
    link.symlink_to(target)
    task, rows = load("glue", train_file=str(link), validation_file=str(link))
    assert (task.text_columns, task.label_names) == (("文",), ("b", "hé"))
    assert rows["train"]["文"][:] == ["猫", "犬"]


def test_a_test_file_needs_no_labels(tmp_path: Path) -> None:
    own = write(tmp_path / "own.csv", f"{HEAD}a,0\nb,1\n")
    for name, content in {
        "bare": "sentence\nc\n",
        "hidden": f"{HEAD}c,-1\n",
        "empty": f"{HEAD}c,\n",
    }.items():
        test = write(tmp_path / f"{name}.csv", content)
        files = {"train_file": own, "validation_file": own, "test_file": test}
        _, rows = load("glue", **files, predict=True)
        assert rows["test"].column_names == ["sentence"]


def test_scores_below_zero_are_no_hidden_labels(tmp_path: Path) -> None:
    own = write(tmp_path / "own.csv", f"{HEAD}a,-1.0\nb,0.5\n")
    files = {"train_file": own, "validation_file": own, "test_file": own}
    _, rows = load("glue", **files, predict=True)
    assert rows["test"]["labels"][:] == rows["train"]["labels"][:] == [-1.0, 0.5]


def test_names_of_labels_in_the_file_decide_their_order(tmp_path: Path) -> None:
    """Integers stand for the names that a parquet file gives them, not for the task's order."""
    order = Features(
        {"sentence": Value("string"), "label": ClassLabel(names=["positive", "negative"])}
    )
    table = Dataset.from_dict({"sentence": ["good", "bad"], "label": [0, 1]}, features=order)
    _, rows = load_own(
        tmp_path, "own.parquet", lambda path: table.to_parquet(path), task_name="sst2"
    )
    assert tasks.get("sst2").label_names == ("negative", "positive")
    assert rows["train"]["labels"][:] == [1, 0]


# Of each script: the task, the column of its text, the folder of its configuration.
SCRIPTS = {"glue": ("cola", "sentence", "cola"), "lm": ("wikitext2", "text", "wikitext-2-raw-v1")}
SPLITS = ("train", "validation")


def save(folder: Path, script: str, word: str, *, card: bool = True) -> Path:
    """Two rows of this word a split, in the hub's layout, with the hub's card."""
    _, column, config = SCRIPTS[script]
    table = Dataset.from_dict({column: [f"{word} one", f"{word} two"], "label": [0, 1]})
    return save_splits(folder, dict.fromkeys(SPLITS, table), config, card=card)


def read(script: str, folder: Path | str) -> DatasetDict:
    """What the script trains on."""
    return load(script, task_name=SCRIPTS[script][0], dataset_name=str(folder))[1]


def words(rows: DatasetDict, script: str) -> set[str]:
    """The words that its rows were made of."""
    return {row.split()[0] for split in rows.values() for row in split[SCRIPTS[script][1]]}


@pytest.mark.parametrize("card", [True, False])
@pytest.mark.parametrize("script", SCRIPTS)
def test_rows_are_those_of_the_folder_as_it_is_now(
    tmp_path: Path, script: str, card: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of one of the same name or relative path, nor before a change that keeps its times."""
    for word in ("first", "second"):
        save(tmp_path / word / "data", script, word, card=card)
        monkeypatch.chdir(tmp_path / word)
        assert words(read(script, "data"), script) == {word}
    times = {path: path.stat() for path in tmp_path.rglob("*.parquet")}
    save(tmp_path / "second" / "data", script, "change", card=card)
    for path, was in times.items():
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert words(read(script, "data"), script) == {"change"}


READ = """
import sys
import datasets
datasets.config.HF_DATASETS_CACHE = sys.argv[2]
from test_data_kept import read, words
print(*words(read("glue", sys.argv[1]), "glue"))
"""


def test_two_runs_at_once_that_share_the_cache(tmp_path: Path) -> None:
    folders = {word: save(tmp_path / word / "data", "glue", word) for word in ("one", "two")}
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (Path(__file__).parent, root / "tests", root)))
    shared = {"PYTHONPATH": path}
    command, options = [warm.python("finetune"), "-c", READ], {"text": True, "stdout": -1}
    started = {
        word: subprocess.Popen(
            [*command, str(folder), str(tmp_path / "cache")], env=os.environ | shared, **options
        )
        for word, folder in folders.items()
    }
    printed = {word: process.communicate()[0].strip() for word, process in started.items()}
    assert printed == {word: word for word in folders}


Write = Callable[[Dataset, Path], object]
WRITERS: dict[str, Write] = {
    "csv": lambda table, path: table.to_csv(path),
    "json": lambda table, path: table.to_json(path),
    "parquet": lambda table, path: table.to_parquet(path),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_own_files_after_a_change(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"own.{kind}"
    for word in ("first", "other"):
        table = Dataset.from_dict({"sentence": [f"{word} a", f"{word} b"], "label": [0, 1]})
        WRITERS[kind](table, path)
        os.utime(path, ns=(1, 1))
        _, rows = load("glue", train_file=str(path), validation_file=str(path))
        assert words(rows, "glue") == {word}


def test_the_origin_of_rows(tmp_path: Path) -> None:
    folder = save(tmp_path / "data", "glue", "first")
    origin = sources.origin(read("glue", folder))
    file = folder / "cola" / "train-00000-of-00001.parquet"
    assert origin["train"]["files"] == {str(file): file.stat().st_size}
    assert (origin["train"]["rows"], set(origin)) == (2, set(SPLITS))
    assert json.loads(json.dumps(origin)) == origin
    save(folder, "glue", "other")
    again = sources.origin(read("glue", folder))
    assert again["train"]["digest"] != origin["train"]["digest"]
    assert again["train"]["digest"] == again["validation"]["digest"]
    digests = [
        sources.origin({"train": Dataset.from_dict({"a": values})})["train"]["digest"]
        for values in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2], [3]])
    ]
    assert digests[0] == digests[2] != digests[1]
