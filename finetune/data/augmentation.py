"""What is drawn anew for each training image and batch, by torchvision's transforms of version 2.

Each draw depends on a number that the order of rows gives with the row (`orders.Numbered`), and so
on the seed, the epoch and the row alone: neither on which process reads it, nor on a resumption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from finetune.data.wording import reason, refusal
from finetune.settings.images import AugmentationArguments

Transform = Callable[..., Any]
OPERATIONS = 2  # of RandAugment for an image


@dataclass(frozen=True)
class Augmentation:
    """Three stages, each a tuple of transforms, any of which may be empty.

    Attributes:
        image: of a PIL image, before it is made into pixel values.
        pixels: of normalised pixel values, (channels, height, width).
        batch: of pixel values (batch, channels, height, width) and labels (batch,), which become
            shares, (batch, classes).
        crops: whether the image's size is that of the model afterwards.
    """

    image: tuple[Transform, ...] = ()
    pixels: tuple[Transform, ...] = ()
    batch: tuple[Transform, ...] = ()
    crops: bool = False


NONE = Augmentation()


def augmentation(
    arguments: AugmentationArguments, size: tuple[int, int], classes: int
) -> Augmentation:
    """What the flags ask for, for images of this height and width.

    Raises ``Refused`` if torchvision is needed, and missing or broken.
    """
    if not arguments.needs_torchvision:
        return NONE
    v2 = transforms()
    image, pixels, mixing = [], [], []
    if arguments.random_resized_crop is not None:
        scale = (arguments.random_resized_crop, 1.0)
        image.append(v2.RandomResizedCrop(size, scale, interpolation=v2.InterpolationMode.BICUBIC))
    if arguments.horizontal_flip is not None:
        image.append(v2.RandomHorizontalFlip(arguments.horizontal_flip))
    if arguments.rand_augment is not None:
        image.append(v2.RandAugment(OPERATIONS, arguments.rand_augment))
    if arguments.random_erasing is not None:
        pixels.append(v2.RandomErasing(arguments.random_erasing, value="random"))
    if arguments.mixup is not None:
        mixing.append(v2.MixUp(alpha=arguments.mixup, num_classes=classes))
    if arguments.cutmix is not None:
        mixing.append(v2.CutMix(alpha=arguments.cutmix, num_classes=classes))
    batch = (v2.RandomChoice(mixing),) if mixing else ()
    crops = arguments.random_resized_crop is not None
    return Augmentation(tuple(image), tuple(pixels), batch, crops)


def transforms() -> Any:
    """torchvision's transforms of version 2.

    Raises ``Refused`` if torchvision is missing, or was built for another torch.
    """
    try:
        from torchvision.transforms import v2
    except Exception as error:  # of whatever a torchvision for another torch stumbles over
        raise refusal(
            "torchvision, which the flags of augmentation need,",
            None,
            f"one that fits torch {torch.__version__}; importing it said: {reason(error)}",
            "pip install torchvision, of the same source as torch, or drop those flags.",
        ) from None
    return v2


@contextmanager
def drawn_from(number: int) -> Iterator[None]:
    """Here torch's random numbers on the CPU are those of ``number``, and afterwards as before.

    torch.manual_seed would begin a GPU's anew too, and with it the dropout.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number)
        yield


def applied(stages: tuple[Transform, ...], *values: Any) -> Any:
    """What the transforms make of the value or values, one after another."""
    for each in stages:
        values = each(*values)
        values = values if isinstance(values, tuple) else (values,)
    return values if len(values) > 1 else values[0]
