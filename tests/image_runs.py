"""Flags of image_classification.py on a few tiny images, which are made in the test's folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from finetune import image_classification
from finetune.engine.progress import LOG

CLASSES = ("cat", "dog", "emu", "fox", "gnu", "hen")
VIT = (
    "image_size=8,patch_size=4,hidden_size=16,num_hidden_layers=2,num_attention_heads=4,"
    "intermediate_size=16"
)


def pixels(number: int, channels: int = 3) -> np.ndarray:
    """An image of its own for each number, (8, 8, channels)."""
    return np.random.default_rng(number).integers(0, 256, (8, 8, channels), dtype=np.uint8)


def save_folder(folder: Path, per_class: int = 3, classes: Sequence[str] = CLASSES) -> Path:
    """A folder of PNG files for each class; returns ``folder``."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            Image.fromarray(pixels(100 * label + i)).save(folder / name / f"{i}.png")
    return folder


def flags(tmp_path: Path, *others: str) -> list[str]:
    """Flags of a short run from nothing on two folders, made in ``tmp_path``."""
    for name, count in (("train", 3), ("validation", 2)):
        if not (tmp_path / name).exists():
            save_folder(tmp_path / name, count)
    return [
        *("--train_dir", str(tmp_path / "train"), "--validation_dir", str(tmp_path / "validation")),
        *("--model_type", "vit", "--config_overrides", VIT, "--output_dir", str(tmp_path / "out")),
        *("--per_device_train_batch_size", "4", "--num_train_epochs", "1", *others),
    ]


def replaced(argv: list[str], **values: str | None) -> list[str]:
    """The flags with other values; those of None are dropped."""
    found = list(argv)
    for name, value in values.items():
        place = found.index(f"--{name}")
        found[place : place + 2] = [] if value is None else [f"--{name}", value]
    return found


def resumed_as_if_never_stopped(tmp_path: Path, *others: str, without: Sequence[str] = ()) -> None:
    """Assert that a run that goes on from a checkpoint ends bit for bit as one that never stopped.

    It stops within an epoch; 18 rows in batches of 4 are 5 updates an epoch. ``without`` are names
    of flags that are left out.
    """
    argv = flags(tmp_path, "--variant", "gfsa", "--num_train_epochs", "3", *others)
    argv = replaced(argv, **dict.fromkeys(without))
    argv += ["--checkpointing_steps", "7", "--learning_rate", "0.01"]
    argv = replaced(argv, config_overrides=f"{VIT},hidden_dropout_prob=0.2")
    image_classification.main(argv)
    again = tmp_path / "again"
    again.mkdir()
    shutil.copytree(tmp_path / "out" / "step_7", again / "step_7")
    torch.manual_seed(1)  # whatever the random state of the process is
    argv = replaced(argv, output_dir=str(again))
    image_classification.main([*argv, "--resume_from_checkpoint", "last"])
    for name in ("model.safetensors", "eval_predictions.tsv"):
        assert (again / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    logs = [(folder / LOG).read_text().splitlines() for folder in (again, tmp_path / "out")]
    resumed, whole = ([json.loads(x) | {"tokens_per_s": 0} for x in lines] for lines in logs)
    assert resumed == [line for line in whole if line["step"] > 7]
