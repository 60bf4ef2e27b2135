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
from collections.abc import Sequence

from finetune.experiments import pool, report, sweep_flags, sweep_plan
from finetune.experiments.command_line import exit_with
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import shown
from finetune.experiments.search import Study
from finetune.experiments.sweep_flags import OPTUNA
from finetune.experiments.sweep_plan import Sweep
from finetune.experiments.work import Options


def main(argv: Sequence[str] | None = None) -> int:
    """Do what ``argv`` asks (None: the process's); returns the exit code, 1 if runs are missing.

    Raises ``ValueError`` before anything is started if it cannot be run as asked.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    given, words = sweep_flags.parser(__doc__).parse_known_args(argv)
    sweep = sweep_plan.planned(given, words)
    look_only = given.dry_run or given.report_only
    study = Study(sweep, look_only=look_only) if given.method == OPTUNA else None
    cells = sweep.all_cells(study.arms() if study else sweep.space.grid())
    pool.check([cell.run for cell in cells])
    if study is None:
        sweep_plan.refuse_twins(cells)
    if given.dry_run:
        launcher = shlex.split(given.launcher)
        print(*(shlex.join(cell.run.command_in_full(launcher)) for cell in cells), sep="\n")
        if study is not None:
            print(f"# and more, chosen by their results, until {given.trials} settings are tried")
        return 0
    reasons: dict[str, str] = {}
    if not given.report_only:
        sweep.announce(cells, given.trials)
        cells, reasons = run(sweep, given, cells, study)
    runs = [cell.run for cell in cells]
    missing = {run.name: reasons.get(run.name, "not run") for run in runs if not run.is_done()}
    print(
        report.write(
            cells,
            given.output_dir,
            sweep.measure.name,
            missing,
            argv,
            launcher=given.launcher,
            best_first=study is not None,
        )
    )
    return 1 if missing else 0


def run(
    sweep: Sweep, given: argparse.Namespace, cells: list[Cell], study: Study | None
) -> tuple[list[Cell], dict[str, str]]:
    """Run what is not done yet; returns all runs, and why some have no results."""
    slots = pool.slots(given.processes, given.threads)
    options = Options(shlex.split(given.launcher), given.keep_models)

    def execute(cells: Sequence[Cell]) -> dict[str, str]:
        return pool.execute([cell.run for cell in cells], options, slots, shown=shown)

    if study is None:
        return cells, execute(cells)
    reasons = execute(sweep.all_cells([]))
    at_once = max(1, len(slots) // len(sweep.seeds))
    reasons |= study.search(given.trials, execute, at_once=at_once)
    return sweep.all_cells(study.arms()), reasons


if __name__ == "__main__":
    exit_with(main)
