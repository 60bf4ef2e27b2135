"""Rows are those of the files that were named, as they are at that moment, for every script."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from datasets import Dataset, DatasetDict

from finetune.data import rows, sources, text
from finetune.settings.groups import DataArguments
from finetune.settings.language import LanguageDataArguments

ROOT = Path(__file__).parents[2]
SPLITS = ("train", "validation")
# Of each script: the task, the column of its text, the folder of its configuration.
SCRIPTS = {
    "glue": ("cola", "sentence", "cola"),
    "lm": ("wikitext2", "text", "wikitext-2-raw-v1"),
    "code_classification": ("defect", "func", "default"),
}
LABELS = {"glue": {"label": [0, 1]}, "lm": {}, "code_classification": {"target": [False, True]}}


def save(folder: Path, script: str, word: str, *, card: bool = True) -> Path:
    """Two rows of this word a split, in the hub's layout, with the hub's card."""
    _, column, config = SCRIPTS[script]
    (folder / config).mkdir(parents=True, exist_ok=True)
    lines = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
    for split in SPLITS:
        table = Dataset.from_dict({column: [f"{word} one", f"{word} two"], **LABELS[script]})
        table.to_parquet(folder / config / f"{split}-00000-of-00001.parquet")
        lines += [f"  - split: {split}", f"    path: {config}/{split}-*"]
    if card:
        (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return folder


def read(script: str, folder: Path | str) -> DatasetDict:
    """What the script trains on."""
    task, _, _ = SCRIPTS[script]
    if script == "lm":
        return text.load(LanguageDataArguments(task_name=task, dataset_name=str(folder)), False)[1]
    arguments = DataArguments(task_name=task, dataset_name=str(folder))
    return rows.load(arguments, script, predict=False)[1]


def words(found: DatasetDict, script: str) -> set[str]:
    """The words that its rows were made of."""
    return {row.split()[0] for split in found.values() for row in split[SCRIPTS[script][1]]}


@pytest.fixture(params=SCRIPTS)
def script(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("card", [True, False])
def test_another_folder_of_the_same_name(tmp_path: Path, script: str, card: bool) -> None:
    first = save(tmp_path / "x" / "data", script, "first", card=card)
    second = save(tmp_path / "y" / "data", script, "second", card=card)
    assert words(read(script, first), script) == {"first"}
    assert words(read(script, second), script) == {"second"}


@pytest.mark.parametrize("card", [True, False])
def test_the_same_folder_after_a_change(tmp_path: Path, script: str, card: bool) -> None:
    """Even one that keeps the files' times and sizes, as a copy may."""
    folder = save(tmp_path / "data", script, "first", card=card)
    assert words(read(script, folder), script) == {"first"}
    times = {path: path.stat() for path in folder.rglob("*.parquet")}
    save(folder, script, "other", card=card)
    for path, was in times.items():
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert words(read(script, folder), script) == {"other"}


def test_a_relative_path_from_another_working_directory(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("x", "y"):
        save(tmp_path / place / "data", script, place)
    for place in ("x", "y"):
        monkeypatch.chdir(tmp_path / place)
        assert words(read(script, "data"), script) == {place}


READ = """
import sys
from test_data_local import read, words
print(*words(read(sys.argv[1], sys.argv[2]), sys.argv[1]))
"""


def test_two_runs_at_once_that_share_the_cache(tmp_path: Path) -> None:
    folders = {word: save(tmp_path / word / "data", "glue", word) for word in ("one", "two")}
    path = os.pathsep.join(map(str, (Path(__file__).parent, ROOT / "tests", ROOT)))
    shared = {"PYTHONPATH": path, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    started = {
        word: subprocess.Popen(
            [warm.python("finetune"), "-c", READ, "glue", str(folder)],
            env=os.environ | shared,
            stdout=subprocess.PIPE,
            text=True,
        )
        for word, folder in folders.items()
    }
    assert {word: p.communicate()[0].strip() for word, p in started.items()} == {
        "one": "one",
        "two": "two",
    }


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
        arguments = DataArguments(train_file=str(path), validation_file=str(path))
        _, found = rows.load(arguments, "glue", predict=False)
        assert words(found, "glue") == {word}


def test_what_was_read_is_told(tmp_path: Path) -> None:
    folder = save(tmp_path / "data", "glue", "first")
    told = sources.origin(read("glue", folder))
    file = folder / "cola" / "train-00000-of-00001.parquet"
    assert told["train"]["files"] == {str(file): file.stat().st_size}
    assert (told["train"]["rows"], set(told)) == (2, set(SPLITS))
    assert json.loads(json.dumps(told)) == told
    save(folder, "glue", "other")
    again = sources.origin(read("glue", folder))
    assert again["train"]["digest"] != told["train"]["digest"]
    assert again["train"]["digest"] == again["validation"]["digest"]


def test_the_digest_knows_rows_of_lists() -> None:
    digests = [
        sources.origin({"train": Dataset.from_dict({"a": values})})["train"]["digest"]
        for values in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2], [3]])
    ]
    assert digests[0] == digests[2] != digests[1]
