"""Finished runs, gathered: each arm's values by seed, and its differences to the baseline.

Also what makes such numbers mean nothing, the best of many settings, and all of it as JSON, from
which a report can be written again.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from scipy import stats

import hf_graphattn as ga
from finetune.engine.results import constant, evaluated
from finetune.experiments.execute import CLOSED, Job
from finetune.experiments.plan import Results, greater_is_better, metric_name
from finetune.experiments.statistics import Interval, holm, permutation_p, t_interval
from finetune.settings import variants
from finetune.settings.groups import FILTER_RATE

MOVED, COSTS = "filter_max_moved", ("filter_scalars", "seconds_per_step", "peak_memory_bytes")
TYPICAL = (MOVED, *COSTS)
NONE = "-"  # in a table, where there is no number
EACH = ("seed", "output_dir")  # flags that each run of an arm has otherwise
ORIGIN = {"versions": "versions", "git": "commit", "machine": "machine"}  # keys, and their names

Record = dict[str, Any]


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
    """The runs of an arm on one task.

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

    def as_text(self, places: int) -> str:
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
    def direction(self) -> str:
        """Which way the metric is better, in a clause."""
        return f"{'greater' if self.greater_is_better else 'less'} is better"

    @property
    def arrow(self) -> str:
        """The same as a sign."""
        return "↑" if self.greater_is_better else "↓"

    def direction_of(self, paired: Paired) -> str:
        """Whether an arm's mean is better or worse than the baseline's."""
        return "better" if (paired.mean > 0) == self.greater_is_better else "worse"

    def baseline_mean(self, paired: Paired) -> float:
        """The baseline's mean over the seeds of these pairs."""
        return fmean(self.arms[0].values[seed] for seed in paired.differences)

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


def gather(
    jobs: Sequence[Job],
    done: Mapping[str, Results],
    metric: str | None,
    missing: Mapping[str, str],
) -> list[TaskResult]:
    """The results by task; tasks of which no run has ended are left out.

    The first arm is the baseline, unless it is a setting of a sweep: then nothing is compared.

    Args:
        jobs: the grid.
        done: what its finished runs wrote, by the run's name.
        metric: which of their numbers, with or without ``eval_``; None is each task's main metric.
        missing: why a run has no results, by its name.

    Raises ``Refused`` if the runs have no such metric, or nothing says which way it is better.
    """
    by_task: dict[str, dict[str, list[Job]]] = {}
    for job in jobs:
        by_task.setdefault(job.task, {}).setdefault(job.arm.name, []).append(job)
    results = []
    for task, by_arm in by_task.items():
        if ended := [job for job in jobs if job.task == task and job.name in done]:
            first = done[ended[0].name]
            name = metric_name(metric, ended[0], first)
            arms = [_arm(of_arm, name, done, missing) for of_arm in by_arm.values()]
            results.append(TaskResult(task, name, greater_is_better(name, first), arms))
    has_baseline = bool(results) and not jobs[0].arm.setting
    return against_baseline(results) if has_baseline else results


def against_baseline(results: Iterable[TaskResult]) -> list[TaskResult]:
    """Each task's arms compared to its first; p corrected over every comparison of every task."""
    tasks = [(task, [_paired(task, arm) for arm in task.arms]) for task in results]
    corrected = iter(holm([paired.p for _, pairs in tasks for paired in pairs if paired]))

    def with_pair(arm: ArmResult, paired: Paired | None) -> ArmResult:
        return replace(arm, paired=paired and replace(paired, corrected_p=next(corrected)))

    return [replace(task, arms=list(map(with_pair, task.arms, pairs))) for task, pairs in tasks]


def against_degree_1(results: Iterable[TaskResult]) -> list[TaskResult]:
    """The arms of several passes compared to one of degree 1, c_0 V + c_1 A V; none without one.

    What one pass does as well is not due to a filter's A^2. Of several arms of degree 1 it is the
    one whose scalars have the same learning rate, or each where none has. p is corrected over these
    comparisons alone.
    """
    compared = []
    for task in results:
        controls = [arm for arm in task.arms if _is_degree_1(arm)]
        rates = [arm.flags.get(FILTER_RATE) for arm in controls]
        deep = [arm for arm in task.arms[1:] if _passes(arm) > 1]
        for control in controls:
            matching = (
                control.flags.get(FILTER_RATE),
                *{arm.flags.get(FILTER_RATE) for arm in deep}.difference(rates),
            )
            arms = [arm for arm in deep if arm.flags.get(FILTER_RATE) in matching]
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
    settings = {n: v for n, v in arm.flags.items() if arm.variant in variants.owners(n)}
    heads = math.lcm(*(len(v) or 1 for v in settings.values() if isinstance(v, list | tuple)))
    config = variants.config_of(arm.variant, settings)
    return 1 + config.build(heads).operands if config else 1


def _arm(
    jobs: Sequence[Job], metric: str, done: Mapping[str, Results], missing: Mapping[str, str]
) -> ArmResult:
    arm, flags = jobs[0].arm, jobs[0].run.flags()
    # The arm's come first, those too that are at their defaults.
    flags = {n: v for n, v in {**arm.flags, **flags, **arm.flags}.items() if n not in EACH}
    runs = {job.seed: done[job.name] for job in jobs if job.name in done}
    values = {seed: run[metric] for seed, run in runs.items() if run.get(metric) is not None}
    why = {
        job.seed: "no finite value" if job.name in done else missing.get(job.name, "not run")
        for job in jobs
        if job.seed not in values
    }
    known = {n: [v for r in runs.values() if (v := r.get(n)) is not None] for n in TYPICAL}
    typical = {name: median(numbers) if numbers else None for name, numbers in known.items()}
    return ArmResult(arm.name, values, flags, arm.setting, why, typical)


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


def best(task: TaskResult) -> list[ArmResult]:
    """The complete settings with the best mean; several where they differ by rounding alone."""
    complete = [arm for arm in ranked(task).settings if arm.values and not arm.missing]
    return [arm for arm in complete if math.isclose(arm.mean, complete[0].mean, rel_tol=1e-12)]


def ranked(task: TaskResult) -> TaskResult:
    """The task with its best setting first, and settings without values last."""
    sign = -1 if task.greater_is_better else 1
    plain = [arm for arm in task.arms if not arm.setting]
    settings = sorted(task.settings, key=lambda arm: sign * arm.mean if arm.values else math.inf)
    return replace(task, arms=[*plain, *settings])


def expected_maximum(count: int) -> float:
    """The expected greatest of so many independent standard normal values."""
    x = np.linspace(-12, 12, 24_001)
    return float(np.trapezoid(x * count * stats.norm.pdf(x) * stats.norm.cdf(x) ** (count - 1), x))


def optimism(settings: Sequence[ArmResult]) -> float | None:
    """How far the best mean is expected above the average of all, if all settings are equal.

    The spread of a setting's mean is what setting and seed leave over, ``x_ij - x_i. - x_.j +
    x_..``, since a seed's luck is shared by all settings. None for fewer than two complete
    settings, or fewer than two seeds.
    """
    whole = [arm for arm in settings if arm.values and not arm.missing]
    if len(whole) < 2 or len(whole[0].values) < 2:
        return None
    x = np.asarray([[arm.values[seed] for seed in whole[0].values] for arm in whole])
    rest = x - x.mean(axis=1, keepdims=True) - x.mean(axis=0) + x.mean()
    count, seeds = x.shape
    variance = float((rest**2).sum()) / ((count - 1) * (seeds - 1))
    return math.sqrt(variance / seeds) * expected_maximum(count)


def warnings(results: Sequence[TaskResult], jobs: Sequence[Job]) -> Iterator[str]:
    """A line for each sign that a table says nothing: one answer for all rows, zeros, ties."""
    for task in results:
        zeros = [arm.name for arm in task.arms if arm.values and not any(arm.values.values())]
        texts = [*_constant(task, jobs)]
        if zeros and task.greater_is_better:  # no error is no fault
            texts.append(f"{', '.join(zeros)}: {task.title} is 0 in all seeds.")
        yield from (f"Warning: {task.task}, {text}" for text in (*texts, *_ties(task)))


def _constant(task: TaskResult, jobs: Sequence[Job]) -> Iterator[str]:
    """Runs that give every row the same answer, though the rows' labels differ."""
    seeds, ended = defaultdict(list), {(arm.name, seed) for arm in task.arms for seed in arm.values}
    for job in jobs:
        if job.task == task.task and (job.arm.name, job.seed) in ended:
            files = evaluated(job.folder)
            end = max((end for end in files if task.metric.endswith(end)), key=len, default=None)
            if end is not None and (text := constant(files[end])) is not None:
                seeds[job.arm.name, text].append(str(job.seed))
    for (arm, text), which in seeds.items():
        start = f"{arm}, seed {', '.join(which)}: {text}; "
        yield f"{start}such a run has learned nothing that this metric could show."


def _ties(task: TaskResult) -> Iterator[str]:
    """Arms with identical values in all seeds, zeros left out."""
    alike = defaultdict(list)
    for arm in task.arms:
        if any(arm.values.values()):
            alike[tuple(arm.values.items())].append(arm.name)
    for values, names in alike.items():
        if len(names) > 1:
            which = f"all {len(values)} seeds" if len(values) > 1 else "the one seed"
            yield (
                f"{', '.join(names)}: the same {task.title} in {which}. Their filters had no "
                "effect, or were not learned, or the metric is too coarse to part them."
            )


def as_json(results: Sequence[TaskResult]) -> Record:
    """Every number of a comparison by task, or of a sweep by setting."""
    task = results[0]
    seeds = sorted({seed for arm in task.arms for seed in (*arm.values, *arm.missing)})
    heads = [{n: getattr(t, n) for n in ("task", "metric", "greater_is_better")} for t in results]
    if not task.settings:
        tasks = [
            head | {"baseline": t.arms[0].name, "arms": [*map(_arm_json, t.arms)]}
            for head, t in zip(heads, results, strict=True)
        ]
        return {"tasks": tasks, "seeds": seeds}
    plain, *settings = [
        arm and {"setting": arm.name} | _arm_json(arm) | {"flags": dict(arm.setting)}
        for arm in (task.plain, *task.settings)
    ]
    variant = task.settings[0].flags.get("variant")
    swept = {"variant": variant, "seeds": seeds, "plain": plain, "settings": settings}
    return {**heads[0], **swept}


def _arm_json(arm: ArmResult) -> Record:
    return {
        "arm": arm.name,
        "flags": dict(arm.flags),
        "values": arm.values,
        "mean": arm.mean if arm.values else None,
        "standard_deviation": arm.deviation,
        "least": min(arm.values.values(), default=None),
        "greatest": max(arm.values.values(), default=None),
        "missing": arm.missing,
        "paired": arm.paired and asdict(arm.paired) | {"mean": arm.paired.mean},
        **{name: arm.typical.get(name) for name in TYPICAL},
    }


def results_of(record: Mapping[str, Any]) -> list[TaskResult]:
    """The results that `as_json` made a record of.

    What is paired is computed from the values: the intervals of earlier records are BCa's.
    """
    if "tasks" in record:
        tasks = [
            _task(x, [_arm_of(arm, arm["flags"]) for arm in x["arms"]]) for x in record["tasks"]
        ]
        return against_baseline(tasks)
    variant = {"variant": record["variant"]}
    arms = [_arm_of(x, variant, x["flags"]) for x in record["settings"]]
    if record["plain"] is None:
        return [_task(record, arms)]
    return against_baseline([_task(record, [_arm_of(record["plain"], {}), *arms])])


def _task(record: Mapping[str, Any], arms: list[ArmResult]) -> TaskResult:
    return TaskResult(record["task"], record["metric"], record["greater_is_better"], arms)


def _arm_of(record: Mapping[str, Any], flags: Record, setting: Record | None = None) -> ArmResult:
    # JSON has texts for keys.
    values, missing = ({int(s): x for s, x in record[n].items()} for n in ("values", "missing"))
    typical = {name: record.get(name) for name in TYPICAL}  # earlier records have fewer
    return ArmResult(record["arm"], values, flags, setting or {}, missing, typical)


def origin(jobs: Sequence[Job], done: Mapping[str, Results]) -> Record:
    """How many runs there are, their hours, and the versions, commit and machine of the first."""
    ended = [job for job in jobs if job.name in done]
    seconds = sum((job.record() or {}).get(CLOSED) or 0.0 for job in ended)
    first = {name: done[ended[0].name].get(name) for name in ORIGIN}
    return {"runs": len(ended), "hours": seconds / 3600, **first}


def mixtures(runs: Collection[Results]) -> list[str]:
    """What differs between the runs and should not, in a sentence: versions, commit, machine."""
    notes = []
    for name, title in ORIGIN.items():
        kinds = {json.dumps(run.get(name), sort_keys=True): run.get(name) for run in runs}
        if len(kinds) > 1:
            text = "; ".join(origin_as_text(name, kinds[key]) for key in sorted(kinds))
            notes.append(f"The runs differ in {title}: {text}.")
    return notes


def origin_as_text(name: str, value: Any) -> str:
    """One of `ORIGIN` as a run wrote it."""
    if not isinstance(value, Mapping):
        return "unknown"
    if name == "git":
        return f"{str(value['commit'])[:9]}{' with changes' if value['dirty'] else ''}"
    return ", ".join(f"{key} {item}" for key, item in value.items() if item is not None)
