"""An experiment carried out: checked, announced, run, and reported."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence

from finetune.errors import refusal
from finetune.experiments import execute, executors, report
from finetune.experiments.execute import Job, Options
from finetune.experiments.plan import Cell, Experiment
from finetune.experiments.search import Study
from finetune.experiments.statistics import limits
from finetune.plurals import many


def conduct(experiment: Experiment, argv: Sequence[str], study: Study | None = None) -> int:
    """Run what is not done yet, and report; returns the exit code, 1 if runs are missing.

    Args:
        experiment: the comparison or sweep.
        argv: what was called, for the record.
        study: what chooses a sweep's settings; None is its whole grid.

    Raises ``Refused`` before anything is started if it cannot be run.
    """
    options, launcher = experiment.options, shlex.split(experiment.options.launcher)
    space = experiment.space
    cells = experiment.cells(study.arms() if study else space.grid() if space else ())
    execute.check([cell.job for cell in cells])
    if space and not study:
        _refuse_twins(cells)
    if not options.report_only:
        _announce(experiment, cells)
    if options.dry_run:
        print(*(shlex.join(cell.job.command(launcher, in_full=True)) for cell in cells), sep="\n")
        if study:
            print(f"# and more, chosen by their results, until {options.trials} settings are tried")
        return 0
    reasons = {} if options.report_only else _run(experiment, cells, study)
    cells = experiment.cells(study.arms()) if study else cells
    left = [cell.job.name for cell in cells if not cell.job.is_done()]
    missing = {name: reasons.get(name, "not run") for name in left}
    print(report.write(experiment, cells, missing, argv, best_first=study is not None))
    return 1 if missing else 0


def _run(experiment: Experiment, cells: Sequence[Cell], study: Study | None) -> dict[str, str]:
    """Run what is not done yet; returns the names of runs without results, and why."""
    launcher, keep = shlex.split(experiment.options.launcher), experiment.options.keep_models
    options = Options(launcher, keep)
    with executors.opened(experiment.options) as executor:

        def run(cells: Sequence[Cell]) -> dict[str, str]:
            jobs = [cell.job for cell in cells]
            return execute.execute(jobs, options, executor, summary=_summary)

        if study is None:
            return run(cells)
        at_once = max(1, (executor.at_once or 1) // len(experiment.seeds))
        return run(experiment.cells()) | study.search(experiment.options.trials, run, at_once)


def _summary(job: Job) -> str:
    """A finished run's main metric."""
    results = job.results()
    name = results["best"]["metric"]
    value = results.get(name)
    return f"{name.removeprefix('eval_')} {'NaN' if value is None else f'{value:.4f}'}"


def _announce(experiment: Experiment, cells: Sequence[Cell]) -> None:
    """Print what will be run, and what it cannot show; of --dry_run stdout has commands alone."""
    names = list(dict.fromkeys(cell.arm.name for cell in cells))
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    seeds, trials = len(experiment.seeds), experiment.options.trials if experiment.space else None
    what = f"{trials} trials" if trials else f"{len(cells)} runs, {many(len(names), 'arm')}"
    text = f"{what}: {', '.join(names)}; {', '.join(tasks)}; {many(seeds, 'seed')}"
    warning = None if experiment.space else limits(seeds, len(tasks) * (len(names) - 1))
    file = sys.stderr if experiment.options.dry_run else sys.stdout
    print(text, *([f"Before you wait: {warning}"] if warning else []), sep="\n", file=file)


def _refuse_twins(cells: Sequence[Cell]) -> None:
    """Raise ``Refused`` if two settings are the same run."""
    names: dict[str, str] = {}
    for cell in cells:
        first = names.setdefault(json.dumps(cell.job.settings, sort_keys=True), cell.arm.name)
        if first != cell.arm.name:
            allowed, remedy = "settings that differ", "These are the same run: drop one of them."
            raise refusal("space", f"{first} and {cell.arm.name}", allowed, remedy)
