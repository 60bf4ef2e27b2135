"""Finished runs, gathered: each arm's values by seed, and its differences to the baseline."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, stdev
from typing import Any

import tasks
from finetune.comparison.grid import OWN_DATA, Cell
from finetune.comparison.runs import Run
from finetune.comparison.statistics import Interval, bootstrap_interval, holm, permutation_p
from finetune.flags import refusal
from finetune.progress import Selection
from finetune.train_arguments import TrainArguments

SIZES = ("tokens", "words")  # what an evaluation counts: no metrics


@dataclass(frozen=True)
class Paired:
    """Differences of an arm to the baseline, seed by seed, and what they show.

    Attributes:
        differences: arm minus baseline, by seed, of the seeds that both have.
        interval: of their mean; None below four seeds.
        p: two-sided, of the exact paired permutation test.
        corrected_p: the same after Holm's correction over all tasks and arms compared.
        better: how many seeds are better than the baseline, in the metric's direction.
    """

    differences: dict[int, float]
    interval: Interval | None
    p: float
    corrected_p: float
    better: int

    @property
    def mean(self) -> float:
        return fmean(self.differences.values())


@dataclass(frozen=True)
class ArmResult:
    """What an arm's runs of one task gave.

    Attributes:
        values: the metric by seed, of the runs that have it.
        missing: seeds without a run that ended, and why.
        runs: all that each run wrote, by seed.
        paired: None for the baseline, and where no seed is common to both.
    """

    name: str
    flags: list[str]
    values: dict[int, float]
    missing: dict[int, str]
    runs: dict[int, Mapping[str, Any]] = field(repr=False)
    paired: Paired | None = None

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds (n - 1); None of one."""
        return stdev(self.values.values()) if len(self.values) > 1 else None

    def typical(self, name: str) -> float | None:
        """The median over the runs of one of their numbers."""
        found = [run[name] for run in self.runs.values() if run.get(name) is not None]
        return median(found) if found else None


@dataclass(frozen=True)
class TaskResult:
    """One task: the arms, the baseline first."""

    task: str
    metric: str
    greater_is_better: bool
    arms: list[ArmResult]

    @property
    def title(self) -> str:
        """The metric in words."""
        return self.metric.removeprefix("eval_").replace("_", " ")


def gather(
    cells: Sequence[Cell],
    metric: str | None,
    missing: Mapping[str, str],
    *,
    paired: bool = True,
) -> list[TaskResult]:
    """The results of what has ended, a task each; tasks without a run that ended are left out.

    Args:
        cells: the grid, baseline first.
        metric: which number of the runs, with or without ``eval_``; None is the task's main one.
        missing: why a run has no results, by its name.
        paired: whether the first arm is a baseline that the others are compared to.

    Raises ``ValueError`` if the runs have no such metric.
    """
    found = []
    for task in dict.fromkeys(cell.task for cell in cells):
        of_task = [cell for cell in cells if cell.task == task]
        done = {cell.run.name: cell.run.results() for cell in of_task if cell.run.is_done()}
        if not done:
            continue
        first = next(cell for cell in of_task if cell.run.name in done)
        name = metric_name(metric, first, done[first.run.name])
        arms = [
            _arm([c for c in of_task if c.arm == arm], name, done, missing)
            for arm in dict.fromkeys(cell.arm for cell in of_task)
        ]
        found.append(TaskResult(task, name, greater_is_better(name), arms))
    return against_baseline(found) if paired else found


def against_baseline(found: Iterable[TaskResult]) -> list[TaskResult]:
    """Each task's arms compared to its first; p corrected over every comparison of every task."""
    return _corrected([_paired(task) for task in found])


def shown(run: Run) -> str:
    """A finished run's main metric, in words."""
    results = run.results()
    name = results["best"]["metric"]
    value = results.get(name)
    return f"{name.removeprefix('eval_')} {'NaN' if value is None else f'{value:.4f}'}"


def mixtures(found: Iterable[TaskResult]) -> list[str]:
    """What differs between the runs and should not, in words: versions, commit, machine."""
    runs = [run for task in found for arm in task.arms for run in arm.runs.values()]
    notes = []
    for name, words in (("versions", "versions"), ("git", "commit"), ("machine", "machine")):
        kinds = {json.dumps(run.get(name), sort_keys=True) for run in runs}
        if len(kinds) > 1:
            notes.append(f"The runs differ in {words}: {'; '.join(sorted(kinds))}.")
    return notes


def metric_name(asked: str | None, cell: Cell, results: Mapping[str, Any]) -> str:
    """The key of the metric compared: that asked for, the task's main one, or the run's own.

    Raises ``ValueError`` if the run has none of the name asked for: of its other numbers, like
    seconds, nobody says here which way they are better.
    """
    if asked is None:
        return main_metric(cell) or results["best"]["metric"]
    allowed = [
        name
        for name, value in results.items()
        if name.startswith(("eval_", "test_"))
        and not name.endswith(SIZES)
        and isinstance(value, int | float | None)  # None: not finite
    ]
    for name in (asked, f"eval_{asked}"):
        if name in allowed:
            return name
    raise refusal("metric", asked, ", ".join(allowed), "Choose one of these.")


def main_metric(cell: Cell) -> str | None:
    """The key of the task's main metric; None of one's own files, before they have been run."""
    if cell.task == OWN_DATA:
        return None
    task = tasks.get(cell.task, cell.run.script.stem)
    return f"eval_{task.main_metric}{task.validation_splits[0].key_suffix}"


def greater_is_better(metric: str) -> bool:
    """The metric's direction, by its name."""
    train = TrainArguments(output_dir="", metric_for_best_model=metric)
    return Selection.of(train, metric).greater_is_better


def _arm(
    cells: Sequence[Cell],
    metric: str,
    done: Mapping[str, Mapping[str, Any]],
    missing: Mapping[str, str],
) -> ArmResult:
    runs = {cell.seed: done[cell.run.name] for cell in cells if cell.run.name in done}
    values = {seed: run[metric] for seed, run in runs.items() if run.get(metric) is not None}
    without = {
        cell.seed: missing.get(cell.run.name, "not run") for cell in cells if cell.seed not in runs
    }
    without |= {seed: "no finite value" for seed in runs if seed not in values}
    flags = list(cells[0].run.flags[:-2])  # the last two name the seed
    return ArmResult(cells[0].arm, flags, values, without, runs)


def _paired(task: TaskResult) -> TaskResult:
    baseline, *others = task.arms
    sign = 1 if task.greater_is_better else -1

    def compared(arm: ArmResult) -> ArmResult:
        common = [seed for seed in arm.values if seed in baseline.values]
        if not common:
            return arm
        differences = {seed: arm.values[seed] - baseline.values[seed] for seed in common}
        values = list(differences.values())
        p = permutation_p(values)
        better = sum(sign * value > 0 for value in values)
        return replace(arm, paired=Paired(differences, bootstrap_interval(values), p, p, better))

    return replace(task, arms=[baseline, *map(compared, others)])


def _corrected(found: list[TaskResult]) -> list[TaskResult]:
    """With Holm's correction over every comparison of every task."""
    pairs = [arm.paired for task in found for arm in task.arms if arm.paired]
    corrected = iter(holm([paired.p for paired in pairs]))
    return [
        replace(
            task,
            arms=[
                replace(arm, paired=replace(arm.paired, corrected_p=next(corrected)))
                if arm.paired
                else arm
                for arm in task.arms
            ],
        )
        for task in found
    ]
