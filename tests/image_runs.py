"""Flags of image_classification.py on a few tiny images, which are made in the test's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

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


def written(tmp_path: Path) -> dict[str, Any]:
    """The results of such a run."""
    return json.loads((tmp_path / "out" / "all_results.json").read_text())
