"""What a comparison or a sweep will run: its jobs, and the metric that is compared.

A sweep is a comparison whose arms are the settings of a space, beside plain attention.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tasks
from finetune.errors import Refused, refusal
from finetune.experiments import arms
from finetune.experiments.arms import NOT_COMMON, PER_RUN, PLAIN, Arm, Script, Space
from finetune.experiments.command_line import OPTUNA
from finetune.experiments.execute import METRIC, Job
from finetune.settings.flags import at_least
from finetune.settings.schema import Run
from finetune.settings.variants import NO_VARIANT, checked_variant
from tasks import Split, Task, metrics
from tasks.metrics import ROWS

Results = Mapping[str, Any]  # what a run wrote into all_results.json
OWN_DATA = "run"  # the folder where a task's would be, of own files


@dataclass(frozen=True)
class Experiment:
    """What all runs of a comparison or of a sweep have in common.

    Attributes:
        options: the flags of compare.py or sweep.py.
        script: what is run.
        arms: what is compared, the baseline first; of a sweep plain attention, or nothing.
        common: flags of all runs, by name.
        metric: the name of the metric compared; None is each task's main metric.
        space: a sweep's settings.
    """

    options: argparse.Namespace
    script: Script
    arms: Sequence[Arm]
    common: Mapping[str, Any]
    metric: str | None = None
    space: Space | None = None

    @property
    def seeds(self) -> range:
        """One run of each arm a seed."""
        return range(self.options.first_seed, self.options.first_seed + self.options.seeds)

    @property
    def is_search(self) -> bool:
        """Whether Optuna chooses the settings."""
        return self.space is not None and self.options.method == OPTUNA

    def jobs(self, chosen: Sequence[Arm]) -> list[Job]:
        """The runs of these arms.

        All arms of a seed, then the next seed, so that pairs are complete. The runs of a seed
        differ in their arm's flags alone: they have the same order of rows and begin with the same
        weights.

        Raises ``Refused`` for flags that the script would refuse.
        """
        names = self.options.task_names or [self.common.get("task_name")]
        planned = []
        for name, arm in itertools.product(names, chosen):
            common = {**self.common, **({} if name is None else {"task_name": name})}
            try:
                planned.append((arm, self.script.run(arm, common)))
            except ValueError as error:
                raise Refused(f"Arm {arm.name}: {error}") from error
        return [
            self._job(arm, run, seed) for seed, (arm, run) in itertools.product(self.seeds, planned)
        ]

    def _job(self, arm: Arm, run: Run[Any, Any], seed: int) -> Job:
        task, metric = run.data.task_name, None
        if task is not None:
            known = tasks.get(task, self.script.family)
            metric = f"eval_{known.main_metric}{known.validation_splits[0].key_suffix}"
        name = f"{task or OWN_DATA}/{arm.name}/seed-{seed}"
        run = run.training(seed=seed, output_dir=str(self.options.output_dir.absolute() / name))
        title = task or run.data.data_name or OWN_DATA
        return Job(name, self.script.path.absolute(), run, arm, title, metric)


def comparison(options: argparse.Namespace, argv: Sequence[str]) -> Experiment:
    """What compare.py's flags describe; ``argv`` are those that belong to the script."""
    script, extra = script_of(options), defaultdict[str, dict[str, Any]](dict)
    for text in options.variant_flags:
        name, _, flags = text.partition(":")
        extra[name] |= script.schema.read(shlex.split(flags))
    chosen = arms.chosen(options, script, extra)
    return experiment(options, script, chosen, common_flags(script, argv))


def sweep(options: argparse.Namespace, argv: Sequence[str]) -> Experiment:
    """What sweep.py's flags describe; ``argv`` are those that belong to the script.

    Raises ``Refused`` for flags that are missing or do not fit together, an unknown variant, and
    flags that are both common and swept.
    """
    script, is_search = script_of(options, "space"), options.method == OPTUNA
    at_least(options, 1, "trials")
    if (options.trials is not None) != is_search:
        allowed = "a number with method optuna, None with grid"
        remedy = f"The method is {options.method}: give the one or drop the other."
        raise refusal("trials", options.trials, allowed, remedy)
    variant = checked_variant(options.variant)
    space = arms.read_space(options.space, script, variant, ranges=is_search)
    swept = {flag for part in space.parts for flag in part}
    if both := sorted(swept.intersection(script.schema.read_argv(argv))):
        remedy = "Drop the flag, or leave it out of the space."
        raise refusal(f"--{both[0]}", "given, and swept", "one of the two", remedy)
    has_baseline = not options.no_baseline and variant != NO_VARIANT
    common = common_flags(script, argv)
    return experiment(options, script, [PLAIN] if has_baseline else [], common, space)


def script_of(options: argparse.Namespace, *needed: str) -> Script:
    """The script to run; raises ``Refused`` if it, the output folder or ``needed`` is missing."""
    at_least(options, 1, "seeds", "processes", "threads")
    for name in ("script", "output_dir", *needed):
        if getattr(options, name) is None:
            raise refusal(name, None, "a value", f"Give --{name}; see --help.")
    return Script(options.script)


def experiment(
    options: argparse.Namespace,
    script: Script,
    chosen: Sequence[Arm],
    common: Mapping[str, Any],
    space: Space | None = None,
) -> Experiment:
    """The experiment, in which all runs measure the metric of --metric."""
    metric, common = compared_metric(options, script, common)
    return Experiment(options, script, chosen, common, metric, space)


def common_flags(script: Script, argv: Sequence[str]) -> dict[str, Any]:
    """The flags of all runs, from a command line and the recipe that it names.

    The variant and the seed of a recipe give way to those of each run.

    Raises ``Refused`` for flags that are unknown, or cannot be common to runs.
    """
    flags, direct = script.schema.read(argv), script.schema.read_argv(argv)
    for name in NOT_COMMON:
        if name in flags and (name not in PER_RUN or name in direct):
            remedy = "Drop it; --help lists the flags that set what differs between runs."
            raise refusal(f"--{name}", "given", "flags that all runs can have", remedy)
    return {name: value for name, value in flags.items() if name not in PER_RUN}


def compared_metric(
    options: argparse.Namespace, script: Script, common: Mapping[str, Any]
) -> tuple[str | None, Mapping[str, Any]]:
    """The metric of --metric, and the common flags with which the runs measure it.

    Raises ``ValueError`` for a task or a metric that is not known, and for a metric that does not
    say which way it is better. Where nothing is run, the report refuses a name that no run has.
    """
    name = options.metric
    names: Sequence[str | None] = options.task_names or [common.get("task_name")]
    known = [None if task is None else tasks.get(task, script.family) for task in names]
    is_measured = name is None or all(_key(name) in _measured_anyway(task) for task in known)
    if is_measured or (options.report_only and not Path(name).exists()):
        return name, common
    metrics.check_trusted([name], common.get("trust_remote_code", False))
    metric, *_ = metrics.load([name])
    directions = {_key(metric.name): metric.greater_is_better}
    greater_is_better(metric.name, {"greater_is_better": directions, "settings": common})
    measured = list(dict.fromkeys([*common.get(METRIC, ()), name]))
    return metric.name, {**common, METRIC: measured}


def metric_name(name: str | None, job: Job, results: Results) -> str:
    """The key of the metric compared: the one named, the task's main one, or the run's own.

    Raises ``Refused`` if the run has no metric of this name. Its other numbers, such as seconds or
    counts of tokens, are no metrics: nothing says which way they are better.

    Args:
        name: with or without ``eval_``; None is the main one.
        job: a finished run of the grid.
        results: what that run wrote.
    """
    if name is None:
        return job.main_metric or str(results["best"]["metric"])
    directions = results["greater_is_better"]
    keys = [x for x in results if x.startswith(("eval_", "test_")) and _key(x) in directions]
    for key in (name, f"eval_{name}"):
        if key in keys:
            return key
    raise refusal("metric", name, ", ".join(keys), "Choose one of these with --metric.")


def greater_is_better(metric: str, results: Results) -> bool:
    """The direction of a metric, as a run's results or its flags have it.

    Raises ``Refused`` if neither does.
    """
    key, settings = _key(metric), results["settings"]
    direction: bool | None = results["greater_is_better"].get(key)
    if direction is None and _key(settings.get("metric_for_best_model") or "") == key:
        direction = settings.get("greater_is_better")
    if direction is None:
        name = key.removeprefix("eval_")
        allowed = f"true or false, since the metric {name} does not say which way it is better"
        remedy = f"Run with --metric_for_best_model {name} --greater_is_better true or false, or "
        remedy += "set greater_is_better in the class of the metric's module."
        raise refusal("greater_is_better", None, allowed, remedy)
    return direction


def _measured_anyway(task: Task | None) -> set[str]:
    """The keys of the task's metrics, and of those that objectives measure themselves."""
    names = [metric.name for metric in ROWS.values() if metric.function is None]
    names += [metric.name for metric in task.metrics] if task else []
    splits = (*task.validation_splits, *task.test_splits) if task else (Split(""),)
    return {f"eval_{name}{split.key_suffix}" for name in names for split in splits}


def _key(name: str) -> str:
    """The key on the validation split of a metric that may be named with a prefix or without."""
    return f"eval_{name.removeprefix('test_').removeprefix('eval_')}"
