"""Finished runs, gathered: each arm's values by seed, and its differences to the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, stdev
from typing import Any

import hf_graphattn as ga
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import Results, greater_is_better, in_words, metric_name
from finetune.experiments.statistics import Interval, holm, permutation_p, t_interval
from finetune.settings import variants
from finetune.settings.groups import FILTER_RATE

SCALARS, MOVED = "filter_scalars", "filter_max_moved"
STEP, MEMORY = "seconds_per_step", "peak_memory_bytes"
TYPICAL = (SCALARS, MOVED, STEP, MEMORY)
NONE = "-"  # in a table, where there is no number


@dataclass(frozen=True)
class Paired:
    """Differences of an arm to the baseline, seed by seed, and what they show.

    Attributes:
        differences: arm minus baseline, by seed, of the seeds that both have.
        interval: of their mean; None of one seed.
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
        flags: those of its runs, without the seed.
        setting: of a sweep: the value of each swept flag, None where the flag is not given.
        missing: seeds without a value, and why.
        typical: medians over the runs, of the numbers that `TYPICAL` names.
        paired: None for the baseline, and where no seed is common to both.
    """

    name: str
    values: dict[int, float]
    flags: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    typical: Mapping[str, float | None] = field(default_factory=dict)
    paired: Paired | None = None

    @property
    def variant(self) -> str:
        """The graph filter of its runs."""
        return str(self.flags.get("variant", self.name))

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds (n - 1); None of a single one."""
        return stdev(self.values.values()) if len(self.values) > 1 else None

    def words(self, places: int) -> str:
        """Mean and standard deviation, with so many digits after the point."""
        if not self.values:
            return NONE
        deviation = "" if self.deviation is None else f" ± {self.deviation:.{places}f}"
        return f"{self.mean:.{places}f}{deviation}"


@dataclass(frozen=True)
class TaskResult:
    """One task and its arms, the baseline first; a sweep without plain attention has none."""

    task: str
    metric: str
    greater_is_better: bool
    arms: list[ArmResult]

    @property
    def title(self) -> str:
        """The metric's name with spaces, in tables and sentences."""
        return self.metric.removeprefix("eval_").replace("_", " ")

    @property
    def label(self) -> str:
        """What figures call the metric."""
        return in_words(self.metric)

    @property
    def direction(self) -> str:
        """Which way the metric is better, in words."""
        return f"{'greater' if self.greater_is_better else 'less'} is better"

    @property
    def settings(self) -> list[ArmResult]:
        """The arms that are settings of a sweep; none of a comparison."""
        return [arm for arm in self.arms if arm.setting]

    @property
    def swept(self) -> list[str]:
        """The flags of which a sweep tries values."""
        return list(dict.fromkeys(flag for arm in self.settings for flag in arm.setting))

    @property
    def plain(self) -> ArmResult | None:
        """The arm that a sweep's settings are compared to, if it has values."""
        return next((arm for arm in self.arms if not arm.setting and arm.values), None)


def finished(cells: Iterable[Cell]) -> dict[str, Results]:
    """What each run that has ended wrote, by the run's name."""
    return {cell.run.name: cell.run.results() for cell in cells if cell.run.is_done()}


def gather(
    cells: Sequence[Cell],
    done: Mapping[str, Results],
    metric: str | None,
    missing: Mapping[str, str],
) -> list[TaskResult]:
    """The results by task; tasks of which no run has ended are left out.

    The first arm is the baseline, unless it is a setting of a sweep: then nothing is compared.

    Args:
        cells: the grid.
        done: what its finished runs wrote.
        metric: which of their numbers, with or without ``eval_``; None is each task's main metric.
        missing: why a run has no results, by its name.

    Raises ``ValueError`` if the runs have no such metric, or nobody says which way it is better.
    """
    found = []
    for task in dict.fromkeys(cell.task for cell in cells):
        of_task = [cell for cell in cells if cell.task == task]
        first = next((cell for cell in of_task if cell.run.name in done), None)
        if first is None:
            continue
        results = done[first.run.name]
        name = metric_name(metric, first, results)
        arms = [
            _arm([cell for cell in of_task if cell.arm.name == arm], name, done, missing)
            for arm in dict.fromkeys(cell.arm.name for cell in of_task)
        ]
        found.append(TaskResult(task, name, greater_is_better(name, first, results), arms))
    has_baseline = bool(found) and not cells[0].arm.setting
    return against_baseline(found) if has_baseline else found


def against_baseline(found: Iterable[TaskResult]) -> list[TaskResult]:
    """Each task's arms compared to its first; p corrected over every comparison of every task."""
    tasks = [(task, [_paired(task, arm) for arm in task.arms]) for task in found]
    corrected = iter(holm([paired.p for _, pairs in tasks for paired in pairs if paired]))

    def with_pair(arm: ArmResult, paired: Paired | None) -> ArmResult:
        paired = paired and replace(paired, corrected_p=next(corrected))
        return replace(arm, paired=paired)

    return [replace(task, arms=list(map(with_pair, task.arms, pairs))) for task, pairs in tasks]


def against_degree_1(found: Iterable[TaskResult]) -> list[TaskResult]:
    """The arms of several passes compared to one of degree 1, c_0 V + c_1 A V; none without one.

    What one pass does as well is not due to a filter's A^2. Of several arms of degree 1 it is the
    one whose scalars have the same learning rate, or each where none has. p is corrected over these
    comparisons alone.
    """
    compared = []
    for task in found:
        controls = [arm for arm in task.arms if _is_degree_1(arm)]
        rates = [arm.flags.get(FILTER_RATE) for arm in controls]
        for control, same in zip(controls, rates, strict=True):
            arms = [
                arm
                for arm in task.arms[1:]
                if _passes(arm) > 1
                and ((rate := arm.flags.get(FILTER_RATE)) == same or rate not in rates)
            ]
            if arms and control is not task.arms[0]:
                compared.append(replace(task, arms=[control, *arms]))
    return against_baseline(compared)


def _is_degree_1(arm: ArmResult) -> bool:
    is_short = arm.variant == "polynomial" and len(arm.flags.get("coefficients", ())) == 2
    return is_short or arm.variant == "degree1"


def _passes(arm: ArmResult) -> int:
    """How often the arm's filter attends; a variant that is not registered here counts once."""
    if arm.variant not in ga.variant_configs():
        return 1
    own = {n: v for n, v in arm.flags.items() if n in variants.settings_of(arm.variant)}
    heads = math.lcm(*(len(v) or 1 for v in own.values() if isinstance(v, list | tuple)))
    config = variants.config_of(arm.variant, own)
    return 1 + config.build(heads).operands if config else 1


def _arm(
    cells: Sequence[Cell], metric: str, done: Mapping[str, Results], missing: Mapping[str, str]
) -> ArmResult:
    runs = {cell.seed: done[cell.run.name] for cell in cells if cell.run.name in done}
    values = {seed: run[metric] for seed, run in runs.items() if run.get(metric) is not None}
    why = {cell.seed: missing.get(cell.run.name, "not run") for cell in cells}
    why |= dict.fromkeys(runs, "no finite value")
    flags = {name: value for name, value in cells[0].run.flags.items() if name != "seed"}
    without = {seed: reason for seed, reason in why.items() if seed not in values}
    known = {n: [v for r in runs.values() if (v := r.get(n)) is not None] for n in TYPICAL}
    typical = {name: median(found) if found else None for name, found in known.items()}
    return ArmResult(cells[0].arm.name, values, flags, cells[0].arm.setting, without, typical)


def _paired(task: TaskResult, arm: ArmResult) -> Paired | None:
    """The arm's differences to the task's first; p is not corrected yet."""
    first = task.arms[0]
    differences = {s: v - first.values[s] for s, v in arm.values.items() if s in first.values}
    if arm is first or not differences:
        return None
    values = list(differences.values())
    p, sign = permutation_p(values), 1 if task.greater_is_better else -1
    better = sum(sign * value > 0 for value in values)
    return Paired(differences, t_interval(values), p, p, better)
