"""The main job on a small scale, with no network: `make demo`.

Fine-tunes the shipped checkpoints and prints one table: a BERT on sentences, plainly and with every
arm of finetune/arms/fine-tuning.yaml; then a GPT-2 on text, a T5 on code and a wav2vec 2.0 on Morse
code briefly, and from nothing a ViT on images, plainly and with GFSA. All runs of a script have the
recipe beside this file; only the filter's flags differ.

The first run is started with `accelerate launch`, as you would start yours. The others call the
same script's `main` in worker processes, one for each core, with one thread each. So torch is
imported and the text is read once a worker, not once a run, and no threads wait for one another.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
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
FAMILIES = ("glue", "lm", "code_classification", "image_classification", "speech_recognition")
BRIEFLY = (NO_VARIANT, "gfsa")  # what is shown of the families after the first
MOST_WORKERS = 4  # each takes a gigabyte of memory

# What the arms of finetune/arms/fine-tuning.yaml are called; others go by their names.
TITLES = {
    NO_VARIANT: "plain attention",
    "gain": "a gain a head, from 1",
    "degree1": "degree 1, learned from A",
    "gfsa": "GFSA, w_K learned from 0",
    "laplacian": "A - I, step learned from 0",
    "plat": "p-LaT, p learned from 2",
    "polynomial": "degree 2, learned from A",
}
CAPTION = (
    "Every filter starts as plain attention and learns from there. One seed shows that they all "
    "train, not which is better. The small T5 stays at chance, 0.5, in so few steps."
)

FIRST = """\
{runs} runs, {workers} at a time. The first is this command; the others call a script's main() with
the words that such a command would have:

  {command}

What a run says is in log.txt in its folder below runs/demo. Finished, after so many seconds:
"""
NEXT = """
One seed shows little: differences of a few hundredths are chance. Next, a task of yours,
and the same comparison with several seeds and a verdict (README.md has more):

  accelerate launch finetune/glue.py --task_name cola --variant gfsa \\
      --model_name_or_path bert-base-uncased --output_dir runs/cola
  python finetune/compare.py --script finetune/glue.py --task_name cola --seeds 8 \\
      --model_name_or_path bert-base-uncased --arms finetune/arms/fine-tuning.yaml \\
      --output_dir runs/compare-cola"""


@dataclass(frozen=True)
class Run:
    """A row of the table.

    Attributes:
        family: the name of the script, of its recipe, and of its tasks' family.
        title: what the table calls its attention.
        flags: of its filter.
    """

    family: str
    title: str
    flags: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where its results, its model and its log go, below the repository's root."""
        words = re.findall(r"\w+", self.title.lower())
        return Path("runs", "demo", "-".join([self.family, *words]))

    @property
    def log(self) -> Path:
        """What the run says; the folder is made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / "log.txt"

    @property
    def words(self) -> list[str]:
        """What follows the script's name on the command line."""
        recipe = f"finetune/demo/{self.family}.yaml"
        # What another version of this table left there is replaced.
        where = {"output_dir": str(self.folder), "overwrite_output_dir": True}
        return recipes.argv({"recipe": recipe, **self.flags, **where})

    @property
    def command(self) -> list[str]:
        """What starts it through the launcher, on one thread."""
        launch = "accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no"
        one_thread = "--dynamo_backend no --num_cpu_threads_per_process 1"
        return [*launch.split(), *one_thread.split(), f"finetune/{self.family}.py", *self.words]


def planned() -> list[Run]:
    """The rows: every arm with the first script, and a few with the others."""
    attentions = list(shown_attentions())
    return [
        Run(family, title, flags)
        for family in FAMILIES
        for title, flags in attentions
        if family == FAMILIES[0] or flags["variant"] in BRIEFLY
    ]


def shown_attentions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Titles and flags: the arms of fine-tuning.yaml."""
    path = ROOT / "finetune" / "arms" / "fine-tuning.yaml"
    for arm, flags in recipes.load("arms", str(path), "name: {flag: value}").items():
        yield TITLES.get(arm, arm), {"variant": arm, **flags}


def launch(run: Run) -> None:
    """Start a run as a person would, through the launcher."""
    command = [sys.executable, "-m", "accelerate.commands.launch", *run.command[2:]]
    with run.log.open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)


def call(run: Run) -> None:
    """Run the script's `main` in this process, a worker; what it says goes to the run's log."""
    with run.log.open("w") as log:
        for stream in (1, 2):  # standard output and standard error
            os.dup2(log.fileno(), stream)
    importlib.import_module(f"finetune.{run.family}").main(run.words)


def execute(runs: list[Run], pool: Executor, console: Console) -> None:
    """Run all of them, and say how far they are; one that fails ends the others too."""
    begin = time.monotonic()
    jobs = {pool.submit(launch if run is runs[0] else call, run): run for run in runs}
    try:
        with Progress(console=console, transient=True) as progress:
            for job in progress.track(as_completed(jobs), len(runs), description="runs"):
                if error := job.exception():
                    error.add_note(f"{jobs[job].title}, {jobs[job].family}: see {jobs[job].log}.")
                    raise error
                seconds, run = time.monotonic() - begin, jobs[job]
                progress.console.print(f"{seconds:4.0f} s  {run.family}: {run.title}")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def cores() -> int:
    """How many this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def results(run: Run) -> dict[str, Any]:
    """What the run left in `all_results.json`."""
    found: dict[str, Any] = json.loads((run.folder / "all_results.json").read_text("utf-8"))
    return found


def table(rows: list[tuple[Run, dict[str, Any]]]) -> Table:
    """A section for each script, which names its main metric, and in it a row for each run."""
    shown = Table("attention", title="Small models, one seed each")
    shown.caption = CAPTION
    for heading in ("value", "scalars\nadded", "seconds\na step"):
        shown.add_column(heading, justify="right")
    for family, section in itertools.groupby(rows, lambda row: row[0].family):
        for index, (run, found) in enumerate(section):
            metric = found["best"]["metric"].removeprefix("eval_")
            if index == 0:
                better = "↑" if found["greater_is_better"][f"eval_{metric}"] else "↓"
                shown.add_section()
                shown.add_row(f"[bold]{family}.py: {metric.replace('_', ' ')} {better}")
            shown.add_row(
                f"  {run.title}",
                f"{found[f'eval_{metric}']:.3f}",
                str(found["filter_scalars"]),
                f"{found['seconds_per_step']:.3f}",
            )
    return shown


def main() -> None:
    """Run every row, then print the table and what to do next."""
    os.chdir(ROOT)
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # the workers inherit them
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    console, runs = Console(highlight=False), planned()
    workers, command = min(cores(), MOST_WORKERS, len(runs)), shlex.join(runs[0].command)
    first = FIRST.format(runs=len(runs), workers=workers, command=command)
    console.print(first, soft_wrap=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        execute(runs, pool, console)
    console.print(table([(run, results(run)) for run in runs]))
    console.print(NEXT, soft_wrap=True)


if __name__ == "__main__":
    main()
