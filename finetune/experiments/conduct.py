"""An experiment carried out: checked, announced, run or searched by Optuna, and reported.

A trial of a search is a setting, its value the mean over the seeds. Each trial draws with a seed of
its own. A sweep that is started again therefore draws the same settings, meets their finished runs,
and continues: the folders of the runs are its only memory.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from finetune.experiments import execute, executors, report
from finetune.experiments.arms import Arm, described
from finetune.experiments.execute import Job, Options
from finetune.experiments.plan import Experiment, greater_is_better, metric_name
from finetune.experiments.statistics import limits
from finetune.plurals import many

DIGITS = 4  # of a number drawn from a range: enough, and its folder has a short name


def conduct(experiment: Experiment, argv: Sequence[str]) -> int:
    """Run what is not done yet, and report; returns the exit code, 1 if runs are missing.

    Args:
        experiment: the comparison or sweep.
        argv: what was called, for the record.

    Raises:
        Refused: before anything is started, if it cannot be run.
    """
    options, launcher = experiment.options, shlex.split(experiment.options.launcher)
    settings = experiment.space.grid() if experiment.space and not experiment.is_search else []
    jobs = experiment.jobs([*experiment.arms, *(settings or search(experiment))])
    execute.check(jobs)
    if not options.report_only:
        _announce(experiment, jobs)
    if options.dry_run:
        print(*(shlex.join(job.command(launcher, in_full=True)) for job in jobs), sep="\n")
        if experiment.is_search:
            print(f"# and more, chosen by their results, until {options.trials} settings are tried")
        return 0
    reasons: dict[str, str] = {}
    if not options.report_only:
        with executors.opened(options) as executor:
            ended: list[Job] = []

            def run(jobs: Sequence[Job]) -> None:
                how = Options(launcher, options.keep_models, one_ran=bool(ended))
                reasons.update(execute.execute(jobs, how, executor, summary=_summary))
                ended.extend(jobs)

            run(jobs)
            if experiment.is_search:
                jobs = experiment.jobs([*experiment.arms, *search(experiment, run)])
    left = [job.name for job in jobs if not job.is_done()]
    missing = {name: reasons.get(name, "not run") for name in left}
    print(report.write(experiment, jobs, missing, argv))
    return 1 if missing else 0


def _summary(job: Job) -> str:
    """A finished run's main metric."""
    results = job.results()
    name = results["best"]["metric"]
    value = results.get(name)
    return f"{name.removeprefix('eval_')} {'NaN' if value is None else f'{value:.4f}'}"


def _announce(experiment: Experiment, jobs: Sequence[Job]) -> None:
    """Print what will be run, and what it cannot show; of --dry_run stdout has commands alone."""
    names = list(dict.fromkeys(job.arm.name for job in jobs))
    tasks = list(dict.fromkeys(job.task for job in jobs))
    seeds, trials = len(experiment.seeds), experiment.options.trials if experiment.space else None
    what = f"{trials} trials" if trials else f"{len(jobs)} runs, {many(len(names), 'arm')}"
    text = f"{what}: {', '.join(names)}; {', '.join(tasks)}; {many(seeds, 'seed')}"
    warning = None if experiment.space else limits(seeds, len(tasks) * (len(names) - 1))
    file = sys.stderr if experiment.options.dry_run else sys.stdout
    print(text, *([f"Before you wait: {warning}"] if warning else []), sep="\n", file=file)


def search(sweep: Experiment, run: Callable[[Sequence[Job]], None] | None = None) -> list[Arm]:
    """Try as many settings as --trials says.

    Args:
        sweep: with one part in its space; of others there is nothing to try.
        run: does runs. None does nothing: the settings are then those of which a run has ended.

    Returns:
        The settings tried, each once.

    Raises:
        Refused: if a setting at the ends of the space is refused.
    """
    if sweep.space is None or not sweep.is_search:
        return []
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sweep.jobs(sweep.space.ends())
    choice, failed = optuna.distributions.CategoricalDistribution, optuna.trial.TrialState.FAIL
    space = {
        flag: choice([json.dumps(value) for value in values])
        if isinstance(values, list)
        else values
        for flag, values in sweep.space.parts[0].items()
    }
    study, arms, trials = optuna.create_study(), dict[str, Arm](), sweep.options.trials
    at_once = max(1, (sweep.options.processes or 1) // len(sweep.seeds))
    for first in range(0, trials, at_once):
        drawn: list[tuple[int, Arm]] = []
        for i in range(first, min(first + at_once, trials)):
            (seed,) = np.random.SeedSequence([sweep.seeds[0], i]).generate_state(1)
            study.sampler = optuna.samplers.TPESampler(seed=int(seed))
            trial = study.ask(fixed_distributions=space)
            drawn.append(
                (trial.number, sweep.space.arm({f: _read(trial.params[f]) for f in space}))
            )
        jobs = sweep.jobs(list({arm.name: arm for _, arm in drawn}.values()))
        if run is not None:
            for i, (_, arm) in enumerate(drawn, first + 1):
                print(f"Trial {i} of {trials}: {described(arm.setting)}")
            run(jobs)
        for number, arm in drawn:
            done = [job for job in jobs if job.arm.name == arm.name and job.is_done()]
            value = _value(sweep, done) if len(done) == len(sweep.seeds) else None
            study.tell(number, value, failed if value is None else None)
            if done or run is not None:
                arms[arm.name] = arm
    return list(arms.values())


def _read(drawn: Any) -> Any:
    """A value that a trial drew: JSON from a list, a number from a range."""
    if isinstance(drawn, float):
        return float(f"{drawn:.{DIGITS}g}")
    return json.loads(drawn) if isinstance(drawn, str) else drawn


def _value(sweep: Experiment, jobs: Sequence[Job]) -> float | None:
    """The mean over the seeds, negative where greater is better; None if one is not finite."""
    values = []
    for results in (job.results() for job in jobs):
        name = metric_name(sweep.metric, jobs[0], results)
        if (value := results.get(name)) is None:
            return None
        values.append(-value if greater_is_better(name, results) else value)
    return fmean(values)
