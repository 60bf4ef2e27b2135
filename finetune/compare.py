"""Did graph attention help? The same runs with and without it, seed by seed, and what they show.

    python finetune/compare.py --script finetune/glue.py --task_name cola \\
        --model_name_or_path bert-base-uncased --arms finetune/arms/fine-tuning.yaml --seeds 8 \\
        --output_dir runs/compare-cola
    python finetune/compare.py --examples runs/a runs/b

Flags that are not listed here go to every run of the script. Started again, it goes on where it was
stopped; with more seeds, arms or tasks, only what is new is run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from finetune.engine.results import write_json
from finetune.errors import refusal
from finetune.experiments import arms, command_line, examples, grid, measure, pool, report
from finetune.experiments.grid import Cell
from finetune.experiments.measure import Measure
from finetune.experiments.metrics import shown
from finetune.experiments.scripts import Script
from finetune.experiments.work import Options
from finetune.settings.flags import at_least


def main(argv: Sequence[str] | None = None) -> int:
    """Do what ``argv`` asks (None: the process's); returns the exit code, 1 if runs are missing.

    Raises ``ValueError`` before anything is started if it cannot be run as asked.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    given, words = command_line.parser(__doc__).parse_known_args(argv)
    if given.examples:
        return compare_examples(given)
    measured, cells = planned(given, words)
    wanted = [cell.run for cell in cells]
    pool.check(wanted)
    launcher = shlex.split(given.launcher)
    if given.dry_run:
        grid.announce(cells, file=sys.stderr)
        print(*(shlex.join(run.command_in_full(launcher)) for run in wanted), sep="\n")
        return 0
    missing = {run.name: "not run" for run in wanted if not run.is_done()}
    if not given.report_only:
        grid.announce(cells)
        slots = pool.slots(given.processes, given.threads)
        options = Options(launcher, given.keep_models)
        missing = pool.execute(wanted, options, slots, shown=shown)
    print(report.write(cells, given.output_dir, measured.name, missing, argv))
    return 1 if missing else 0


def planned(given: argparse.Namespace, words: Sequence[str]) -> tuple[Measure, list[Cell]]:
    """What is compared, and the runs that the flags ask for; ``words`` belong to the script."""
    at_least(given, 1, "seeds", "processes", "threads")
    for name in ("script", "output_dir"):
        if getattr(given, name) is None:
            raise refusal(name, None, "a path", f"Give --{name}; see --help.")
    script = Script(given.script)
    chosen = arms.chosen(given.variants, given.arms, given.variant_flags, given.baseline, script)
    common = grid.common_flags(script, words)
    tasks, folder, look_only = given.task_names, given.output_dir, given.report_only
    measured = measure.of(given.metric, script, tasks, common, folder, report_only=look_only)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    flags = {**common, **measured.flags}
    return measured, grid.plan(script, chosen, seeds, tasks, flags, folder)


def compare_examples(given: argparse.Namespace) -> int:
    """Test one pair of runs by example; also into ``output_dir``/examples.json if it is given."""
    first, second = given.examples
    tests = examples.compare(first, second)
    print(examples.shown(first, second, tests))
    if given.output_dir is not None:
        given.output_dir.mkdir(parents=True, exist_ok=True)
        write_json(given.output_dir / "examples.json", examples.as_json(first, second, tests))
    return 0


if __name__ == "__main__":
    command_line.exit_with(main)
