"""Rows in every form a person may bring them, and what is said about those that do not fit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tiny_task
from datasets import Dataset, DatasetDict

import tasks
from finetune.data import rows as data
from finetune.errors import Refused
from finetune.settings.groups import DataArguments


def test_a_folder_with_the_hubs_card_is_read_like_the_hub(tmp_path: Path) -> None:
    tiny_task.save_data(tasks.get("mrpc"), tmp_path)
    card = ["---", "configs:", "- config_name: mrpc", "  data_files:"]
    for split in ("train", "validation", "test"):
        card += [f"  - split: {split}", f"    path: mrpc/{split}-*"]
    (tmp_path / "README.md").write_text("\n".join([*card, "---", ""]))
    task, rows = load(task_name="mrpc", dataset_name=str(tmp_path), predict=True)
    assert task == tasks.get("mrpc")
    assert {name: len(split) for name, split in rows.items()} == {
        "train": 8,
        "validation": 5,
        "test": 5,
    }
    assert rows["train"]["labels"][:4] == [0, 1, 0, 1]
    assert "labels" not in rows["test"].column_names


def test_limits_take_the_first_rows(tmp_path: Path) -> None:
    folder = tiny_task.save_data(tasks.get("mnli"), tmp_path)
    _, rows = load(
        task_name="mnli", dataset_name=str(folder), predict=True,
        max_train_samples=3, max_eval_samples=2, max_predict_samples=100,
    )  # fmt: skip
    assert {name: len(split) for name, split in rows.items()} == {
        "train": 3,
        "validation_matched": 2,
        "validation_mismatched": 2,
        "test_matched": 5,
        "test_mismatched": 5,
    }


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_own_files_with_a_tasks_schema(tmp_path: Path, kind: str) -> None:
    table = Dataset.from_dict(
        {"sentence1": ["a cat", "a dog"], "sentence2": ["the cat", "the dog"],
         "label": ["entailment", "not_entailment"]}
    )  # fmt: skip
    path = write(table, tmp_path / f"own.{kind}")
    _, rows = load(task_name="rte", train_file=path, validation_file=path, test_file=path)
    assert rows["validation"]["labels"][:] == [0, 1]
    assert set(rows) == {"train", "validation"}


def test_own_files_without_a_task(tmp_path: Path) -> None:
    table = Dataset.from_dict({"text": ["a", "b", "c"], "label": [3, 7, 3]})
    path = write(table, tmp_path / "own.csv")
    task, rows = load(train_file=path, validation_file=path)
    assert (task.objective, task.text_columns, task.label_names) == (
        "classify",
        ("text",),
        ("3", "7"),
    )
    assert rows["train"]["labels"][:] == [0, 1, 0]
    scores = Dataset.from_dict({"one": ["a"], "two": ["b"], "label": [0.5]})
    path = write(scores, tmp_path / "scores.parquet")
    task, rows = load(train_file=path, validation_file=path, text_column_names=["one", "two"])
    assert (task.objective, task.text_columns) == ("regress", ("one", "two"))
    flags = Dataset.from_dict({"text": ["a", "b"], "label": [True, False]})
    path = write(flags, tmp_path / "flags.parquet")
    task, rows = load(train_file=path, validation_file=path)
    assert (task.label_names, rows["train"]["labels"][:]) == (("0", "1"), [1, 0])


REVIEWS = "review_id,text,stars\nr-1,a good cat,high\nr-2,a bad dog,low\n"


def test_columns_of_own_files_are_named_and_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text(REVIEWS.replace("stars", "label"))
    files = {"train_file": str(path), "validation_file": str(path)}
    said = (
        rf"^train_file {path} is a table with the columns review_id \(string\), text \(string\), "
        r"label \(string\); .* it has 2\. Name the one to read, --text_column_names text, or the "
        r"two of a pair, --text_column_names review_id,text\.$"
    )
    with pytest.raises(Refused, match=said):
        load(**files)
    task, rows = load(**files, text_column_names=["text"])
    assert task.columns == {"text": "text", "label": "label"}
    assert rows["train"][0] == {"text": "a good cat", "labels": 0}
    path.write_text(REVIEWS)
    with pytest.raises(Refused, match=r"with the column label of.*--label_column_name\."):
        load(**files, text_column_names=["text"])
    task, rows = load(**files, text_column_names=["text,review_id"], label_column_name="stars")
    assert task.columns == {"text": "text", "text_pair": "review_id", "label": "stars"}
    assert rows["train"][1] == {"text": "a bad dog", "review_id": "r-2", "labels": 1}
    with pytest.raises(Refused, match=r"without column 'body'.*it has review_id, text, stars"):
        load(**files, text_column_names=["body"], label_column_name="stars")


def test_the_tables_that_the_docs_show_are_read_as_they_say(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text("utf-8")
    shown = re.findall(r"\n\n([^\n]+)\n\n```(csv|json)\n(.*?)```", page, re.DOTALL)
    found = {}
    for number, (said, kind, table) in enumerate(shown):
        words = re.search(r"`--text_column_names ([\w,]+)(?: --label_column_name (\w+))?`", said)
        flags = {}
        if words:
            flags = {"text_column_names": [words[1]], "label_column_name": words[2]}
        path = tmp_path / f"{number}.{kind}"
        path.write_text(table)
        task, rows = load(train_file=str(path), validation_file=str(path), **flags)
        assert len(rows["train"]) == 2
        found[said.split(" ")[0].rstrip(":")] = (task.objective, *task.columns.values())
    assert found == {
        "Sentences": ("classify", "text", "label"),
        "With": ("classify", "review", "label"),
        "Pairs": ("classify", "premise", "hypothesis", "relation"),
        "Regression": ("regress", "one", "two", "score"),
        "Code": ("classify", "func", "target"),
    }


def test_a_tasks_columns_may_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("id,NA,is_good\n1,007,0\n2,a dog,1\n")
    named = {"text_column_names": ["NA"], "label_column_name": "is_good"}
    task, rows = load(task_name="cola", train_file=str(path), validation_file=str(path), **named)
    assert (task.name, task.columns) == ("cola", {"text": "NA", "label": "is_good"})
    assert rows["train"][:] == {"NA": ["007", "a dog"], "labels": [0, 1]}
    with pytest.raises(Refused, match=r"allowed: a column for each of task rte: sentence1, sent"):
        load(task_name="rte", train_file=str(path), validation_file=str(path), **named)
    for names in (["a", "b", "c"], ["a,"], ["a", "a"]):
        with pytest.raises(Refused, match=r"allowed: one column, or two that are read as a pair"):
            DataArguments(text_column_names=names)


def test_refusals_of_sources(tmp_path: Path) -> None:
    text = write(Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}), tmp_path / "own.csv")
    other = write(Dataset.from_dict({"text": ["a"], "label": [0]}), tmp_path / "own.json")
    bare = write(Dataset.from_dict({"number": [1], "label": [0]}), tmp_path / "bare.csv")
    cases = [
        ({}, r"task_name is None; allowed: cola, sst2"),
        ({"task_name": "colla"}, r"task_name is 'colla'; known tasks for finetune/glue.py: cola"),
        ({"task_name": "cola", "dataset_name": str(tmp_path / "gone")}, "dataset_name is '.*gone'"),
        ({"train_file": str(tmp_path / "gone.csv")}, "train_file is '.*gone.csv'; allowed: an exi"),
        ({"train_file": text, "validation_file": other}, "allowed: files of one format"),
        ({"train_file": text, "dataset_name": "x"}, "dataset_name is 'x'; allowed: none beside"),
        ({"train_file": bare}, r"a table with the columns number \(int64\), label"),
        ({"train_file": text}, r"without split 'validation'.*train, validation; it has train\."),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            load(**arguments)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"], "label": [0]}, r"without column 'sentence'.*it has text, label\. Rename"),
        ({"sentence": ["a"]}, r"without column 'label'.*sentence, label; it has sentence\."),
        ({"sentence": ["a"], "label": [2]}, r"label of task cola is 2; allowed: unacceptable, acc"),
        ({"sentence": ["a"], "label": [-1]}, r"In row 1 of split 'train', column label .* is -1"),
        ({"sentence": ["a"], "label": [None]}, "is None; allowed: unacceptable, acceptable, or 0"),
        ({"sentence": [], "label": []}, r"split 'train' of task cola is \[\]; allowed: a row"),
    ],
)
def test_refusals_of_rows(columns: dict[str, list], message: str) -> None:
    task = tasks.get("cola")
    rows = DatasetDict(train=Dataset.from_dict(columns), validation=Dataset.from_dict(columns))
    with pytest.raises(ValueError, match=message):
        data.checked(task, rows, DataArguments(), predict=False)


def test_missing_test_split_matters_only_for_predictions() -> None:
    task = tasks.get("cola")
    rows = DatasetDict(train=tiny_task.rows(task, 4), validation=tiny_task.rows(task, 4))
    assert set(data.checked(task, rows, DataArguments(), predict=False)) == set(rows)
    with pytest.raises(ValueError, match=r"without split 'test'.*it has train, validation"):
        data.checked(task, rows, DataArguments(), predict=True)


def test_scores_must_be_numbers() -> None:
    columns = {"sentence1": ["a"], "sentence2": ["b"], "label": [float("nan")]}
    rows = DatasetDict(train=Dataset.from_dict(columns), validation=Dataset.from_dict(columns))
    with pytest.raises(ValueError, match="label of task stsb is nan; allowed: a number"):
        data.checked(tasks.get("stsb"), rows, DataArguments(), predict=False)


def load(*, predict: bool = False, **arguments: object) -> tuple[tasks.Task, DatasetDict]:
    return data.load(DataArguments(**arguments), "glue", predict)


def write(table: Dataset, path: Path) -> str:
    if path.suffix == ".json":
        path.write_text("\n".join(json.dumps(row) for row in table))
    else:
        getattr(table, f"to_{path.suffix[1:]}")(path)
    return str(path)
