"""Which number of a run is compared, and which way it is better: the run's results have both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stepwise import made_job

from finetune.experiments.plan import greater_is_better, metric_name

MNLI = {
    **{"eval_accuracy_mm": 0.5, "eval_loss": 0.7, "eval_tokens": 90, "train_loss": 0.1},
    **{"test_accuracy_mm": 0.4, "best": {"metric": "eval_loss"}, "settings": {}},
    "greater_is_better": {"eval_accuracy_mm": True, "eval_loss": False, "eval_f1": True},
}
JOB = made_job(Path("glue.py"), Path("folder"), "m", 0)


def test_the_main_metric_is_the_tasks_or_of_own_files_the_runs() -> None:
    of_task = replace(JOB, main_metric="eval_accuracy_mm")
    assert metric_name(None, of_task, MNLI) == "eval_accuracy_mm"
    assert metric_name(None, JOB, MNLI) == "eval_loss"


def test_counts_and_seconds_are_no_metrics() -> None:
    for name, key in (
        ("loss", "eval_loss"),
        ("eval_accuracy_mm", "eval_accuracy_mm"),
        ("test_accuracy_mm", "test_accuracy_mm"),
    ):
        assert metric_name(name, JOB, MNLI) == key
    for name in ("tokens", "train_loss", "f1"):
        with pytest.raises(ValueError, match=rf"metric is '{name}'; allowed: eval_accuracy_mm"):
            metric_name(name, JOB, MNLI)
    assert greater_is_better("test_accuracy_mm", MNLI) is True
    assert greater_is_better("loss", MNLI) is False


def test_a_silent_metrics_direction_is_that_of_the_flag() -> None:
    silent = {"greater_is_better": {"eval_own": None}}
    with pytest.raises(ValueError, match=r"--metric_for_best_model own --greater_is_better true"):
        greater_is_better("own", silent | {"settings": {}})
    flags = {"metric_for_best_model": "own", "greater_is_better": False}
    assert greater_is_better("eval_own", silent | {"settings": flags}) is False
