"""Which number of a run is compared, and which way it is better: the run and the task say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finetune.experiments import plan
from finetune.experiments.arms import Arm
from finetune.experiments.execute import Job
from finetune.experiments.plan import Cell

EARLIER = {"eval_accuracy_mm": 0.5, "eval_loss": 0.7, "eval_tokens": 90, "train_loss": 0.1}


OWN = "cola"  # of a file of that name


def cell(task: str, family: str = "glue", *, is_own: bool = False, **settings: Any) -> Cell:
    run = Job("name", Path(f"{family}.py"), Path("folder"), {}, settings)
    return Cell(task, Arm("none", {"variant": "none"}), 0, run, is_own)


def test_the_main_metric_is_the_tasks() -> None:
    results = {"best": {"metric": "eval_loss"}}
    assert plan.metric_name(None, cell("mrpc"), results) == "eval_f1"
    assert plan.metric_name(None, cell("demo", "lm"), results) == "eval_perplexity"
    assert plan.metric_name(None, cell(OWN, is_own=True), results) == "eval_loss"
    assert plan.main_metric(cell(OWN, is_own=True)) is None


def test_counts_and_seconds_are_no_metrics() -> None:
    """Neither of a run that says its metrics nor of one that an earlier version made."""
    said = EARLIER | {"greater_is_better": {"eval_accuracy_mm": True, "eval_loss": False}}
    for results in (EARLIER, said):
        assert plan.metric_name("loss", cell("mnli"), results) == "eval_loss"
        assert plan.metric_name("eval_accuracy_mm", cell("mnli"), results) == "eval_accuracy_mm"
        for name in ("tokens", "train_loss", "f1"):
            with pytest.raises(ValueError, match=rf"metric is '{name}'; allowed: eval_accuracy_mm"):
                plan.metric_name(name, cell("mnli"), results)


def test_the_test_splits_metrics_can_be_compared_too() -> None:
    results = {"eval_perplexity": 9.0, "test_perplexity": 8.0, "test_tokens": 3}
    assert plan.metric_name("test_perplexity", cell("ptb", "lm"), results) == "test_perplexity"
    assert not plan.greater_is_better("test_perplexity", cell("ptb", "lm"), results)


@pytest.mark.parametrize(
    ("name", "greater"),
    [("accuracy", True), ("eval_loss", False), ("unknown", False), ("word_perplexity", False)],
)
def test_directions_before_a_run_has_ended(name: str, greater: bool) -> None:
    assert plan.greater_is_better(name, cell("sst2")) is greater


def test_a_run_says_its_metrics_directions() -> None:
    results = {"greater_is_better": {"eval_wer": False}, "settings": {}}
    assert plan.greater_is_better("wer", cell(OWN, is_own=True), results) is False


def test_a_silent_metrics_direction_is_that_of_the_flag() -> None:
    silent: dict[str, Any] = {"greater_is_better": {"eval_own": None}}
    with pytest.raises(ValueError, match=r"--metric_for_best_model own --greater_is_better true"):
        plan.greater_is_better("own", cell("cola"), silent | {"settings": {}})
    asked = {"metric_for_best_model": "own", "greater_is_better": False}
    assert plan.greater_is_better("own", cell("cola"), silent | {"settings": asked}) is False
    assert plan.greater_is_better("eval_own", cell("cola", **asked)) is False
    with pytest.raises(ValueError, match="greater_is_better is None"):
        plan.greater_is_better("other", cell("cola", **asked))
