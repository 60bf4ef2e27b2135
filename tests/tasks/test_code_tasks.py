"""The rows of the code tasks, from the hub's layout on disk and from own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_code
from datasets import Dataset, DatasetDict

import tasks
from finetune.data import rows as data
from finetune.settings.groups import DataArguments
from tasks import code_classification

FAMILY = code_classification.FAMILY


def test_the_family_has_the_three_tasks() -> None:
    assert tasks.names(FAMILY) == ["defect", "clone", "demo"]
    for name in tasks.names(FAMILY):
        task = tasks.get(name, FAMILY)
        assert task.verbatim
        assert task.label_names == ("false", "true")
    assert tasks.get("clone").main_metric == "f1"
    assert not any(
        task.verbatim for (family, _), task in tasks.registered().items() if family == "glue"
    )


@pytest.mark.parametrize("card", [True, False])
def test_boolean_labels_of_a_folder_in_the_hubs_layout(tmp_path: Path, card: bool) -> None:
    folder = tiny_code.save_data(tmp_path / "data")
    if not card:
        (folder / "README.md").unlink()
    _, rows = load("defect", dataset_name=str(folder), predict=True)
    assert {name: len(split) for name, split in rows.items()} == tiny_code.SIZES
    assert rows["train"]["labels"][:] == [0, 1] * 4
    # The test split's labels are known, as Devign's and BigCloneBench's are.
    assert rows["test"]["labels"][:] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    "labels", [[True, False], [1, 0], ["true", "false"]], ids=["bool", "int", "word"]
)
@pytest.mark.parametrize("ending", ["json", "parquet", "csv"])
def test_own_files_with_labels_of_each_kind(tmp_path: Path, labels: list, ending: str) -> None:
    columns = {"func1": ["f()", "g()"], "func2": ["f( )", "h()"], "label": labels}
    path = tmp_path / f"pairs.{ending}"
    if ending == "json":
        path.write_text(
            "\n".join(
                json.dumps(dict(zip(columns, row, strict=True)))
                for row in zip(*columns.values(), strict=True)
            )
        )
    else:
        getattr(Dataset.from_dict(columns), f"to_{ending}")(path)
    _, rows = load("clone", train_file=str(path), validation_file=str(path))
    assert rows["validation"]["labels"][:] == [1, 0]


@pytest.mark.full
def test_the_demo_needs_no_source() -> None:
    _, rows = load("demo", predict=True, max_train_samples=6, max_eval_samples=4)
    assert rows["train"]["labels"][:] == [0, 1, 0, 1, 0, 1]
    assert rows["validation"].column_names == ["func", "labels"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"code": ["f"], "target": [True]}, r"without column 'func'.*func, target; it has code, t"),
        (
            {"func": ["f"], "label": [True]},
            r"without column 'target'.*func, target; it has func, l",
        ),
        (
            {"func": ["f"], "target": [2]},
            r"target of task defect is 2; allowed: false, true, or 0 ",
        ),
        ({"func": ["f"], "target": ["maybe"]}, r"is 'maybe'; allowed: false, true, or 0 to 1"),
        ({"func": ["f"], "target": [None]}, r"is None; allowed: false, true"),
        ({"func": [], "target": []}, r"split 'train' of task defect is \[\]; allowed: a row"),
    ],
)
def test_refusals_of_rows(columns: dict[str, list], message: str) -> None:
    rows = DatasetDict(train=Dataset.from_dict(columns), validation=Dataset.from_dict(columns))
    with pytest.raises(ValueError, match=message):
        data.checked(tasks.get("defect"), rows, DataArguments(), predict=False)


def test_a_task_of_another_family_names_its_script() -> None:
    with pytest.raises(ValueError, match=r"clone, demo\. Run it with finetune/glue\.py"):
        load("cola")


def load(
    name: str, *, predict: bool = False, **arguments: object
) -> tuple[tasks.Task, DatasetDict]:
    return data.load(DataArguments(task_name=name, **arguments), FAMILY, predict)
