"""An experiment carried out: checked, announced, run, and reported."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence

from finetune.errors import refusal
from finetune.experiments import executors, metrics, pool, report
from finetune.experiments.experiment import Experiment
from finetune.experiments.grid import Cell
from finetune.experiments.search import Study
from finetune.experiments.statistics import LEAST_PAIRS, limits
from finetune.experiments.work import Options
from finetune.plurals import many


def carry_out(asked: Experiment, argv: Sequence[str], study: Study | None = None) -> int:
    """Run what is not done yet, and report; returns the exit code, 1 if runs are missing.

    Args:
        asked: the experiment.
        argv: what was called, for the record.
        study: what chooses a sweep's settings; None is its whole grid.

    Raises ``ValueError`` before anything is started if it cannot be run as asked.
    """
    given, launcher = asked.given, shlex.split(asked.given.launcher)
    cells = asked.cells(study.arms() if study else asked.grid())
    pool.check([cell.run for cell in cells])
    if asked.space and not study:
        refuse_twins(cells)
    if not given.report_only:
        announce(asked, cells)
    if given.dry_run:
        print(*(shlex.join(cell.run.command(launcher, in_full=True)) for cell in cells), sep="\n")
        if study:
            print(f"# and more, chosen by their results, until {given.trials} settings are tried")
        return 0
    reasons = {} if given.report_only else run(asked, cells, study)
    cells = asked.cells(study.arms()) if study else cells
    left = [cell.run.name for cell in cells if not cell.run.is_done()]
    missing = {name: reasons.get(name, "not run") for name in left}
    print(report.write(asked, cells, missing, argv, best_first=study is not None))
    return 1 if missing else 0


def run(asked: Experiment, cells: Sequence[Cell], study: Study | None) -> dict[str, str]:
    """Run what is not done yet; returns the names of runs without results, and why."""
    given = asked.given
    options = Options(shlex.split(given.launcher), given.keep_models)
    with executors.opened(given) as executor:

        def execute(cells: Sequence[Cell]) -> dict[str, str]:
            return pool.execute([c.run for c in cells], options, executor, shown=metrics.shown)

        if study is None:
            return execute(cells)
        at_once = max(1, (executor.at_once or 1) // len(asked.seeds))
        return execute(asked.cells()) | study.search(given.trials, execute, at_once=at_once)


def announce(asked: Experiment, cells: Sequence[Cell]) -> None:
    """Say what will be run, and what it will not be able to show; commands alone go to stdout."""
    names = list(dict.fromkeys(cell.arm.name for cell in cells))
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    seeds, warning = asked.seeds, None
    if asked.space is None:
        said = f"{', '.join(tasks)}; {', '.join(names[1:])} against {names[0]}"
        which = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
        said = f"{len(cells)} runs: {said}; {which}"
        warning = limits(len(seeds), len(tasks) * (len(names) - 1))
    else:
        what = " and ".join([asked.space.variant, *(arm.name for arm in asked.arms)])
        said = f"{len(cells)} runs: {len(names) - len(asked.arms)} settings of {what}"
        if asked.given.trials:
            said = f"{asked.given.trials} trials of {what}"
        said += f"; {many(len(seeds), 'seed')}"
        if len(seeds) < LEAST_PAIRS and asked.arms:
            warning = f"differences have intervals from {LEAST_PAIRS} seeds on."
    file = sys.stderr if asked.given.dry_run else sys.stdout
    print(said, *([f"Before you wait: {warning}"] if warning else []), sep="\n", file=file)


def refuse_twins(cells: Sequence[Cell]) -> None:
    """Raise ``ValueError`` if two settings are the same run."""
    names: dict[str, str] = {}
    for cell in cells:
        first = names.setdefault(json.dumps(cell.run.settings, sort_keys=True), cell.arm.name)
        if first != cell.arm.name:
            allowed, remedy = "settings that differ", "These are the same run: drop one of them."
            raise refusal("space", f"{first} and {cell.arm.name}", allowed, remedy)
