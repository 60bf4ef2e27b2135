"""The main job on a small scale, with no network: `make demo`.

Fine-tunes the shipped checkpoints and prints one table: a BERT on sentences, plainly and with every
arm of finetune/arms/fine-tuning.yaml; then a GPT-2 on text, a wav2vec 2.0 on Morse code, and from
nothing a ViT on images, plainly and with GFSA. All runs of a script have the recipe beside this
file; only the filter's flags differ.

Each run calls the script's `main` in a worker process with one thread: torch is imported and the
text is read once a worker, not once a run.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shlex
import time
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from finetune.settings import recipes
from finetune.settings.variants import NO_VARIANT

ROOT = Path(__file__).resolve().parents[2]
ARMS = ROOT / "finetune" / "arms" / "fine-tuning.yaml"
FAMILIES = ("glue", "lm", "image_classification", "speech_recognition")
IN_EVERY_FAMILY = (NO_VARIANT, "gfsa")  # the first family has every arm
MOST_WORKERS = 4  # each takes a gigabyte of memory
TITLES = {
    NO_VARIANT: "plain attention",
    "gain": "a gain a head, from 1",
    "degree1": "degree 1, learned from A",
    "gfsa": "GFSA, w_K learned from 0",
    "laplacian": "A - I, step learned from 0",
    "plat": "p-LaT, p learned from 2",
    "polynomial": "degree 2, learned from A",
}
FIRST = """\
{runs} runs, {workers} at a time. Each calls a script's main() with the arguments of a command like

  accelerate launch finetune/{family}.py {arguments}

and writes what it prints to log.txt in its folder below runs/demo. Finished, after seconds:
"""
CAPTION = (
    "Every filter starts as plain attention and learns from there. One seed each: the table shows "
    "that all of them train, not which is better."
)
NEXT = """
To compare filters, take a task of yours and several seeds (README.md has more):

  python finetune/compare.py --script finetune/glue.py --task_name cola --seeds 8 \\
      --model_name_or_path bert-base-uncased --arms finetune/arms/fine-tuning.yaml \\
      --output_dir runs/compare-cola"""


@dataclass(frozen=True)
class Row:
    """A run, and its row of the table.

    Attributes:
        family: the name of the script, of its recipe, and of its tasks' family.
        arm: the name of its attention in `ARMS`.
        flags: of its filter.
    """

    family: str
    arm: str
    flags: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where its results, its model and its log go, below the repository's root."""
        return Path("runs", "demo", f"{self.family}-{self.arm}")

    @property
    def log(self) -> Path:
        """The file of what the run prints; its folder is made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / "log.txt"

    @property
    def arguments(self) -> list[str]:
        """The arguments of the script."""
        recipe = f"finetune/demo/{self.family}.yaml"
        output = {"output_dir": str(self.folder), "overwrite_output_dir": True}
        return recipes.argv({"recipe": recipe, **self.flags, **output})

    def results(self) -> dict[str, Any]:
        """The run's `all_results.json`."""
        values: dict[str, Any] = json.loads((self.folder / "all_results.json").read_text("utf-8"))
        return values


def planned() -> list[Row]:
    """Every arm with the first script, and two with the others."""
    arms = recipes.load("arms", str(ARMS), "name: {flag: value}")
    return [
        Row(family, arm, {"variant": arm, **flags})
        for family in FAMILIES
        for arm, flags in arms.items()
        if family == FAMILIES[0] or arm in IN_EVERY_FAMILY
    ]


def call(row: Row) -> None:
    """Call the script's `main` in this process, a worker; its output goes to the run's log."""
    with row.log.open("w") as log:
        for stream in (1, 2):  # standard output and standard error
            os.dup2(log.fileno(), stream)
    importlib.import_module(f"finetune.{row.family}").main(row.arguments)


def execute(rows: list[Row], pool: Executor, console: Console) -> None:
    """Do all runs; one that fails ends the others too."""
    begin = time.monotonic()
    jobs = {pool.submit(call, row): row for row in rows}
    try:
        with Progress(console=console, transient=True) as progress:
            for job in progress.track(as_completed(jobs), len(rows), description="runs"):
                row = jobs[job]
                if error := job.exception():
                    error.add_note(f"{row.family}, {row.arm}: see {row.log}.")
                    raise error
                seconds = time.monotonic() - begin
                progress.console.print(f"{seconds:4.0f} s  {row.family}: {TITLES[row.arm]}")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def table(rows: list[tuple[Row, dict[str, Any]]]) -> Table:
    """A section for each script, with its main metric, and in it a row for each run."""
    columns = ("value", "scalars\nadded", "seconds\na step")
    made = Table("attention", title="Small models, one seed each", caption=CAPTION)
    for heading in columns:
        made.add_column(heading, justify="right")
    for family, section in itertools.groupby(rows, lambda pair: pair[0].family):
        for index, (row, results) in enumerate(section):
            key = results["best"]["metric"]
            if index == 0:
                arrow = "↑" if results["greater_is_better"][key] else "↓"
                metric = key.removeprefix("eval_").replace("_", " ")
                made.add_section()
                made.add_row(f"[bold]{family}.py: {metric} {arrow}")
            made.add_row(
                f"  {TITLES[row.arm]}",
                f"{results[key]:.3f}",
                str(results["filter_scalars"]),
                f"{results['seconds_per_step']:.3f}",
            )
    return made


def main() -> None:
    """Do every run, then print the table and what to do next."""
    os.chdir(ROOT)
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # the workers inherit them
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    console, rows = Console(highlight=False), planned()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = min(cores or 1, MOST_WORKERS)
    example = {"family": rows[0].family, "arguments": shlex.join(rows[0].arguments)}
    console.print(FIRST.format(runs=len(rows), workers=workers, **example), soft_wrap=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        execute(rows, pool, console)
    console.print(table([(row, row.results()) for row in rows]))
    console.print(NEXT, soft_wrap=True)


if __name__ == "__main__":
    main()
