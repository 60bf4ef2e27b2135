"""Runs of code_classification.py on tiny defect data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_code
import tiny_task

from finetune import code_classification

TRAPS = (
    "return </s>;",
    "int f() { return 0; }",
    "</s> </s> <pad>",
    *tiny_code.FUNCTIONS[:4],
    "while (1) { a </s> ; } " * 9,
)
MAKERS = {"t5": tiny_code.save_t5, "bart": tiny_code.save_bart, "bert": tiny_task.save_bert}


def run(
    folder: Path, kind: str, *others: str, functions: tuple[str, ...] = TRAPS
) -> dict[str, Any]:
    """One epoch on tiny defect data, with labels for the test split; returns the results."""
    MAKERS[kind](folder / kind)
    tiny_code.save_data(folder / "data", functions)
    return code_classification.main(
        [
            *("--model_name_or_path", str(folder / kind), "--output_dir", str(folder / "out")),
            *("--task_name", "defect", "--dataset_name", str(folder / "data"), "--do_predict"),
            *("--max_length", "32", "--per_device_train_batch_size", "4"),
            *("--num_train_epochs", "1", *others),
        ]
    )


def run_writer(folder: Path, kind: str, text: str) -> dict[str, Any]:
    """The same of a model that writes this text, and is not changed by the training."""
    tiny_code.save_writer(kind, folder / "writer", text)
    still = ("--variant", "gfsa", "--learning_rate", "0", "--filter_learning_rate", "0")
    model = ("--model_name_or_path", str(folder / "writer"))
    return run(folder, kind, *still, *model, "--objective", "generate")
