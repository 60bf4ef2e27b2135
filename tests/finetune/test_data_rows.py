"""Columns and limits: which rows and columns a run reads, and that it guesses none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_code
import tiny_task
from bad_data import load, parquet, write
from datasets import Dataset, DatasetDict

import tasks
from finetune.data import rows as data
from finetune.errors import Refused
from finetune.settings.groups import DataArguments


@pytest.mark.parametrize("card", [True, False])
def test_limits_take_the_first_rows_of_the_hubs_layout(tmp_path: Path, card: bool) -> None:
    folder = tiny_task.save_data(tasks.get("mnli"), tmp_path, card=card)
    limits = {"max_train_samples": 3, "max_eval_samples": 2, "max_predict_samples": 100}
    source = {"task_name": "mnli", "dataset_name": str(folder)}
    task, rows = load("glue", **source, **limits, predict=True)
    assert task == tasks.get("mnli")
    assert rows["train"]["labels"][:] == [0, 1, 2]
    assert "labels" not in rows["test_matched"].column_names
    assert {name: len(split) for name, split in rows.items()} == {
        "train": 3,
        "validation_matched": 2,
        "validation_mismatched": 2,
        "test_matched": 5,
        "test_mismatched": 5,
    }


def test_own_files_without_a_task(tmp_path: Path) -> None:
    for columns, expected, labels in (
        ({"text": ["a", "b", "c"], "label": [3, 7, 3]}, ("classify", ("3", "7")), [0, 1, 0]),
        ({"text": ["a", "b"], "label": [True, False]}, ("classify", ("0", "1")), [1, 0]),
        ({"text": ["a"], "label": [0.5]}, ("regress", ()), [0.5]),
    ):
        path = write(tmp_path / "own.parquet", parquet(**columns))
        task, rows = load("glue", train_file=path, validation_file=path)
        assert (task.objective, task.label_names, task.text_columns) == (*expected, ("text",))
        assert rows["train"]["labels"][:] == labels


REVIEWS = "review_id,text,stars\nr-1,a good cat,high\nr-2,a bad dog,low\n"


def test_columns_of_own_files_are_named_and_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text(REVIEWS.replace("stars", "label"))
    files = {"train_file": str(path), "validation_file": str(path)}
    message = (
        rf"^train_file in {path} is a table with the columns review_id \(string\), text "
        r"\(string\), label \(string\); .* it has 2\. Give .*--text_column_names review_id,text\. "
    )
    with pytest.raises(Refused, match=message):
        load("glue", **files)
    task, rows = load("glue", **files, text_column_names=["text"])
    assert task.columns == {"text": "text", "label": "label"}
    assert rows["train"][0] == {"text": "a good cat", "labels": 0}
    path.write_text(REVIEWS)
    with pytest.raises(Refused, match=r"with the column label of.*--label_column_name"):
        load("glue", **files, text_column_names=["text"])
    named = {"label_column_name": "stars"}
    task, rows = load("glue", **files, **named, text_column_names=["text,review_id"])
    assert task.columns == {"text": "text", "text_pair": "review_id", "label": "stars"}
    assert rows["train"][1] == {"text": "a bad dog", "review_id": "r-2", "labels": 1}
    with pytest.raises(Refused, match=r"without column 'body'.*it has review_id, text, stars"):
        load("glue", **files, **named, text_column_names=["body"])


def test_the_tables_that_the_docs_show_are_read_as_they_say(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text("utf-8")
    shown = re.findall(r"\n\n([^\n]+)\n\n```(csv|json)\n(.*?)```", page, re.DOTALL)
    found = {}
    for number, (sentence, kind, table) in enumerate(shown):
        words = re.search(
            r"`--text_column_names ([\w,]+)(?: --label_column_name (\w+))?`", sentence
        )
        flags = {}
        if words:
            flags = {"text_column_names": [words[1]], "label_column_name": words[2]}
        path = write(tmp_path / f"{number}.{kind}", table)
        task, rows = load("glue", train_file=path, validation_file=path, **flags)
        assert len(rows["train"]) == 2
        found[sentence.split(" ")[0].rstrip(":")] = (task.objective, *task.columns.values())
    assert found == {
        "Sentences": ("classify", "text", "label"),
        "With": ("classify", "review", "label"),
        "Pairs": ("classify", "premise", "hypothesis", "relation"),
        "Regression": ("regress", "one", "two", "score"),
        "Code": ("classify", "func", "target"),
    }


def test_a_tasks_columns_may_have_other_names(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "id,NA,is_good\n1,007,0\n2,a dog,1\n")
    flags = {"text_column_names": ["NA"], "label_column_name": "is_good"}
    flags |= {"train_file": path, "validation_file": path}
    task, rows = load("glue", task_name="cola", **flags)
    assert (task.name, task.columns) == ("cola", {"text": "NA", "label": "is_good"})
    assert rows["train"][:] == {"NA": ["007", "a dog"], "labels": [0, 1]}
    task, _ = load("glue", task_name="rte", **flags)
    assert task.columns == {"text": "NA", "label": "is_good"}
    with pytest.raises(Refused, match=r"columns of text other than the label's, is_good"):
        load("glue", **{**flags, "text_column_names": ["is_good"]})
    for names in (["a", "b", "c"], ["a,"], ["a", "a"]):
        with pytest.raises(Refused, match=r"allowed: one column, or two that are read as a pair"):
            DataArguments(text_column_names=names)


def test_a_missing_test_split_matters_only_for_predictions() -> None:
    task = tasks.get("cola")
    rows = DatasetDict(train=tiny_task.rows(task, 4), validation=tiny_task.rows(task, 4))
    assert set(data.checked(task, rows, DataArguments(), predict=False)) == set(rows)
    with pytest.raises(ValueError, match=r"without split 'test'.*it has train, validation"):
        data.checked(task, rows, DataArguments(), predict=True)
    empty = DatasetDict({name: Dataset.from_dict({"sentence": [], "label": []}) for name in rows})
    with pytest.raises(ValueError, match=r"split 'train' of task cola is \[\]; allowed: a row"):
        data.checked(task, empty, DataArguments(), predict=False)


@pytest.mark.parametrize("card", [True, False])
def test_boolean_labels_of_a_folder_in_the_hubs_layout(tmp_path: Path, card: bool) -> None:
    folder = tiny_code.save_data(tmp_path / "data", card=card)
    source = {"task_name": "defect", "dataset_name": str(folder)}
    _, rows = load("code_classification", **source, predict=True)
    assert {name: len(split) for name, split in rows.items()} == tiny_code.SIZES
    assert rows["train"]["labels"][:] == [0, 1] * 4
    # The test split's labels are known, as Devign's and BigCloneBench's are.
    assert rows["test"]["labels"][:] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("labels", [[True, False], [1, 0], ["true", "false"]])
def test_labels_of_each_kind(tmp_path: Path, labels: list) -> None:
    columns = {"func1": ["f()", "g()"], "func2": ["f( )", "h()"], "label": labels}
    path = write(tmp_path / "pairs.parquet", parquet(**columns))
    files = {"train_file": path, "validation_file": path}
    _, rows = load("code_classification", task_name="clone", **files)
    assert rows["validation"]["labels"][:] == [1, 0]
