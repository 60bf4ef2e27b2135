"""The flags of compare.py; those that it does not know belong to the script."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from finetune.errors import Refused


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Call a script's main; a refusal is one line, and stopped it says how it goes on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Stopped. The same command goes on from here.")
    except Refused as error:
        sys.exit(f"error: {error}")


def parser(description: str | None) -> argparse.ArgumentParser:
    """What `parse_known_args` is called on."""
    made = empty_parser(description)
    _add_grid(made.add_argument_group("what is compared"))
    add_running(made.add_argument_group("how it is run"))
    report = made.add_argument_group("what is reported")
    add_report(report)
    report.add_argument(
        "--examples",
        nargs=2,
        type=Path,
        metavar="RUN",
        help="Compare the predictions of two runs' folders, example by example, instead.",
    )
    return made


def empty_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that leaves unknown flags whole, with the folder that every such script writes."""
    made = argparse.ArgumentParser(
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--output_dir", type=Path, help="Tables, figures, and a folder for each run.")
    return made


def _add_grid(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--script", type=Path, help="What is run: finetune/glue.py, finetune/lm.py ...")
    add("--variants", nargs="+", help="The arms: variants, or names in --arms; default: all.")
    add("--arms", help="YAML file of arms, `name: {flag: value}`: finetune/arms/fine-tuning.yaml.")
    add(
        "--variant_flags",
        nargs="+",
        action="extend",
        default=[],
        metavar="'NAME: --FLAG VALUE ...'",
        help="Flags of one arm alone; with --variant among them, the arm may have any name.",
    )
    add("--baseline", help="The arm that the others are compared to; default: plain attention.")
    add("--seeds", type=int, default=8, help="Runs of each arm; below 6 no p reaches 0.05.")
    add("--first_seed", type=int, default=0, help="Their seeds count up from here.")
    add("--task_names", nargs="+", default=[], help="Several tasks, each a comparison.")


def add_running(group: argparse._ArgumentGroup) -> None:
    """How many runs at once, and how each is started."""
    add = group.add_argument
    add("--processes", type=int, help="Runs at once; default: one a visible GPU, else one.")
    add("--threads", type=int, help="CPU threads of each run; default: all, shared out.")
    add("--launcher", default="", help="Words before the script, like 'accelerate launch ...'.")
    add("--keep_models", action="store_true", help="Keep each run's weights.")
    add(
        "--dry_run",
        action="store_true",
        help="Print the commands, flags in full, and write nothing.",
    )


def add_report(group: argparse._ArgumentGroup) -> None:
    """Which metric, and whether anything is run."""
    add = group.add_argument
    add("--report_only", action="store_true", help="Report on the runs that are there.")
    add(
        "--metric",
        help="What is compared, like accuracy; default: the task's main metric. Another one, by "
        "its name, the path of an `evaluate` module or its hub id, is measured beside the task's.",
    )
