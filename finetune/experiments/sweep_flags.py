"""The flags of sweep.py; those that it does not know belong to the script."""

from __future__ import annotations

import argparse
from pathlib import Path

from finetune.experiments.command_line import add_report, add_running, empty_parser

GRID, OPTUNA = "grid", "optuna"


def parser(description: str | None) -> argparse.ArgumentParser:
    """What `parse_known_args` is called on."""
    made = empty_parser(description)
    _add_sweep(made.add_argument_group("what is swept"))
    add_running(made.add_argument_group("how it is run"))
    add_report(made.add_argument_group("what is reported"))
    return made


def _add_sweep(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--script", type=Path, help="What is run: finetune/glue.py, finetune/lm.py ...")
    add("--variant", help="The graph filter whose settings are swept; none is plain attention.")
    add(
        "--space",
        help="The values of each flag: a YAML file, or YAML like 'order: [2, 3, 4]'; null is the "
        "flag not given. Ranges, for optuna: 'w_0: {low: -0.1, high: 0.1}', also with log: true "
        "or step. Several spaces: a YAML list of them.",
    )
    add(
        "--method",
        choices=(GRID, OPTUNA),
        default=GRID,
        help="Every combination, or those that Optuna's TPE sampler chooses one after another by "
        "the mean over the seeds.",
    )
    add("--trials", type=int, help="How many settings optuna tries, with those of earlier calls.")
    add("--seeds", type=int, default=3, help="Runs of each setting; below 4 no intervals.")
    add("--first_seed", type=int, default=0, help="Their seeds count up from here.")
    add("--no_baseline", action="store_true", help="Do not run plain attention beside it.")
