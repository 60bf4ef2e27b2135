"""Which number of the runs is compared, and which way it is better: asked, never guessed.

A finished run says both itself. Of runs that earlier versions made, and of those that have not run
yet, the task's metrics say it. A metric that is no task's own is measured beside these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tasks
from finetune.data import sources
from finetune.engine.results import RESULTS, read_json
from finetune.errors import Refused, refusal
from finetune.experiments.grid import Cell
from finetune.experiments.runs import METRIC, Run
from finetune.experiments.scripts import Script
from tasks import Split, Task, metrics
from tasks.metrics import ROWS

Results = Mapping[str, Any]  # what a run wrote into all_results.json


@dataclass(frozen=True)
class Measure:
    """What is compared.

    Attributes:
        name: the metric's, as it was asked for or as the runs write it; None is each task's main
            metric.
        flags: what the runs are told beside the common flags.
        greater_is_better: of a metric that is no task's own; None where it does not say.
    """

    name: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    greater_is_better: bool | None = None


def measure(
    asked: str | None,
    script: Script,
    task_names: Sequence[str],
    common: Mapping[str, Any],
    folder: Path,
    *,
    report_only: bool = False,
) -> Measure:
    """The metric asked for: a task's own, or any other that the runs then measure beside these.

    Args:
        asked: its name, with or without ``eval_``; or an own module's path, or its id on the hub,
            whose first value is compared; None is each task's main metric.
        script: what is run.
        task_names: none is the task that the common flags name, or own files.
        common: flags of all runs.
        folder: where runs may have ended that have measured it.
        report_only: whether nothing is run, so that a name which no run has is left to the report.

    Raises ``ValueError`` for a task or a metric that is not known.
    """
    names: Sequence[str | None] = task_names or [common.get("task_name")]
    try:
        known = [None if name is None else tasks.get(name, script.family) for name in names]
        if asked is None or all(_evaluated(asked) in _own(task) for task in known):
            return Measure(asked)
        told = _told_before(folder, _evaluated(asked))
        if told is not None or (report_only and not Path(asked).exists()):
            return Measure(asked, {METRIC: told} if told else {})
        metrics.check_trusted([asked], common.get("trust_remote_code", False))
        for task in filter(None, known):
            sources.with_metrics(task, [asked])  # every task can have it
        metric, *_ = metrics.load([asked])
    except ValueError as error:
        raise Refused(str(error)) from error
    flags = {METRIC: [*common.get(METRIC, ()), asked]}
    return Measure(metric.name, flags, metric.greater_is_better)


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
    known = _directions(cell, results)
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
    if task is None:
        return None
    return f"eval_{task.main_metric}{task.validation_splits[0].key_suffix}"


def greater_is_better(metric: str, cell: Cell, results: Results | None = None) -> bool:
    """The direction of a metric.

    Args:
        metric: its key, or its name alone.
        cell: a run that measures it.
        results: what that run wrote; None if it has not ended.

    Raises ``ValueError`` if neither the metric nor a flag of the run says it.
    """
    key = _evaluated(metric)
    settings = cell.run.settings if results is None else results.get("settings", {})
    direction = _directions(cell, results).get(key)
    if direction is None and _evaluated(settings.get("metric_for_best_model") or "") == key:
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


def shown(run: Run) -> str:
    """A finished run's main metric, in words."""
    results = run.results()
    name = results["best"]["metric"]
    value = results.get(name)
    return f"{name.removeprefix('eval_')} {'NaN' if value is None else f'{value:.4f}'}"


def in_words(metric: str) -> str:
    """What figures call a metric: ``eval_accuracy_mm`` is "accuracy mm"."""
    name = metric.removeprefix("eval_")
    rows = [row for row in ROWS if f"{name}_".startswith(f"{row}_")]
    row = max(rows, key=len, default="")
    title = ROWS[row].title if row else ""
    return (f"{title}{name.removeprefix(row)}" if title else name).replace("_", " ")


def _directions(cell: Cell, results: Results | None) -> Mapping[str, bool | None]:
    """For each key of an evaluation, whether greater is better; None where its metric is silent."""
    said = None if results is None else results.get("greater_is_better")
    rows = {f"eval_{name}": metric.greater_is_better for name, metric in ROWS.items()}
    return rows | _own(_task(cell)) if said is None else said


def _own(task: Task | None) -> dict[str, bool | None]:
    """The same of the task's own metrics, and of those that objectives measure themselves."""
    own = [metric for metric in ROWS.values() if metric.function is None]
    splits = (*task.validation_splits, *task.test_splits) if task else (Split(""),)
    return {
        f"eval_{metric.name}{split.key_suffix}": metric.greater_is_better
        for metric in (*own, *(task.metrics if task else ()))
        for split in splits
    }


def _evaluated(name: str) -> str:
    """The key on the validation split of a metric that may be named with a prefix or without."""
    return f"eval_{name.removeprefix('test_').removeprefix('eval_')}"


def _task(cell: Cell) -> Task | None:
    return None if cell.is_own else tasks.get(cell.task, cell.run.script.stem)


def _told_before(folder: Path, key: str) -> list[str] | None:
    """What a finished run that has measured this was told to measure; None if there is none."""
    for path in sorted(folder.glob(f"*/*/seed-*/{RESULTS}")):
        found = read_json(path)
        if key in found:
            return list(found["settings"].get(METRIC) or ())
    return None
