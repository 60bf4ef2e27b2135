"""How does a metric depend on a filter's settings? Each setting with several seeds, and a figure.

    python finetune/sweep.py --script finetune/glue.py --task_name cola \\
        --model_name_or_path bert-base-uncased --variant gfsa \\
        --space finetune/spaces/gfsa-order.yaml --seeds 3 --output_dir runs/sweep-order
    python finetune/sweep.py ... --space '{order: [2, 4, 8], w_0: [-0.1, 0.0, 0.1]}'
    python finetune/sweep.py ... --method optuna --trials 30 \\
        --space '{order: {low: 2, high: 10}, w_0: {low: -0.1, high: 0.1}}'

Flags that are not listed here go to every run of the script. Started again, it goes on where it was
stopped; with more seeds, values or trials, only what is new is run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from finetune.arguments import NO_VARIANT
from finetune.comparison import pool
from finetune.comparison.command_line import exit_with
from finetune.comparison.grid import Cell
from finetune.comparison.results import greater_is_better, main_metric, shown
from finetune.comparison.scripts import Script
from finetune.comparison.statistics import LEAST_RESAMPLED
from finetune.flags import at_least, refusal
from finetune.sweeping import command_line, report, space
from finetune.sweeping.command_line import OPTUNA
from finetune.sweeping.plan import Sweep, checked_variant, refuse_twins
from finetune.sweeping.space import Setting
from finetune.sweeping.study import Study


def main(argv: Sequence[str] | None = None) -> int:
    """Do what ``argv`` asks (None: the process's); returns the exit code, 1 if runs are missing.

    Raises ``ValueError`` before anything is started if it cannot be run as asked.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    given, common = command_line.parser(__doc__).parse_known_args(argv)
    sweep = planned(given, common)
    study = searched(sweep, given) if given.method == OPTUNA else None
    settings = study.settings() if study else list(sweep.space.grid())
    cells = sweep.cells(settings, plain=sweep.baseline)
    pool.check([cell.run for cell in cells])
    if study is None:
        refuse_twins(cells)
    if given.dry_run:
        words = shlex.split(given.launcher)
        print(*(shlex.join(cell.run.command(words)) for cell in cells), sep="\n")
        if study is not None:
            print(f"# and more, chosen by their results, until {given.trials} settings are tried")
        return 0
    reasons: Mapping[str, str] = {}
    if not given.report_only:
        announce(sweep, given, cells)
        settings, cells, reasons = run(sweep, given, settings, cells, study)
    runs = [cell.run for cell in cells]
    missing = {run.name: reasons.get(run.name, "not run") for run in runs if not run.is_done()}
    found = report.gathered(sweep, settings, cells, given.metric, missing)
    if found is None:
        print("No run has ended: there is nothing to report yet.")
    else:
        found = replace(found, launcher=given.launcher, ranked=study is not None)
        print(report.write(found, argv))
    return 1 if missing else 0


def planned(given: argparse.Namespace, common: Sequence[str]) -> Sweep:
    """What the flags ask for."""
    at_least(given, 1, "seeds", "processes", "threads", "trials")
    for name in ("script", "output_dir", "space"):
        if getattr(given, name) is None:
            raise refusal(name, None, "a value", f"Give --{name}; see --help.")
    if (given.trials is None) == (given.method == OPTUNA):
        allowed = "a number with method optuna, None with grid"
        raise refusal("trials", given.trials, allowed, f"method is {given.method}.")
    script, variant = Script(given.script), checked_variant(given.variant)
    return Sweep(
        script,
        variant,
        space.read(given.space, script, variant),
        range(given.first_seed, given.first_seed + given.seeds),
        common,
        given.output_dir,
        baseline=not given.no_baseline and variant != NO_VARIANT,
    )


def searched(sweep: Sweep, given: argparse.Namespace) -> Study:
    """The trials so far, after what is wrong with the space's ends was refused."""
    first = sweep.cells(sweep.space.ends(), plain=sweep.baseline)[0]
    metric = given.metric or main_metric(first)
    if metric is None:
        allowed = "a name with own files and optuna, like accuracy or loss"
        raise refusal("metric", None, allowed, "Give --metric.")
    look_only = given.dry_run or given.report_only
    return Study(sweep, given.metric, greater_is_better(metric), look_only=look_only)


def run(
    sweep: Sweep,
    given: argparse.Namespace,
    settings: Sequence[Setting],
    cells: Sequence[Cell],
    study: Study | None,
) -> tuple[Sequence[Setting], Sequence[Cell], Mapping[str, str]]:
    """Run what is not done yet; returns settings, their runs, and why some have no results."""
    slots = pool.slots(given.processes, given.threads)
    options = pool.Options(slots, shlex.split(given.launcher), given.keep_models)

    def execute(cells: Sequence[Cell]) -> dict[str, str]:
        return pool.execute([cell.run for cell in cells], options, shown=shown)

    if study is None:
        return settings, cells, execute(cells)
    reasons = execute(sweep.cells([], plain=True)) if sweep.baseline else {}
    at_once = max(1, len(slots) // len(sweep.seeds))
    reasons |= study.search(given.trials, execute, at_once=at_once)
    settings = study.settings()
    return settings, sweep.cells(settings, plain=sweep.baseline), reasons


def announce(sweep: Sweep, given: argparse.Namespace, cells: Sequence[Cell]) -> None:
    """What will be run, and what it will not be able to show."""
    seeds = len(sweep.seeds)
    beside = f" and {NO_VARIANT}" if sweep.baseline else ""
    if given.method == OPTUNA:
        print(f"{given.trials} trials of {sweep.variant}{beside}, {seeds} runs each")
    else:
        count = len({cell.arm for cell in cells}) - sweep.baseline
        print(f"{len(cells)} runs: {count} settings of {sweep.variant}{beside}, seeds: {seeds}")
    if seeds < LEAST_RESAMPLED and sweep.baseline:
        print(f"Before you wait: differences have intervals from {LEAST_RESAMPLED} seeds on.")


if __name__ == "__main__":
    exit_with(main)
