"""The flags of compare.py and of sweep.py; those that they do not know belong to the script."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from finetune import errors
from finetune.settings.flags import LineParser

LOCAL, DASK, SLURM = "local", "dask", "slurm"
CLUSTER, LIMIT = "cluster", "timeout_min"  # as submitit names them
EXAMPLE = f"{LIMIT}=600 gpus_per_node=1 slurm_partition=gpu"
GRID, OPTUNA = "grid", "optuna"
USAGE = "%(prog)s --script SCRIPT --output_dir OUTPUT_DIR [--FLAG VALUE ...]"


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Call a script's main (`errors.exit_with`); stopped, it prints how it goes on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    errors.exit_with(main, "Stopped. The same command goes on from here.")


def of_comparison(description: str | None = None) -> argparse.ArgumentParser:
    """The parser of compare.py; `parse_known_args` is called on it."""
    parser, add = _parser(description, "what is compared", 8, "below 6 no p reaches 0.05")
    add("--variants", nargs="+", help="The arms: variants, or names in --arms; default: all.")
    add("--arms", help="YAML file of arms, `name: {flag: value}`: finetune/arms/fine-tuning.yaml.")
    parser.add_argument(
        "--variant_flags",
        nargs="+",
        action="extend",
        default=[],
        metavar="'NAME: --FLAG VALUE ...'",
        help="Flags of one arm alone; with --variant among them, the arm may have any name.",
    )
    add("--baseline", help="The arm that the others are compared to; default: plain attention.")
    add("--task_names", nargs="+", default=[], help="Several tasks, each a comparison.")
    both = "Compare the predictions of two runs' folders, example by example, instead."
    add("--examples", nargs=2, type=Path, metavar="RUN", help=both)
    return parser


def of_sweep(description: str | None = None) -> argparse.ArgumentParser:
    """The parser of sweep.py; `parse_known_args` is called on it."""
    parser, add = _parser(description, "what is swept", 3, "of one no intervals")
    add("--variant", help="The graph filter whose settings are swept; none is plain attention.")
    add(
        "--space",
        help="The values of each flag: a YAML file, or YAML like 'order: [2, 3, 4]'; null is the "
        "flag not given. Ranges, for optuna: 'w_0: {low: -0.1, high: 0.1}', also with log: true "
        "or step. Several spaces: a YAML list of them.",
    )
    every = "Every combination, or those that Optuna's TPE sampler chooses, one after another."
    add("--method", choices=(GRID, OPTUNA), default=GRID, help=every)
    add("--trials", type=int, help="How many settings optuna tries, with those of earlier calls.")
    add("--no_baseline", action="store_true", help="Do not run plain attention beside it.")
    parser.set_defaults(task_names=[])
    return parser


def _parser(
    description: str | None, what: str, seeds: int, note: str
) -> tuple[argparse.ArgumentParser, Callable[..., argparse.Action]]:
    """A parser with the flags of both scripts, and what adds the flags of one."""
    parser = LineParser(description=description, usage=USAGE)
    parser.add_argument("--output_dir", type=Path, help="Tables, figures, a folder for each run.")
    add_own = parser.add_argument_group(what).add_argument
    add_own("--script", type=Path, help="What is run: finetune/glue.py, finetune/lm.py ...")
    add_own("--seeds", type=int, default=seeds, help=f"Runs of each; {note}.")
    add_own("--first_seed", type=int, default=0, help="Their seeds count up from here.")
    add = parser.add_argument_group("how it is run").add_argument
    executors = f"{LOCAL} | {DASK}://HOST:PORT | {SLURM}"
    add(
        "--executor",
        default=LOCAL,
        metavar=executors,
        help="Where: here, or on machines with these folders.",
    )
    options = f"slurm's, as submitit names them: {EXAMPLE}; {CLUSTER}={LOCAL} tries them here."
    name: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "NAME=VALUE"}
    parser.add_argument("--executor_options", help=options, **name)
    add("--processes", type=int, help="Runs at once; default: one a visible GPU, else one.")
    add("--threads", type=int, help="CPU threads of each run; default: all, shared out.")
    add("--launcher", default="", help="Before the script's name, like 'accelerate launch ...'.")
    add("--keep_models", action="store_true", help="Keep each run's weights.")
    add("--dry_run", action="store_true", help="Print the commands in full, and write nothing.")
    add = parser.add_argument_group("what is reported").add_argument
    add("--report_only", action="store_true", help="Report on the runs that are there.")
    metric = "What is compared; default: the task's main metric. A name, or a module of `evaluate`."
    add("--metric", help=metric)
    return parser, add_own
