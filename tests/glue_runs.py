"""Flags of glue.py on tiny data, and what its runs wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_task
import torch
import warm
from transformers import AutoTokenizer

import tasks

LAUNCH = (warm.python("finetune"), "-m", "accelerate.commands.launch")
ROOT = Path(__file__).resolve().parents[1]


def flags(tmp_path: Path, task: str, *others: str) -> list[str]:
    """Flags of a run on tiny data of the task, made in ``tmp_path``."""
    chosen = tasks.get(task, "glue")
    if not (tmp_path / "data").exists():
        tiny_task.save_data(chosen, tmp_path / "data")
        tiny_task.save_bert(tmp_path / "bert")
    return [
        *("--task_name", task, "--dataset_name", str(tmp_path / "data")),
        *("--model_name_or_path", str(tmp_path / "bert"), "--output_dir", str(tmp_path / "out")),
        *("--max_length", "32", "--per_device_train_batch_size", "4", "--num_train_epochs", "1"),
        "--ignore_mismatched_sizes",
        *others,
    ]


def written(tmp_path: Path) -> dict[str, Any]:
    """The results of such a run."""
    return json.loads((tmp_path / "out" / "all_results.json").read_text())


def check_loss(model: torch.nn.Module, folder: Path, loss: float) -> None:
    """The loaded model's loss on CoLA's validation rows is the one that the run wrote."""
    texts = tiny_task.rows(tasks.get("cola"), 5)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts["sentence"][:], padding=True, return_tensors="pt")
    model.eval()
    with torch.no_grad():
        logits = model(**batch).logits
    found = torch.nn.functional.cross_entropy(logits, torch.tensor(texts["label"][:]))
    assert float(found) == pytest.approx(loss, abs=1e-6)
