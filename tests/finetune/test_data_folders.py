"""Wrong folders, and hub ids that cannot be reached, are refused in one line that says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_data import GOOD, Content, cut, damaged, parquet, refusal, write

HUB_TASKS = {"glue": "cola", "lm": "wikitext2", "code_classification": "defect"}
# Folders in the hub's layout: the card, whether a file is broken, and words of the refusal.
CARD = "---\nconfigs:\n- config_name: cola\n  data_files:\n"
TRAIN, VALIDATION = (f"  - split: {s}\n    path: cola/{s}-*\n" for s in ("train", "validation"))
FOLDERS: dict[str, tuple[str | None, str, list[str]]] = {
    "broken with a card": (f"{CARD}{TRAIN}{VALIDATION}---\n", "cut", ["{broken} is unreadable"]),
    "broken without": (None, "cut", ["{broken} is unreadable"]),
    "damaged with a card": (
        f"{CARD}{TRAIN}{VALIDATION}---\n", "damaged", ["the data in {broken} is unreadable"],
    ),
    "no YAML": ("---\nconfigs: [\n---\n", "", ["dataset_name", "{folder}", "Loading raised"]),
    "files that are not": (
        f"{CARD}  - split: train\n    path: gone/*.parquet\n---\n",
        "", ["dataset_name", "{folder}", "No (supported) data files"],
    ),
    "one file that is not": (
        f"{CARD}{TRAIN}  - split: validation\n    path: gone.parquet\n---\n",
        "", ["dataset_name", "{folder}", "gone.parquet"],
    ),
    "another config": (
        f"{CARD.replace('cola', 'colla')}{TRAIN}---\n", "", ["dataset_name", "{folder}", "colla"],
    ),
    "other names of splits": (
        f"{CARD}{TRAIN}{VALIDATION.replace('split: validation', 'split: dev')}---\n",
        "", ["without split 'validation'", "it has train, dev", "{folder}"],
    ),
    "nothing in it": (f"{CARD}{TRAIN}{VALIDATION}---\n", "empty", ["{broken}", "0 bytes"]),
    "None in a row": (f"{CARD}{TRAIN}{VALIDATION}---\n", "null", ["row 2 of {broken}", "is None"]),
}  # fmt: skip
BREAK: dict[str, Content] = {
    "cut": cut,
    "damaged": damaged,
    "empty": b"",
    "null": parquet(sentence=["a", None], label=[0, 1]),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(tmp_path: Path, case: str) -> None:
    card, broken, words = FOLDERS[case]
    folder = tmp_path / "data"
    for split in ("train", "validation"):
        write(folder / "cola" / f"{split}-0.parquet", parquet(sentence=["a", "b"], label=[0, 1]))
    path = folder / "cola" / "validation-0.parquet"
    if broken:
        path.unlink()
        write(path, BREAK[broken])
    if card is not None:
        write(folder / "README.md", card)
    said = refusal("glue", task_name="cola", dataset_name=str(folder))
    for word in words:
        assert word.format(broken=path, folder=folder) in said


def test_rows_of_many_files(tmp_path: Path) -> None:
    for number, texts in enumerate((["a", "b", "c"], ["d", None], ["e"])):
        path = tmp_path / "cola" / f"train-{number}.parquet"
        write(path, parquet(sentence=texts, label=[0, 1, 0][: len(texts)]))
    write(tmp_path / "cola" / "validation-0.parquet", parquet(sentence=["a"], label=[1]))
    said = refusal("glue", task_name="cola", dataset_name=str(tmp_path))
    assert f"row 5 of split 'train' (3 files in {tmp_path / 'cola'})" in said
    write(tmp_path / "cola" / "train-1.parquet", parquet(sentence=[["a"]], label=[1]))
    said = refusal("glue", task_name="cola", dataset_name=str(tmp_path))
    assert "whose columns have one type each" in said
    damaged(tmp_path / "cola" / "train-1.parquet")
    said = refusal("glue", task_name="cola", dataset_name=str(tmp_path))
    assert f"the data in {tmp_path / 'cola' / 'train-1.parquet'} is unreadable" in said


@pytest.mark.parametrize("script", HUB_TASKS)
def test_a_hub_id_that_cannot_be_reached(script: str) -> None:
    for name in ("nobody/nothing_of_this_name", "/no/such/folder"):
        said = refusal(script, task_name=HUB_TASKS[script], dataset_name=name)
        assert said.startswith(f"dataset_name is {name!r}; allowed: a hub id that can be reached")


def test_a_file_as_dataset_name(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", GOOD[".csv"])
    said = refusal("glue", task_name="cola", dataset_name=path)
    assert "It is a file: give it as train_file" in said
