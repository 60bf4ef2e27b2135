"""Runs on 13 rows that save checkpoints, are killed and continued, and what comes of them."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import trainer

from finetune.engine import storage
from finetune.engine.progress import LOG
from finetune.engine.trainer import Trainer

# 13 rows in batches of 2 are 7 batches and, two an update, 4 updates an epoch.
RUN = (
    *("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"),
    *("--num_train_epochs", "3", "--learning_rate", "0.01", "--lr_scheduler_type", "cosine"),
    *("--variant", "gfsa", "--filter_learning_rate", "0.05"),
)
SAVING = ("--checkpointing_steps", "2", "--early_stopping_patience", "2")


def run(folder: Path, *flags: str, **options: Any) -> Trainer:
    return trainer(folder, *RUN, *flags, count=13, dropout=0.3, **options)


def resumed(folder: Path, *flags: str, asked: str = "last", **options: Any) -> Trainer:
    """A run that continues, whatever the random states of its process are."""
    again = run(folder, *flags, "--resume_from_checkpoint", asked, **options)
    torch.manual_seed(random.randrange(1000))
    again.resume(asked)
    return again


def sealed(path: Path) -> None:
    """Have a checkpoint's manifest fit its files."""
    (path / storage.MANIFEST).unlink()
    path.rename(storage.aside_of(path))
    storage.commit_folder(path)


def saved(source: Path, target: Path) -> Path:
    """Copy the first three checkpoints of a run, step_2, step_4 and step_6; returns the copy."""
    (target / "bert").symlink_to(source / "bert")
    for name in ("step_2", "step_4", "step_6"):
        shutil.copytree(source / name, target / name)
    return target


class KilledError(BaseException):
    """Stands for the process's end."""


def kill_after(started: Trainer, batches: int | None) -> None:
    """End the run before it has learned from one more batch; None: what else ends it does."""
    loss, numbers = started.objective.loss, itertools.count()

    def counted(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if next(numbers) == batches:
            raise KilledError
        return loss(model, batch)

    object.__setattr__(started.objective, "loss", counted)
    with pytest.raises(KilledError):
        started.train()


def outcome(finished: Trainer) -> dict[str, Any]:
    """All that must not differ."""
    progress = vars(finished.progress) | {"step_seconds": len(finished.progress.step_seconds)}
    progress["train_seconds"] = None  # as little the same as those
    optimizer = finished.optimizer.state_dict()["state"]
    lines = (finished.folder / LOG).read_text().splitlines()
    logged = [json.loads(line) | {"tokens_per_s": None} for line in lines]
    weights = {name: x.clone() for name, x in finished.model.state_dict().items()}
    return {"progress": progress, "weights": weights, "optimizer": optimizer, "log": logged}


def assert_same(found: Any, expected: Any) -> None:
    """Equal bit for bit, in whatever containers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected
