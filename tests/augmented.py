"""Tests of augmentation with torchvision, in a process of their own (test_augmentation.py).

The builds of the package registry are for CUDA, and their compiled operators load beside such a
torch alone. The transforms use none of them: importing torchvision only asks that two are known. So
`make` unpacks it into a folder where no other process finds it: transformers would take it for a
whole one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from image_runs import flags, pixels, resumed_as_if_never_stopped
from PIL import Image
from torch import Tensor
from transformers import ViTImageProcessorPil

FOLDER = Path(sys.prefix) / "torchvision"
sys.path.append(str(FOLDER))
OPERATORS = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from finetune import image_classification  # noqa: E402
from finetune.data import augmentation, images  # noqa: E402
from finetune.engine.launch import make_accelerator  # noqa: E402

OF_IMAGES = {
    "random_resized_crop": "0.3",
    "horizontal_flip": "0.5",
    "rand_augment": "9",
    "random_erasing": "0.9",
}
OF_BATCHES = {"mixup": "0.8", "cutmix": "1.0"}
SIZE = 16


def words(chosen: dict[str, str]) -> list[str]:
    return [word for name, value in chosen.items() for word in (f"--{name}", value)]


EVERY = words(OF_IMAGES | OF_BATCHES)


def collate(tmp_path: Path, chosen: dict[str, str]) -> images.Collate:
    settings = image_classification.SCHEMA.parse(flags(tmp_path, *words(chosen)))
    changes = augmentation.augmentation(settings.data, (SIZE, SIZE), classes=6)
    return images.Collate(ViTImageProcessorPil(size={"height": SIZE, "width": SIZE}), changes)


def rows(*numbers: int) -> list[dict]:
    """Rows of images and labels, each to be changed as its number says."""
    return [
        {"image": Image.fromarray(pixels(i)), "labels": i % 6, "number": number}
        for i, number in enumerate(numbers)
    ]


def batch(tmp_path: Path, chosen: dict[str, str], *numbers: int) -> tuple[Tensor, Tensor]:
    found = collate(tmp_path, chosen)(rows(*numbers))
    return found["pixel_values"], found["labels"]


@pytest.mark.parametrize("name", OF_IMAGES)
def test_each_change_of_images_depends_on_the_rows_number_alone(tmp_path: Path, name: str) -> None:
    chosen = {name: OF_IMAGES[name]}
    plain, labels = batch(tmp_path, {}, *range(20))
    changed, same_labels = batch(tmp_path, chosen, *range(20))
    assert changed.shape == plain.shape == (20, 3, SIZE, SIZE)
    assert torch.equal(labels, same_labels)
    moved = (changed != plain).flatten(1).any(1)
    assert 0 < moved.sum() <= 20
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again, _ = batch(tmp_path, chosen, *range(20))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again, changed)
    other, _ = batch(tmp_path, chosen, *range(20, 40))
    assert not torch.equal(other, changed)
    alone = collate(tmp_path, chosen)(rows(*range(20))[7:8])["pixel_values"]
    assert torch.equal(alone[0], changed[7])


@pytest.mark.parametrize("name", OF_BATCHES)
def test_mixed_labels_are_the_shares_of_what_is_mixed(tmp_path: Path, name: str) -> None:
    plain, labels = batch(tmp_path, {}, *range(6))
    changed, shares = batch(tmp_path, {name: OF_BATCHES[name]}, *range(6))
    assert torch.allclose(shares.sum(1), torch.ones(6))
    share = shares[torch.arange(6), labels]
    partner = shares.masked_fill(torch.nn.functional.one_hot(labels, 6).bool(), 0).argmax(1)
    assert torch.allclose(shares[torch.arange(6), partner], 1 - share)
    if name == "mixup":
        kept = share[:, None, None, None]
        assert torch.allclose(changed, kept * plain + (1 - kept) * plain[partner], atol=1e-6)
    else:
        own, others = ((changed == x).all(1) for x in (plain, plain[partner]))
        assert (own | others).all()
        assert torch.allclose(own.float().mean((1, 2)), share, atol=1e-6)
    again, _ = batch(tmp_path, {name: OF_BATCHES[name]}, *range(6))
    assert torch.equal(again, changed)


def epoch(tmp_path: Path, number: int, *others: str) -> list[dict[str, Tensor]]:
    """An epoch's training batches, as the engine reads them."""
    settings = image_classification.SCHEMA.parse(flags(tmp_path, *EVERY, *others))
    task, found = images.load(settings.data, predict=False)
    processor = ViTImageProcessorPil(size={"height": SIZE, "width": SIZE})
    torch.manual_seed(3)
    inputs = images.Inputs(processor, "RGB", (SIZE, SIZE), range(6))
    loaders = images.loaders(settings, task, found, inputs)
    loader = make_accelerator(settings.train).prepare(loaders.train)
    loader.set_epoch(number)
    return list(loader)


def test_the_draws_are_the_same_with_any_number_of_processes_that_read(tmp_path: Path) -> None:
    first, workers = epoch(tmp_path, 1), epoch(tmp_path, 1, "--dataloader_num_workers", "2")
    assert len(first) == 5
    for own, theirs in zip(first, workers, strict=True):
        assert torch.equal(own["pixel_values"], theirs["pixel_values"])
        assert torch.equal(own["labels"], theirs["labels"])
    other = epoch(tmp_path, 2)
    assert not torch.equal(first[0]["pixel_values"], other[0]["pixel_values"])


def test_evaluation_is_of_unchanged_images(tmp_path: Path) -> None:
    still = ["--learning_rate", "0", "--max_train_steps", "1"]
    plain = image_classification.main(flags(tmp_path, *still))
    changed = image_classification.main(
        [*flags(tmp_path, *still, *EVERY), "--output_dir", str(tmp_path / "other")]
    )
    assert changed["eval_loss"] == plain["eval_loss"]
    assert changed["train_loss"] != plain["train_loss"]


def test_a_stopped_run_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    resumed_as_if_never_stopped(tmp_path, *EVERY, "--label_smoothing", "0.1")


def test_a_stopped_run_goes_on_with_other_processes_that_read(tmp_path: Path) -> None:
    resumed_as_if_never_stopped(tmp_path, *EVERY, "--dataloader_num_workers", "1")
