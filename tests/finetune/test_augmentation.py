"""The loss to mixed labels, and the tests of augmentation in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import tasks
from finetune.objectives.labels import ImageLabels

ROOT = Path(__file__).parents[2]
TORCHVISION = Path(sys.prefix) / "torchvision"


@pytest.mark.skipif(not TORCHVISION.is_dir(), reason=f"make puts torchvision into {TORCHVISION}")
def test_augmentation_with_torchvision() -> None:
    """The tests of augmented.py: nothing else may find the torchvision that they import."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "tests/augmented.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_the_loss_is_to_smoothed_and_to_mixed_labels() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 3, 1, 1, 2])
    task = tasks.get("digits", "image_classification")

    class Model(torch.nn.Module):
        def forward(self, pixel_values: torch.Tensor) -> object:
            return type("Output", (), {"logits": pixel_values})

    def loss(labels: torch.Tensor, smoothing: float) -> torch.Tensor:
        batch = {"pixel_values": logits, "labels": labels}
        return ImageLabels(task, range(4), smoothing).loss(Model(), batch)

    shares = functional.one_hot(labels, 4).double()
    mixed = 0.3 * shares + 0.7 * shares.flip(0)
    for target, own in ((labels, shares), (mixed, mixed)):
        for smoothing in (0.0, 0.1):
            smooth = (1 - smoothing) * own + smoothing / 4
            expected = -(smooth * logits.log_softmax(1)).sum(1).mean()
            assert torch.allclose(loss(target, smoothing), expected)
