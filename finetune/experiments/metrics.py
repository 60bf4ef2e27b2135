"""Which number of the runs is compared, and which way it is better: asked, never guessed.

A finished run says both itself. Of runs that earlier versions made, and of those that have not run
yet, the task's metrics say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tasks
from finetune.errors import refusal
from finetune.experiments.grid import OWN_DATA, Cell
from finetune.experiments.runs import Run
from tasks import Task
from tasks.metrics import ROWS

Results = Mapping[str, Any]  # what a run wrote into all_results.json


def metric_name(asked: str | None, cell: Cell, results: Results) -> str:
    """The key of the metric compared: the one asked for, the task's main one, or the run's own.

    Args:
        asked: with or without ``eval_``; None is not asked for.
        cell: a finished run of the grid.
        results: what that run wrote.

    Raises ``ValueError`` if the run has no metric of this name. Its other numbers, such as seconds
    or counts of tokens, are no metrics: nobody says which way they are better.
    """
    if asked is None:
        return main_metric(cell) or results["best"]["metric"]
    known = directions(cell, results)
    measured = [
        name
        for name, value in results.items()
        if name.startswith(("eval_", "test_"))
        and _evaluated(name) in known
        and isinstance(value, int | float | None)  # None is a value that is not finite
    ]
    for name in (asked, f"eval_{asked}"):
        if name in measured:
            return name
    raise refusal("metric", asked, ", ".join(measured), "Choose one of these with --metric.")


def main_metric(cell: Cell) -> str | None:
    """The key of the task's main metric; None for someone's own files, which a run must read."""
    task = _task(cell)
    return None if task is None else f"eval_{task.main_metric}{_suffixes(task)[0]}"


def greater_is_better(metric: str, cell: Cell, results: Results | None = None) -> bool:
    """The direction of a metric.

    Args:
        metric: its key, or its name alone.
        cell: a run that measures it.
        results: what that run wrote; None if it has not ended.

    Raises ``ValueError`` if neither the metric nor a flag of the run says it.
    """
    key = _evaluated(metric)
    direction = directions(cell, results).get(key)
    if direction is None:
        settings = cell.run.settings if results is None else results.get("settings", {})
        chosen = settings.get("metric_for_best_model")
        if chosen is not None and _evaluated(chosen) == key:
            direction = settings.get("greater_is_better")
    if direction is None:
        name = key.removeprefix("eval_")
        raise refusal(
            "greater_is_better",
            None,
            f"true or false, since the metric {name} does not say which way it is better",
            f"Run with --metric_for_best_model {name} --greater_is_better true or false, or set "
            "greater_is_better in the class of the metric's module.",
        )
    return direction


def directions(cell: Cell, results: Results | None = None) -> Mapping[str, bool | None]:
    """For each key of an evaluation, whether greater is better; None where its metric is silent."""
    said = None if results is None else results.get("greater_is_better")
    if said is not None:
        return said
    task = _task(cell)
    metrics = [*ROWS.values(), *(task.metrics if task else ())]
    return {
        f"eval_{metric.name}{suffix}": metric.greater_is_better
        for suffix in _suffixes(task)
        for metric in metrics
    }


def shown(run: Run) -> str:
    """A finished run's main metric, in words."""
    results = run.results()
    name = results["best"]["metric"]
    value = results.get(name)
    return f"{name.removeprefix('eval_')} {'NaN' if value is None else f'{value:.4f}'}"


def _evaluated(name: str) -> str:
    """The key on the validation split of a metric that may be named with a prefix or without."""
    return f"eval_{name.removeprefix('test_').removeprefix('eval_')}"


def _task(cell: Cell) -> Task | None:
    return None if cell.task == OWN_DATA else tasks.get(cell.task, cell.run.script.stem)


def _suffixes(task: Task | None) -> list[str]:
    return [split.key_suffix for split in task.validation_splits] if task else [""]
