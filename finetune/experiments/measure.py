"""The metric that is compared, and what the runs must be told so that they measure it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tasks
from finetune.data import sources
from finetune.engine.results import RESULTS
from finetune.errors import Refused
from finetune.experiments.runs import METRIC, read_json
from finetune.experiments.scripts import Script
from tasks import Metric, Task, metrics


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


def of(
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
        if asked is None or all(_plain(asked) in _measured(task) for task in known):
            return Measure(asked)
        before = _told_before(folder, _plain(asked))
        if before is not None:
            return Measure(asked, {METRIC: before} if before else {})
        if report_only and not Path(asked).exists():
            return Measure(asked)
        metric = _loaded(asked, known)
    except ValueError as error:
        raise Refused(str(error)) from error
    told = [*common.get(METRIC, ()), asked]
    return Measure(metric.name, {METRIC: told}, metric.greater_is_better)


def _plain(name: str) -> str:
    return name.removeprefix("eval_").removeprefix("test_")


def _measured(task: Task | None) -> set[str]:
    """The names that results have of the task's metrics and of the objectives' own."""
    own = [metric for metric in metrics.ROWS.values() if metric.function is None]
    if task is None:
        return {metric.name for metric in own}
    splits = (*task.validation_splits, *task.test_splits)
    endings = {split.key_suffix for split in splits}
    return {f"{metric.name}{end}" for metric in (*own, *task.metrics) for end in endings}


def _told_before(folder: Path, name: str) -> list[str] | None:
    """What a finished run that has measured this was told to measure; None if there is none."""
    for path in sorted(folder.glob(f"*/*/seed-*/{RESULTS}")):
        found = read_json(path)
        if f"eval_{name}" in found:
            return list(found["settings"].get(METRIC) or ())
    return None


def _loaded(asked: str, known: Sequence[Task | None]) -> Metric:
    """The metric, which every task that is known can have."""
    for task in known:
        if task is not None:
            sources.with_metrics(task, [asked])
    first, *_ = metrics.load([asked])
    return first
