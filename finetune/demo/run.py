"""The main job on a small scale, with no network: `make demo`.

Fine-tunes the shipped checkpoints through `accelerate launch` and prints one table: the GLUE demo
plainly and with each graph filter, then language modelling and code defects on little data, with
GFSA. All runs of a task have the same seed and recipe; only the filter's flags differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
RUNS = Path("runs") / "demo"


@dataclass(frozen=True)
class Line:
    """One task of the table: script, checkpoint, what is shown, the recipe of all runs."""

    script: str
    checkpoint: str
    metric: str
    recipe: tuple[str, ...]
    variants: tuple[str, ...]

    @property
    def family(self) -> str:
        """The script's name, which is its tasks' family."""
        return Path(self.script).stem


TASK = "demo"

# GFSA with the order and w_0 of its published BERT runs. A - I takes each layer's values away from
# its output, which no pretrained checkpoint expects: its step starts near 0 and is learned.
VARIANTS = {
    "none": (),
    "gfsa": ("--order", "4", "--w_0", "-0.01", "--filter_learning_rate", "1e-2"),
    "plat": ("--p", "1.5", "2.5"),
    "laplacian": ("--step", "0.1", "--trainable", "step", "--filter_learning_rate", "1e-2"),
    "polynomial": ("--coefficients", "0", "1", "0", "--filter_learning_rate", "1e-2"),
}

LINES = (
    Line(
        script="finetune/glue.py",
        checkpoint="finetune/demo/bert",
        metric="matthews_correlation",
        recipe=(
            *("--num_train_epochs", "2", "--max_length", "64", "--seed", "0"),
            *("--max_train_samples", "2400"),
            *("--per_device_train_batch_size", "16", "--per_device_eval_batch_size", "100"),
            *("--learning_rate", "5e-4", "--warmup_ratio", "0.1", "--weight_decay", "0.01"),
        ),
        variants=tuple(VARIANTS),
    ),
    Line(
        script="finetune/lm.py",
        checkpoint="finetune/demo/gpt2",
        metric="perplexity",
        recipe=(
            *("--max_train_steps", "20", "--max_eval_samples", "100", "--seed", "0"),
            *("--block_size", "128", "--max_train_samples", "2000"),
            *("--per_device_train_batch_size", "8", "--per_device_eval_batch_size", "8"),
            *("--learning_rate", "1e-3", "--warmup_ratio", "0.1"),
        ),
        variants=("gfsa",),
    ),
    Line(
        script="finetune/code_classification.py",
        checkpoint="finetune/demo/t5",
        metric="accuracy",
        recipe=(
            *("--max_train_steps", "20", "--max_eval_samples", "100", "--seed", "0"),
            *("--max_length", "128", "--max_train_samples", "400"),
            *("--per_device_train_batch_size", "16", "--per_device_eval_batch_size", "50"),
            *("--learning_rate", "1e-3", "--warmup_ratio", "0.1"),
        ),
        variants=("gfsa",),
    ),
)


def main() -> None:
    """Run every line with every variant, then print the table."""
    console = Console()
    rows = []
    for line in LINES:
        for variant in line.variants:
            console.rule(f"{line.family}: {variant}")
            rows.append((line, variant, run(line, variant)))
    console.print(table(rows))


def run(line: Line, variant: str) -> dict[str, Any]:
    """Fine-tune through the launcher; returns what the script wrote to all_results.json."""
    output_dir = RUNS / f"{line.family}-{variant}"
    script = (
        *(line.script, "--model_name_or_path", line.checkpoint, "--task_name", TASK),
        *("--variant", variant, *VARIANTS[variant], *line.recipe),
        *("--output_dir", str(output_dir)),
    )
    subprocess.run(
        [*launcher(), *script],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        check=True,
    )
    return json.loads((ROOT / output_dir / "all_results.json").read_text("utf-8"))


def launcher() -> tuple[str, ...]:
    """`accelerate launch`: one process, on all cores where the launcher alone would use one."""
    return (
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--num_processes", "1", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
        *("--num_cpu_threads_per_process", str(os.cpu_count() or 1)),
    )


def table(rows: list[tuple[Line, str, dict[str, Any]]]) -> Table:
    """One row a run: task, variant, metric, scalars added, seconds a step."""
    shown = Table(title="Fine-tuning from the shipped checkpoint, plain and with graph filters")
    for heading in ("task", "variant", "metric"):
        shown.add_column(heading)
    for heading in ("value", "scalars\nadded", "seconds\na step"):
        shown.add_column(heading, justify="right")
    for line, variant, results in rows:
        shown.add_row(
            line.family.replace("_", " "),  # so that a narrow terminal breaks it between words
            variant,
            line.metric.replace("_", " "),
            f"{results[f'eval_{line.metric}']:.3f}",
            str(results["filter_scalars"]),
            f"{results['seconds_per_step']:.3f}",
        )
    return shown


if __name__ == "__main__":
    main()
