"""Images to batches: each is checked, changed as training asks, made into pixel values."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from datasets import Dataset
from PIL.Image import Image
from torch import Tensor

from finetune.data import augmentation, image_rows, local
from finetune.data.loaders import Loaders, of_splits
from finetune.data.orders import Numbered
from finetune.data.streaming import InWindows, Streamed
from finetune.data.wording import Words, reason, refusal
from finetune.errors import Refused
from finetune.settings.images import ImageDataArguments
from finetune.settings.training import TrainArguments
from finetune.terminal import track
from tasks import Task

logger = logging.getLogger(__name__)

DIGITS = 16  # of a digest
CHUNK = 512  # images that are checked together
# More bits a pixel than the eight of an image processor: Pillow would cut them off at 255.
DEEP = ("I", "F", "I;16", "I;16B", "I;16L")


@dataclass(frozen=True)
class Images:
    """A split's images, read when they are asked for.

    Attributes:
        rows: with the columns ``image``, encoded, and ``labels`` where they are not hidden, as the
            model numbers them.
        mode: Pillow's, that the images are converted to.
        digest: of the images' bytes and their labels.
    """

    rows: Dataset
    mode: str
    digest: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | tuple[int, int]) -> dict[str, Any]:
        """The row's image and label, and the number that decides what is drawn for it, if any."""
        row, number = index if isinstance(index, tuple) else (index, None)
        found = self.rows[row]
        return found | {"image": self._image(row, found).convert(self.mode), "number": number}

    def _image(self, row: int, found: Mapping[str, Any]) -> Image:
        return read(found["image"])


@dataclass(frozen=True)
class StreamedImages(Images):
    """Training images that nobody has looked at before they are read.

    Attributes:
        numbers: the model's number of each label, as the rows have it.
    """

    rows: Streamed
    numbers: Sequence[int]

    def __getitem__(self, index: int | tuple[int, int]) -> dict[str, Any]:
        """As `Images`; raises ``Refused`` for a row that cannot be used."""
        row = index[0] if isinstance(index, tuple) else index
        found = super().__getitem__(index)
        label = found["labels"]
        if label is None or not 0 <= label < len(self.numbers):
            allowed = f"0 to {len(self.numbers) - 1}"
            raise refusal(f"In {self.rows.place(row)}, the label", label, allowed, "Correct it.")
        return found | {"labels": self.numbers[label]}

    def _image(self, row: int, found: Mapping[str, Any]) -> Image:
        try:
            image = read(found["image"])
        except Exception as error:  # of whichever of Pillow's readers finds the fault
            raise _refused(self.rows.place(row), found["image"], error) from None
        if image.mode in DEEP:
            raise _refused(self.rows.place(row), found["image"], image.mode)
        return image


@dataclass(frozen=True)
class Collate:
    """Rows of `Images` to ``pixel_values`` (batch, channels, height, width), and ``labels``."""

    processor: Any
    changes: augmentation.Augmentation = augmentation.NONE

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if self.changes.image or self.changes.pixels:
            batch = {"pixel_values": torch.cat([self._changed(row) for row in rows])}
        else:
            batch = {"pixel_values": self._pixels([row["image"] for row in rows])}
        if "labels" in rows[0]:
            batch["labels"] = torch.tensor([row["labels"] for row in rows])
        if self.changes.batch:
            with augmentation.drawn_from(rows[0]["number"]):
                mixed = augmentation.applied(self.changes.batch, *batch.values())
            batch = dict(zip(batch, mixed, strict=True))
        return batch

    def _changed(self, row: Mapping[str, Any]) -> Tensor:
        with augmentation.drawn_from(row["number"]):
            image = augmentation.applied(self.changes.image, row["image"])
            return augmentation.applied(self.changes.pixels, self._pixels([image]))

    def _pixels(self, found: list[Image]) -> Tensor:
        # What is cut to the model's size by chance is neither resized nor cut again.
        without = ("do_resize", "do_center_crop") if self.changes.crops else ()
        off = {name: False for name in without if hasattr(self.processor, name)}
        return self.processor(found, return_tensors="pt", **off)["pixel_values"]


def loaders(
    task: Task,
    rows: image_rows.Rows,
    processor: Any,
    size: tuple[int, int],
    mode: str,
    label_order: Sequence[int],
    arguments: ImageDataArguments,
    train: TrainArguments,
) -> Loaders:
    """Batches of every split; of the training split as the flags change it.

    Args:
        task: the task.
        rows: each split's, of `load`.
        processor: makes the pixel values.
        size: height and width that it gives images.
        mode: Pillow's, of the images that it takes.
        label_order: ``label_order[i]`` is the model's number of label i.
        arguments: what is drawn.
        train: batch sizes.

    Raises ``ValueError`` for an image that cannot be read.
    """
    stream = rows.get(task.train_split)
    whole = {name: split for name, split in rows.items() if isinstance(split, Dataset)}
    digests = {name: checked(name, split, mode) for name, split in whole.items()}
    order = np.array(label_order)

    def numbered(split: Dataset) -> Dataset:
        if "labels" not in split.column_names:
            return split
        own = order[split.with_format("numpy")["labels"][:]].tolist()
        return split.remove_columns("labels").add_column("labels", own)

    found = {n: Images(numbered(split), mode, digests[n]) for n, split in whole.items()}
    origin = local.origin(whole, digests, task.label_names)
    sampler: Numbered | InWindows
    if isinstance(stream, Streamed):
        known = origin[task.train_split] = stream.origin()
        found[task.train_split] = StreamedImages(stream, mode, known["digest"], label_order)
        sampler = InWindows(stream.sizes, arguments.window)
    else:
        sampler = Numbered(len(found[task.train_split]))
    changes = augmentation.augmentation(arguments, size, len(label_order))
    return of_splits(
        task,
        found,
        origin,
        train,
        Collate(processor, changes),
        Collate(processor),
        sampler,
        workers=arguments.dataloader_num_workers,
        example=found[task.validation_splits[0].name][0]["image"],
    )


def checked(name: str, rows: Dataset, mode: str) -> str:
    """A digest of the split's images and labels, once each image is found to be one.

    Raises ``Refused`` for the first image that cannot be decoded, or has more than 8 bits a pixel.
    """
    total, modes = hashlib.sha256(), Counter[str]()
    start = 0
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        chunks = math.ceil(len(rows) / CHUNK)
        for chunk in track(rows.iter(CHUNK), f"Checking {name}", chunks):
            looked = list(pool.map(_looked_at, chunk["image"]))
            for i, (digest, found) in enumerate(looked):
                if isinstance(found, Exception) or found in DEEP:
                    where = local.place(name, rows, start + i)
                    raise _refused(where, chunk["image"][i], found)
                total.update(digest)
                modes[found] += 1
            total.update(np.array(chunk.get("labels", ())).tobytes())
            start += len(looked)
    for other, count in modes.items():
        if other != mode:
            lost = ", without what their alpha channel says" if other[-1] in "Aa" else ""
            logger.info(f"split {name!r}: {count} images of mode {other} become {mode}{lost}")
    return total.hexdigest()[:DIGITS]


def read(value: Mapping[str, Any]) -> Image:
    """The image of a row's bytes or path, upright as its camera says."""
    return datasets.Image().decode_example(dict(value))


def _looked_at(value: Mapping[str, Any] | None) -> tuple[bytes, str | Exception]:
    """A digest of the image's bytes, and its mode, or why it has none."""
    try:
        data = value["bytes"] if value else None
        if value and data is None:
            data = Path(value["path"]).read_bytes()
        if data is None:
            raise ValueError("it is missing")
        return hashlib.sha256(data).digest(), read({"bytes": data, "path": None}).mode
    except Exception as error:  # of whichever of Pillow's readers finds the fault
        return b"", error


def _refused(place: str, value: Any, found: str | Exception) -> Refused:
    path = (value or {}).get("path")
    what = f"the image {path}" if path else "the image"
    if not (path and Path(path).exists()):
        what = f"In {place}, {what}"
    if isinstance(found, str):
        remedy = "Convert it: Pillow would cut its values off at 255."
        return refusal(what, Words(f"of mode {found}"), "images of 8 bits a pixel", remedy)
    remedy = f"Write it again, or drop it. Reading it said: {reason(found)}"
    return refusal(what, Words("unreadable"), "an image that Pillow can read", remedy)
