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
from typing import TextIO

from finetune.comparison import arms, command_line, examples, grid, pool, report
from finetune.comparison.grid import Cell
from finetune.comparison.results import shown
from finetune.comparison.scripts import Script
from finetune.comparison.statistics import limits
from finetune.flags import at_least, refusal
from finetune.outputs import write_json


def main(argv: Sequence[str] | None = None) -> int:
    """Do what ``argv`` asks (None: the process's); returns the exit code, 1 if runs are missing.

    Raises ``ValueError`` before anything is started if it cannot be run as asked.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    given, common = command_line.parser(__doc__).parse_known_args(argv)
    if given.examples:
        return compare_examples(given)
    cells = planned(given, common)
    wanted = [cell.run for cell in cells]
    pool.check(wanted)
    launcher = shlex.split(given.launcher)
    if given.dry_run:
        announce(cells, file=sys.stderr)
        print(*(shlex.join(run.command(launcher)) for run in wanted), sep="\n")
        return 0
    missing = {run.name: "not run" for run in wanted if not run.is_done()}
    if not given.report_only:
        announce(cells)
        slots = pool.slots(given.processes, given.threads)
        options = pool.Options(slots, launcher, given.keep_models)
        missing = pool.execute(wanted, options, shown=shown)
    print(report.write(cells, given.output_dir, given.metric, missing, argv))
    return 1 if missing else 0


def planned(given: argparse.Namespace, common: Sequence[str]) -> list[Cell]:
    """The runs that the flags ask for."""
    at_least(given, 1, "seeds", "processes", "threads")
    for name in ("script", "output_dir"):
        if getattr(given, name) is None:
            raise refusal(name, None, "a path", f"Give --{name}; see --help.")
    chosen = arms.chosen(given.variants, given.arms, given.variant_flags, given.baseline)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    script = Script(given.script)
    return grid.plan(script, chosen, seeds, given.task_names, common, given.output_dir)


def announce(cells: Sequence[Cell], file: TextIO | None = None) -> None:
    """What will be run, and what it will not be able to show."""
    names, tasks, seeds = (
        list(dict.fromkeys(getattr(cell, name) for cell in cells))
        for name in ("arm", "task", "seed")
    )
    print(
        f"{len(cells)} runs: {', '.join(tasks)}; {', '.join(names[1:])} against {names[0]}; "
        f"seeds {seeds[0]} to {seeds[-1]}",
        flush=True,
        file=file,
    )
    warning = limits(len(seeds), len(tasks) * (len(names) - 1))
    if warning is not None:
        print(f"Before you wait: {warning}", flush=True, file=file)


def compare_examples(given: argparse.Namespace) -> int:
    """Test one pair of runs by example; also into ``output_dir``/examples.json if it is given."""
    tests = examples.compare(*given.examples)
    print(examples.shown(*given.examples, tests))
    if given.output_dir is not None:
        given.output_dir.mkdir(parents=True, exist_ok=True)
        write_json(given.output_dir / "examples.json", examples.as_json(*given.examples, tests))
    return 0


if __name__ == "__main__":
    command_line.exit_with(main)
