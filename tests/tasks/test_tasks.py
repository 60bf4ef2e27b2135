"""The tasks' registry and their rows."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import tasks
from tasks.metrics import ACCURACY, BITS_PER_BYTE, F1, LOSS, PERPLEXITY, WORD_PERPLEXITY, scores

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


def test_metric_keys_are_those_of_glue() -> None:
    assert set(tasks.names("glue")) == {*GLUE, "demo"} == set(METRIC_KEYS)
    for name, keys in METRIC_KEYS.items():
        task = tasks.get(name, "glue")
        found = scores(task.metrics, np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]))
        assert set(found) == keys
        assert task.main_metric in found
        assert all(metric.greater_is_better for metric in task.metrics)


def test_a_language_models_metrics_are_measured_by_the_objective() -> None:
    for name in tasks.names("lm"):
        task = tasks.get(name, "lm")
        assert task.metrics == (LOSS, PERPLEXITY, WORD_PERPLEXITY, BITS_PER_BYTE)
        assert (task.main_metric, task.word_level) == ("perplexity", name != "demo")
        assert not any(metric.greater_is_better for metric in task.metrics)
        assert scores(task.metrics, np.zeros(2), np.zeros(2)) == {}


def test_mnli_has_two_splits_of_each_kind() -> None:
    mnli = tasks.get("mnli")
    assert [s.name for s in mnli.validation_splits] == [
        "validation_matched",
        "validation_mismatched",
    ]
    assert [s.key_suffix for s in mnli.validation_splits] == ["", "_mm"]


def test_the_code_tasks_alone_are_read_verbatim() -> None:
    assert tasks.names("code_classification") == ["defect", "clone", "demo"]
    for (family, name), task in tasks.registered().items():
        assert task.verbatim == (family == "code_classification"), name
        assert not task.verbatim or task.label_names == ("false", "true")
    assert tasks.get("clone").main_metric == "f1"


def test_prediction_files_are_those_of_glue() -> None:
    files = [s.prediction_file for name in GLUE for s in tasks.get(name).test_splits]
    assert files == [
        *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "STS-B.tsv"),
        *("MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv", "WNLI.tsv"),
    ]


def test_an_unknown_task_and_one_of_another_family() -> None:
    with pytest.raises(ValueError, match=r"task_name is 'colla'; known tasks for finetune/glue.py"):
        tasks.get("colla", "glue")
    with pytest.raises(ValueError, match=r"'cola'.*Run it with finetune/glue.py\."):
        tasks.get("cola", "lm")


def test_a_second_task_of_the_same_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'cola'; allowed: names that are not taken.*another"):
        tasks.register(replace(tasks.get("cola"), submits_names=True))
    assert tasks.get("cola").main_metric == "matthews_correlation"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "guess"}, "objective of task 'cola' is 'guess'; allowed: classify, regress"),
        ({"label_names": ()}, r"label_names of task 'cola' is \(\); allowed: names with the objec"),
        ({"objective": "regress"}, r"label_names of task 'cola' is .*; allowed: none but with"),
        ({"dataset_name": None}, r"dataset_name of task 'cola' is None; allowed: None beside a b"),
        ({"text_columns": ()}, r"input_columns of task 'cola' is \(\); allowed: text, image or"),
        ({"row_end": "tab"}, "row_end of task 'cola' is 'tab'; allowed: none, newline, eos"),
        ({"main_metric": "f1"}, r"main_metric of task 'cola' is 'f1'; .*\['matthews_correlation'"),
        ({"metrics": (ACCURACY,) * 2}, r"is \['accuracy', 'accuracy'\]; allowed: each name once"),
        (
            {"metrics": (F1,), "label_names": ("a", "b", "c")},
            r"metrics of task 'cola' is \['f1'\]; .* f1:average=macro",
        ),
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
