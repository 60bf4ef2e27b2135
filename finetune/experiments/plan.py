"""What a comparison or a sweep will run: its cells, and the metric that is compared.

A sweep is a comparison whose arms are the settings of a space, beside plain attention.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tasks
from finetune.data import sources
from finetune.errors import Refused, refusal
from finetune.experiments import arms, executors
from finetune.experiments.arms import NOT_COMMON, PER_RUN, PLAIN, Arm, Script, Space
from finetune.experiments.command_line import OPTUNA
from finetune.experiments.execute import METRIC, Job
from finetune.settings.flags import at_least
from finetune.settings.variants import NO_VARIANT, checked_variant
from tasks import Split, Task, metrics
from tasks.metrics import ROWS

Results = Mapping[str, Any]  # what a run wrote into all_results.json
OWN_DATA = "run"  # the folder where a task's would be, of own files


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    ``task`` is the name of its task, or with ``is_own`` that of someone's own file or folder.
    """

    task: str
    arm: Arm
    seed: int
    job: Job
    is_own: bool = False


@dataclass(frozen=True)
class Measure:
    """What is compared.

    Attributes:
        name: the metric's; None is each task's main metric.
        flags: what the runs get for it beside the common flags.
        greater_is_better: of a metric that is no task's own; None where it does not say.
    """

    name: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    greater_is_better: bool | None = None


@dataclass(frozen=True)
class Experiment:
    """What all runs of a comparison or of a sweep have in common.

    Attributes:
        options: the flags of compare.py or sweep.py.
        script: what is run.
        arms: what is compared, the baseline first; of a sweep plain attention, or nothing.
        common: flags of all runs, by name.
        measure: the metric compared.
        space: a sweep's settings.
    """

    options: argparse.Namespace
    script: Script
    arms: Sequence[Arm]
    common: Mapping[str, Any]
    measure: Measure
    space: Space | None = None

    @property
    def seeds(self) -> range:
        """One run of each arm a seed."""
        return range(self.options.first_seed, self.options.first_seed + self.options.seeds)

    @property
    def folder(self) -> Path:
        """The runs are in ``<task>/<arm>/seed-<n>`` in it."""
        folder: Path = self.options.output_dir
        return folder

    def cells(self, settings: Sequence[Arm] = (), *, beside: bool = True) -> list[Cell]:
        """The runs of the arms and of these settings, or with ``beside`` False of these alone.

        All arms of a seed, then the next seed, so that pairs are complete. The runs of a seed
        differ in their arm's flags alone: they have the same order of rows and begin with the same
        weights.

        Raises ``Refused`` for flags that the script would refuse.
        """
        names = [{"task_name": name} for name in self.options.task_names] or [{}]
        planned = []
        for name, arm in itertools.product(names, [*(self.arms if beside else ()), *settings]):
            try:
                common = {**self.common, **self.measure.flags, **name}
                flags = arms.flags_for(arm, common, self.script)
                planned.append((arm, flags, self.script.run(flags)))
            except ValueError as error:
                raise Refused(f"Arm {arm.name}: {error}") from error
        cells = []
        for seed, (arm, flags, run) in itertools.product(self.seeds, planned):
            task = run.data.task_name
            path = f"{task or OWN_DATA}/{arm.name}/seed-{seed}"
            deciding = json.loads(json.dumps(run.deciding())) | {"seed": seed}  # as results have it
            job = Job(path, self.script.path, self.folder / path, {**flags, "seed": seed}, deciding)
            title = task or run.data.own_name or OWN_DATA
            cells.append(Cell(title, arm, seed, job, is_own=task is None))
        return cells


def comparison(options: argparse.Namespace, argv: Sequence[str]) -> Experiment:
    """What compare.py's flags describe; ``argv`` are those that belong to the script."""
    script = _script(options)
    chosen = arms.chosen(
        options.variants, options.arms, options.variant_flags, options.baseline, script
    )
    return _experiment(options, script, chosen, argv)


def sweep(options: argparse.Namespace, argv: Sequence[str]) -> Experiment:
    """What sweep.py's flags describe; ``argv`` are those that belong to the script.

    Raises ``Refused`` for flags that are missing or do not fit together, an unknown variant, and
    flags that are both common and swept.
    """
    script = _script(options, "space")
    at_least(options, 1, "trials")
    if (options.trials is None) == (options.method == OPTUNA):
        allowed = "a number with method optuna, None with grid"
        remedy = f"The method is {options.method}: give the one or drop the other."
        raise refusal("trials", options.trials, allowed, remedy)
    space = arms.read_space(options.space, script, checked_variant(options.variant))
    for name in set(space.flags) & set(script.schema.read(argv, vars(options))):
        remedy = "Drop the flag, or leave it out of the space."
        raise refusal(f"--{name}", "given, and swept", "one of the two", remedy)
    has_baseline = not options.no_baseline and space.variant != NO_VARIANT
    return _experiment(options, script, [PLAIN] if has_baseline else [], argv, space)


def _script(options: argparse.Namespace, *needed: str) -> Script:
    at_least(options, 1, "seeds", "processes", "threads")
    for name in ("script", "output_dir", *needed):
        if getattr(options, name) is None:
            raise refusal(name, None, "a value", f"Give --{name}; see --help.")
    executors.check(options)
    return Script(options.script)


def _experiment(
    options: argparse.Namespace,
    script: Script,
    chosen: Sequence[Arm],
    argv: Sequence[str],
    space: Space | None = None,
) -> Experiment:
    common = common_flags(script, argv, vars(options))
    measure = measured(options, script, common)
    return Experiment(options, script, chosen, common, measure, space)


def common_flags(
    script: Script, argv: Sequence[str], besides: Iterable[str] = ()
) -> dict[str, Any]:
    """The flags of all runs, from a command line and the recipe that it names.

    The variant and the seed of a recipe give way to those of each run. ``besides`` are flags of
    the comparison itself.

    Raises ``Refused`` for flags that are unknown, or cannot be common to runs.
    """
    flags, direct = script.schema.given(argv, besides), script.schema.read(argv)
    for name in NOT_COMMON:
        if name in flags and (name not in PER_RUN or name in direct):
            remedy = "Drop it; --help lists the flags that set what differs between runs."
            raise refusal(f"--{name}", "given", "flags that all runs can have", remedy)
    return {name: value for name, value in flags.items() if name not in PER_RUN}


def measured(options: argparse.Namespace, script: Script, common: Mapping[str, Any]) -> Measure:
    """The metric of --metric: a task's own, or any other that the runs then measure beside these.

    Raises ``Refused`` for a task or a metric that is not known; where nothing is run, a name that
    no run has is left to the report.
    """
    name = options.metric
    names: Sequence[str | None] = options.task_names or [common.get("task_name")]
    try:
        known = [None if task is None else tasks.get(task, script.family) for task in names]
        if name is None or all(_evaluated(name) in _own(task) for task in known):
            return Measure(name)
        if options.report_only and not Path(name).exists():
            return Measure(name)
        metrics.check_trusted([name], common.get("trust_remote_code", False))
        for task in filter(None, known):
            sources.with_metrics(task, [name])  # every task can have it
        metric, *_ = metrics.load([name])
    except ValueError as error:
        raise Refused(str(error)) from error
    flags = {METRIC: [*common.get(METRIC, ()), name]}
    return Measure(metric.name, flags, metric.greater_is_better)


def metric_name(name: str | None, cell: Cell, results: Results) -> str:
    """The key of the metric compared: the one named, the task's main one, or the run's own.

    Raises ``Refused`` if the run has no metric of this name. Its other numbers, such as seconds or
    counts of tokens, are no metrics: nothing says which way they are better.

    Args:
        name: with or without ``eval_``; None is the main one.
        cell: a finished run of the grid.
        results: what that run wrote.
    """
    if name is None:
        return main_metric(cell) or results["best"]["metric"]
    known = _directions(cell, results)
    keys = [
        key
        for key, value in results.items()
        if key.startswith(("eval_", "test_"))
        and _evaluated(key) in known
        and isinstance(value, int | float | None)  # None is a value that is not finite
    ]
    for key in (name, f"eval_{name}"):
        if key in keys:
            return key
    raise refusal("metric", name, ", ".join(keys), "Choose one of these with --metric.")


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

    Raises ``Refused`` if neither the metric nor a flag of the run says it.
    """
    key = _evaluated(metric)
    settings = cell.job.settings if results is None else results.get("settings", {})
    direction: bool | None = _directions(cell, results).get(key)
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


def _directions(cell: Cell, results: Results | None) -> Mapping[str, bool | None]:
    """For each key of an evaluation, whether greater is better; None where its metric is silent."""
    if results is not None and "greater_is_better" in results:
        directions: Mapping[str, bool | None] = results["greater_is_better"]
        return directions
    rows = {f"eval_{name}": metric.greater_is_better for name, metric in ROWS.items()}
    return rows | _own(_task(cell))


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
    return None if cell.is_own else tasks.get(cell.task, cell.job.script.stem)
