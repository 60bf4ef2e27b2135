"""The tasks' registry, their rows, and the metrics against numbers worked out by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import tasks
from tasks import Split, Task
from tasks.metrics import accuracy, accuracy_and_f1, matthews_correlation, pearson_and_spearman

GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")
METRIC_KEYS = {
    "cola": {"matthews_correlation"},
    "sst2": {"accuracy"},
    "mrpc": {"accuracy", "f1"},
    "qqp": {"accuracy", "f1"},
    "stsb": {"pearson", "spearmanr"},
    "mnli": {"accuracy"},
    "qnli": {"accuracy"},
    "rte": {"accuracy"},
    "wnli": {"accuracy"},
    "demo": {"matthews_correlation"},
}


def test_glue_is_complete() -> None:
    assert set(tasks.names("glue")) == {*GLUE, "demo"} == set(METRIC_KEYS)


@pytest.mark.parametrize("name", METRIC_KEYS)
def test_metric_keys_are_those_of_glue(name: str) -> None:
    task = tasks.get(name, "glue")
    found = task.metrics(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]))
    assert set(found) == METRIC_KEYS[name]
    assert task.main_metric in found


def test_mnli_has_two_splits_of_each_kind() -> None:
    mnli = tasks.get("mnli")
    assert [s.name for s in mnli.validation_splits] == [
        "validation_matched",
        "validation_mismatched",
    ]
    assert [s.key_suffix for s in mnli.validation_splits] == ["", "_mm"]
    assert [s.prediction_file for s in mnli.test_splits] == ["MNLI-m.tsv", "MNLI-mm.tsv"]


def test_prediction_files_are_those_of_glue() -> None:
    files = [s.prediction_file for name in GLUE for s in tasks.get(name).test_splits]
    assert files == [
        *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "STS-B.tsv"),
        *("MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv", "WNLI.tsv"),
    ]


def test_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"task_name is 'colla'; known tasks for finetune/glue.py"):
        tasks.get("colla", "glue")
    with pytest.raises(ValueError, match=", ".join(tasks.names("glue"))):
        tasks.get("colla")


def test_task_of_another_family_names_its_script() -> None:
    with pytest.raises(ValueError, match=r"'cola'.*Run it with finetune/glue.py\."):
        tasks.get("cola", "lm")


def test_a_second_task_of_the_same_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'cola' of the family 'glue' is given twice"):
        tasks.register(replace(tasks.get("cola"), main_metric="other"))
    assert tasks.get("cola").main_metric == "matthews_correlation"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "guess"}, "objective of task 'cola' is 'guess'; allowed: classify, regress"),
        ({"label_names": ()}, r"label_names of task 'cola' is \(\)"),
        ({"objective": "regress"}, "regress allows none"),
        ({"dataset_name": None}, "a task needs a source"),
    ],
)
def test_an_inconsistent_task_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(tasks.get("cola"), **change)


def test_tasks_know_neither_models_nor_the_library() -> None:
    code = (
        "import sys, tasks; tasks.names(); import tasks.glue, tasks.metrics;"
        "print([m for m in ('hf_graphattn', 'accelerate', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_accuracy_and_f1_by_hand() -> None:
    # Of the four predicted 1, three are; of the five that are 1, three are predicted.
    predicted = np.array([1, 1, 1, 1, 0, 0, 0, 0])
    references = np.array([1, 1, 1, 0, 1, 1, 0, 0])
    precision, recall = 3 / 4, 3 / 5
    f1 = 2 * precision * recall / (precision + recall)
    assert accuracy_and_f1(predicted, references) == pytest.approx({"accuracy": 5 / 8, "f1": f1})
    assert accuracy(predicted, references) == {"accuracy": 5 / 8}


def test_matthews_correlation_by_hand() -> None:
    predicted = np.array([1, 1, 1, 1, 0, 0, 0, 0])
    references = np.array([1, 1, 1, 0, 1, 1, 0, 0])
    true_1, false_1, true_0, false_0 = 3, 1, 2, 2
    expected = (true_1 * true_0 - false_1 * false_0) / math.sqrt(4 * 5 * 3 * 4)
    found = matthews_correlation(predicted, references)["matthews_correlation"]
    assert found == pytest.approx(expected)


def test_correlations_by_hand() -> None:
    predicted, references = np.array([1.0, 2.0, 3.0, 5.0]), np.array([2.0, 1.0, 4.0, 5.0])
    # Deviations from the means 2.75 and 3, multiplied out; ranks differ by 1, 1, 0, 0.
    pearson = 8.0 / math.sqrt(8.75 * 10.0)
    spearman = 1 - 6 * 2 / (4 * (16 - 1))
    expected = {"pearson": pearson, "spearmanr": spearman}
    assert pearson_and_spearman(predicted, references) == pytest.approx(expected, abs=1e-6)


def test_constant_predictions_give_zero_not_nan() -> None:
    constant, references = np.ones(4), np.array([0, 1, 1, 0])
    assert pearson_and_spearman(constant, references) == {"pearson": 0.0, "spearmanr": 0.0}
    assert matthews_correlation(constant, references) == {"matthews_correlation": 0.0}
    assert accuracy_and_f1(np.zeros(4), references) == {"accuracy": 0.5, "f1": 0.0}


@pytest.mark.parametrize("metric", [accuracy, matthews_correlation, pearson_and_spearman])
def test_bad_predictions_are_refused(metric: tasks.Metrics) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        metric(np.array([0.0, math.nan]), np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(3,\)"):
        metric(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="predictions is empty"):
        metric(np.zeros(0), np.zeros(0))


def test_a_task_of_ones_own_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.names()
    monkeypatch.setattr(tasks, "_registered", dict(tasks.registered()))
    own = Task(
        name="own",
        family="glue",
        objective="classify",
        dataset_name="someone/own",
        text_columns=("text",),
        label_names=("no", "yes"),
        metrics=accuracy,
        main_metric="accuracy",
        test_splits=(Split("test"),),
    )
    assert tasks.register(own) is tasks.get("own") is own
