"""The main job, fine-tuning a small BERT on SST-2: the script here, transformers' Trainer, a loop.

Every case trains an epoch of the first rows, or evaluates the validation split, in a process of its
own; the processes take turns. Rounds are added to those that the JSON has.

python benchmarks/main_job.py --model models/all-MiniLM-L6-v2 --dataset data/nyu-mll/glue \
    --rounds 1 --output main-job.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import measure
import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook

TASK, COLUMN, LONGEST, RATE = "sst2", "sentence", 128, 2e-5


def ours(arguments: argparse.Namespace, folder: str, *flags: str) -> None:
    """finetune/glue.py."""
    from finetune import glue

    rows = ("--max_train_samples", str(arguments.rows))
    if "--do_eval_only" not in flags:
        rows += ("--max_eval_samples", "1")
    size = str(arguments.batch)
    glue.main(
        [
            *("--task_name", TASK, "--dataset_name", arguments.dataset, *rows, *flags),
            *("--model_name_or_path", arguments.model, "--output_dir", folder),
            *("--num_train_epochs", "1", "--learning_rate", str(RATE)),
            *("--per_device_train_batch_size", size, "--per_device_eval_batch_size", size),
        ]
    )


def data(arguments: argparse.Namespace, tokenizer: Any) -> Any:
    """The same rows, tokenised in the same way."""
    from datasets import load_dataset

    place = Path(arguments.dataset) / TASK
    files = {split: str(place / f"{split}-*.parquet") for split in ("train", "validation")}
    rows = load_dataset("parquet", data_files=files)
    rows["train"] = rows["train"].select(range(arguments.rows))
    encode = partial(tokenizer, truncation=True, max_length=LONGEST)
    return rows.map(lambda batch: encode(batch[COLUMN]), batched=True).remove_columns(
        [COLUMN, "idx"]
    )


def trainer(arguments: argparse.Namespace, folder: str, *, evaluates: bool = False) -> None:
    """transformers' Trainer at its defaults, but for rows, batch and rate; nothing is saved."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    rows, size = data(arguments, tokenizer), arguments.batch
    settings = TrainingArguments(
        folder,
        num_train_epochs=1,
        learning_rate=RATE,
        per_device_train_batch_size=size,
        per_device_eval_batch_size=size,
        save_strategy="no",
        report_to="none",
    )
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model)
    made = Trainer(
        model,
        settings,
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        processing_class=tokenizer,
    )
    if evaluates:
        made.evaluate()
    else:
        made.train()


def loop(arguments: argparse.Namespace, folder: str) -> None:
    """As few lines as it takes: no log, no schedule, nothing saved."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
    )

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    rows = data(arguments, tokenizer)["train"].rename_column("label", "labels")
    collate = DataCollatorWithPadding(tokenizer)
    loader = torch.utils.data.DataLoader(rows, arguments.batch, shuffle=True, collate_fn=collate)
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    for batch in loader:
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


CASES: dict[str, Callable[[argparse.Namespace, str], None]] = {
    "Trainer": trainer,
    "glue.py": ours,
    "glue.py --group_by_length": lambda *given: ours(*given, "--group_by_length"),
    "minimal loop": loop,
    "Trainer, evaluation": partial(trainer, evaluates=True),
    "glue.py, evaluation": lambda *given: ours(*given, "--do_eval_only"),
}


def measured(arguments: argparse.Namespace) -> dict[str, float]:
    """One case, in this process: seconds until the first forward, and from there to the end.

    The end is that of the last update, or where there is none, of the last forward.
    """
    begun: list[float] = []
    forwards: list[float] = []
    updates: list[float] = []

    def begin(*_: object) -> None:
        begun.append(time.time())
        handle.remove()

    handle = register_module_forward_pre_hook(begin)
    register_module_forward_hook(lambda *_: forwards.append(time.time()))
    register_optimizer_step_post_hook(lambda *_: updates.append(time.time()))
    with tempfile.TemporaryDirectory() as folder:
        CASES[arguments.case](arguments, folder)
    times = begun + (updates or forwards)
    return {
        "start_up_seconds": times[0] - arguments.started,
        "seconds": times[-1] - times[0],
        "peak_memory_bytes": measure._resident("VmHWM"),
    }


def in_own_process(case: str, words: list[str]) -> dict[str, float]:
    """What `measured` says of a case in a new process."""
    command = [sys.executable, __file__, *words, "--case", case, "--started", str(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(rounds: list[dict[str, dict[str, float]]], rows: int) -> None:
    """A line a case: medians over the rounds, and its time to that of the Trainer's round."""
    for case in CASES:
        base = "Trainer, evaluation" if "evaluation" in case else "Trainer"
        taken = [each for each in rounds if case in each]
        if not taken:
            continue
        seconds, start, peak = (
            median(each[case][key] for each in taken)
            for key in ("seconds", "start_up_seconds", "peak_memory_bytes")
        )
        pairs = [each[base]["seconds"] / each[case]["seconds"] for each in taken if base in each]
        speed = "" if "evaluation" in case else f"{rows / seconds:6.1f} samples/s"
        ratio = f"x {median(pairs):.2f}" if pairs else ""
        print(
            f"{case:26s}{seconds:7.1f} s {speed:17s}{ratio:7s} start-up {start:5.1f} s  "
            f"peak {peak / 2**20:5.0f} MiB"
        )


def main() -> None:
    """Print a line a case, and write the JSON after each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="A BERT's folder.")
    parser.add_argument("--dataset", required=True, help="GLUE's folder, with sst2 in it.")
    parser.add_argument("--rows", type=int, default=640, help="Training rows.")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="JSON file; its rounds are kept.")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measured(arguments)))
        return
    words = [
        *("--model", arguments.model, "--dataset", arguments.dataset),
        *("--rows", str(arguments.rows), "--batch", str(arguments.batch)),
    ]
    rounds = []
    job = {"task": TASK, "rows": arguments.rows, "batch": arguments.batch}
    if arguments.output and arguments.output.exists():
        kept = json.loads(arguments.output.read_text("utf-8"))
        if kept["job"] != job:
            sys.exit(f"{arguments.output} is of {kept['job']}, not of {job}: name another file")
        rounds = kept["rounds"]
    for _ in range(arguments.rounds):
        rounds.append({case: in_own_process(case, words) for case in arguments.cases})
        if arguments.output:
            machine = measure.origin()
            measure.write(arguments.output, {"machine": machine, "job": job, "rounds": rounds})
    show(rounds, arguments.rows)


if __name__ == "__main__":
    main()
