"""What is drawn anew for each training image and batch, by torchvision's transforms of version 2.

Each draw depends on a number that the order of rows gives with the row (`streaming.InWindows`), and
so on the seed, the epoch and the row alone: neither on which process reads it, nor on a resumption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from finetune.settings.images import AugmentationArguments

Transform = Callable[..., Any]
OPERATIONS = 2  # of RandAugment for an image


@dataclass(frozen=True)
class Augmentation:
    """Three stages, any of which may be empty.

    Attributes:
        image: transforms of a PIL image, before it is made into pixel values.
        pixels: transforms of normalised pixel values, (channels, height, width).
        batch: of pixel values (batch, channels, height, width) and labels (batch,), which become
            shares, (batch, classes).
        crops: whether the image's size is that of the model afterwards.
    """

    image: tuple[Transform, ...] = ()
    pixels: tuple[Transform, ...] = ()
    batch: Transform | None = None
    crops: bool = False


NONE = Augmentation()


def augmentation(
    arguments: AugmentationArguments, size: tuple[int, int], classes: int
) -> Augmentation:
    """What the flags ask for, for images of this height and width."""
    if not arguments.needs_torchvision:
        return NONE
    v2 = transforms()
    share = arguments.random_resized_crop
    scale, bicubic = (share, 1.0), v2.InterpolationMode.BICUBIC
    known = (
        (share, lambda _: v2.RandomResizedCrop(size, scale, interpolation=bicubic)),
        (arguments.horizontal_flip, v2.RandomHorizontalFlip),
        (arguments.rand_augment, lambda strength: v2.RandAugment(OPERATIONS, strength)),
    )
    image = tuple(make(value) for value, make in known if value is not None)
    erasing = arguments.random_erasing
    pixels = () if erasing is None else (v2.RandomErasing(erasing, value="random"),)
    mixtures = ((arguments.mixup, v2.MixUp), (arguments.cutmix, v2.CutMix))
    mixing = [kind(alpha=x, num_classes=classes) for x, kind in mixtures if x is not None]
    batch = v2.RandomChoice(mixing) if mixing else None
    return Augmentation(image, pixels, batch, crops=share is not None)


def transforms() -> Any:
    """torchvision's transforms of version 2; its import fails without one that fits this torch."""
    from torchvision.transforms import v2

    return v2


@contextmanager
def drawn_from(number: int) -> Iterator[None]:
    """Here torch's random numbers on the CPU are those of ``number``, and afterwards as before.

    torch.manual_seed would begin a GPU's anew too, and with it the dropout.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number)
        yield
