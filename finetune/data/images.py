"""Images to batches: read from folders or tables, each checked, changed as training asks."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from datasets import ClassLabel, Dataset, DatasetDict, load_dataset
from PIL.Image import Image
from sklearn.model_selection import train_test_split
from torch import Tensor

from finetune.data import augmentation, sources
from finetune.data import rows as checks
from finetune.data.loaders import Batching, Loaders, of_splits
from finetune.data.streaming import InWindows, Streamed, Training
from finetune.data.wording import Words, listed, reason, refusal
from finetune.errors import Refused
from finetune.settings.images import ImageDataArguments
from finetune.settings.training import TrainArguments
from finetune.terminal import track
from tasks import Task
from tasks import image_classification as images

logger = logging.getLogger(__name__)

CHUNK = 512  # images that are checked together
# More bits a pixel than the eight of an image processor: Pillow would cut them off at 255.
DEEP = ("I", "F", "I;16", "I;16B", "I;16L")
Rows = Mapping[str, Dataset | Streamed]


@dataclass(frozen=True)
class Images:
    """A split's images, read when they are needed.

    Attributes:
        rows: with the columns ``image``, encoded, and ``labels`` where they are not hidden.
        mode: Pillow's, that the images are converted to.
        numbers: the model's number of each label, as the rows have it.
    """

    rows: Dataset | Streamed
    mode: str
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | tuple[int, int]) -> dict[str, Any]:
        """The row's image and label, and the number that decides what is drawn for it, if any.

        Raises ``Refused`` for a row that cannot be used.
        """
        row, number = index if isinstance(index, tuple) else (index, None)
        found = self.rows[row]
        place = self.rows.place(row) if isinstance(self.rows, Streamed) else f"row {row + 1}"
        try:
            image = read(found["image"])
        except Exception as error:  # of whichever of Pillow's readers finds the fault
            raise _refused(place, found["image"], error) from None
        if image.mode in DEEP:
            raise _refused(place, found["image"], image.mode)
        sample = {"image": image.convert(self.mode), "number": number}
        if "labels" in found:
            label, allowed = found["labels"], f"0 to {len(self.numbers) - 1}"
            if label is None or not 0 <= label < len(self.numbers):
                raise refusal(f"In {place}, the label", label, allowed, "Correct it.")
            sample["labels"] = self.numbers[label]
        return sample


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


def load(arguments: ImageDataArguments, predict: bool) -> tuple[Task, Rows]:
    """The task, whose classes are the data's, and its rows: encoded ``image``, and ``labels``.

    Under ``streaming`` the training rows stay where they are.

    Raises ``ValueError`` if the source, a split or a column is missing, a label is none of the
    training rows', or torchvision is needed and cannot be imported.
    """
    if arguments.needs_torchvision:
        augmentation.transforms()  # before minutes of reading
    stream = Training(images.TRAIN, predict) if arguments.streaming else None
    if arguments.train_dir is not None:
        task, rows = _folders(arguments)
    else:
        config = arguments.dataset_config_name
        task, rows = sources.read(
            arguments,
            images.FAMILY,
            readers={".parquet": "parquet"},
            infer=_own_task,
            named=lambda name: images.image_task(checks.OWN_FILES, dataset_name=name),
            adapt=lambda task: replace(task, dataset_config=config or task.dataset_config),
            take=stream,
        )
    task = _with_columns(task, rows, arguments)
    checks.check_splits(task, rows, [task.train_split])
    task = _with_names(task, rows, streaming=arguments.streaming)
    rows = _with_validation(task, sources.numbered(rows), arguments.train_val_split)
    found = checks.checked(task, rows, arguments, predict)
    encoded: dict[str, Any] = {n: _encoded(task, n, split) for n, split in found.items()}
    if stream is not None:
        names = {task.image_column: "image", task.label_column: "labels"}
        training = stream.rows.first(arguments.max_train_samples)
        encoded[task.train_split] = training.named(names, arguments.window)
    return task, encoded


def loaders(
    task: Task,
    rows: Rows,
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
    whole = {name: split for name, split in rows.items() if isinstance(split, Dataset)}
    digests = {name: checked(name, split, mode) for name, split in whole.items()}
    origin = sources.origin(whole, digests, task.label_names)
    train_rows = rows[task.train_split]
    if isinstance(train_rows, Streamed):
        origin[task.train_split] = train_rows.origin()
        sampler = InWindows(train_rows.sizes, arguments.window)
    else:
        sampler = InWindows([len(train_rows)], len(train_rows))
    found = {name: Images(split, mode, label_order) for name, split in rows.items()}
    changes = augmentation.augmentation(arguments, size, len(label_order))
    how = Batching(
        collate=Collate(processor, changes),
        collate_evaluation=Collate(processor),
        sampler=sampler,
        workers=arguments.dataloader_num_workers,
    )
    example = found[task.validation_splits[0].name][0]["image"]
    return of_splits(task, found, how, train, (origin, example))


def checked(name: str, rows: Dataset, mode: str) -> str:
    """A digest of the split's images and labels, once each image was decoded.

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
                    where = sources.place(name, rows, start + i)
                    raise _refused(where, chunk["image"][i], found)
                total.update(digest)
                modes[found] += 1
            total.update(np.array(chunk.get("labels", ())).tobytes())
            start += len(looked)
    others = ", ".join(f"{n} of mode {other}" for other, n in modes.items() if other != mode)
    if others:
        logger.info(f"split {name!r}: images that are converted to {mode}: {others}")
    return total.hexdigest()[: sources.DIGITS]


def read(value: Mapping[str, Any]) -> Image:
    """The image of a row's bytes or path, upright as its camera says."""
    return datasets.Image().decode_example(dict(value))


def _folders(arguments: ImageDataArguments) -> tuple[Task, DatasetDict]:
    """The images of folders with a folder for each class, and their task."""
    rows = DatasetDict()
    given = {"train": arguments.train_dir, "validation": arguments.validation_dir}
    for name, path in ((name, path) for name, path in given.items() if path is not None):
        folder = Path(path).resolve()
        allowed = "a folder of images for each class, without inner ones"
        try:
            rows[name] = load_dataset(
                "imagefolder",
                data_files={name: [f"{folder}/**"]},
                split=name,
                drop_labels=False,
            )
            # A link to nothing would be left out.
            size = sum(each.stat().st_size for each in folder.rglob("*") if not each.is_dir())
            found = set(rows[name].features["label"].names)
        except Exception as error:  # of whatever a file's name, link or metadata lets happen
            remedy = f"Reading raised {reason(error)}"
            raise refusal(f"{name}_dir", path, allowed, remedy) from None
        # The folder that an image lies in is its class to `datasets`, however deep.
        classes = {each.name for each in folder.iterdir() if each.is_dir()}
        if others := sorted(found ^ {each for each in classes if not each.startswith(".")}):
            remedy = f"Move what lies in {listed(others)}, or remove folders without images."
            raise refusal(f"{name}_dir", path, allowed, remedy)
        rows[name].info.download_checksums = {str(folder): {"num_bytes": size, "checksum": None}}
    if arguments.max_train_samples or arguments.max_eval_samples:
        rows = rows.shuffle(seed=0)  # sorted by class, the first rows are of the first ones
    return sources.with_metrics(_own_task(rows), arguments.metric), rows


def _own_task(rows: DatasetDict) -> Task:
    return images.image_task(checks.OWN_FILES, builder=lambda: rows)


def _with_columns(task: Task, rows: DatasetDict, arguments: ImageDataArguments) -> Task:
    """The task with the columns that the flags name, or else the only ones of their kind."""
    features = rows[task.train_split].features if task.train_split in rows else {}

    def chosen(argument: str, usual: str, kind: type) -> str:
        known = [name for name, feature in features.items() if isinstance(feature, kind)]
        if name := getattr(arguments, argument):
            return name
        if usual not in features and features and len(known) != 1:
            allowed = f"one of the columns, {listed(features)}; {len(known)} are {kind.__name__}"
            raise refusal(argument, None, allowed, "Name it.")
        return usual if usual in features or not known else known[0]

    return replace(
        task,
        image_column=chosen("image_column_name", task.image_column, datasets.Image),
        label_column=chosen("label_column_name", task.label_column, ClassLabel),
    )


def _with_names(task: Task, rows: DatasetDict, *, streaming: bool) -> Task:
    """The task with the classes that the training rows name; the other splits have no others."""
    column, train = task.label_column, rows[task.train_split]
    feature = train.features[column]
    if streaming and not isinstance(feature, ClassLabel):
        # Only all rows together would name the classes.
        what, allowed = f"streaming, with the column {column}", "with datasets' ClassLabel"
        raise refusal(what, Words(f"of type {feature}"), allowed, "Drop --streaming.")
    known = task.label_names or checks.label_names(task.train_split, train, column)
    if known is None:
        what, allowed = f"column {column} of task {task.name}", "class labels, integers or words"
        raise refusal(what, Words(f"of type {feature}"), allowed, "Give --label_column_name.")
    for name, split in rows.items():
        own = getattr(split.features.get(column), "names", ())
        if not set(own) <= set(known):
            allowed = f"those of split {task.train_split!r}: {listed(known)}"
            remedy = "Name the classes alike in all splits."
            raise refusal(f"the classes of split {name!r}", Words(listed(own)), allowed, remedy)
    few = len(known) <= 5  # all of which are among the five best
    metrics = tuple(each for each in task.metrics if each.name != images.TOP5.name or not few)
    return replace(task, label_names=tuple(known), metrics=metrics)


def _with_validation(task: Task, rows: DatasetDict, share: float | None) -> DatasetDict:
    """The rows; where a share is asked for, the validation split is drawn from the training's."""
    name, train = task.validation_splits[0].name, rows[task.train_split]
    if (share is None) != (name in rows):
        allowed = f"a share without a split {name!r}, else None; the data have {listed(rows)}"
        raise refusal("train_val_split", share, allowed, "Give it, or data to evaluate on.")
    if share is None:
        return rows
    classes = checks.label_numbers(task, task.train_split, train, may_hide=False)
    try:
        kept, held = train_test_split(
            range(len(train)), test_size=share, stratify=classes, random_state=0
        )
    except ValueError as error:
        allowed = f"a share that leaves rows of each class on both sides of {len(train)}"
        remedy = f"scikit-learn raised {reason(error)}"
        raise refusal("train_val_split", share, allowed, remedy) from None
    parts = {task.train_split: train.select(sorted(kept)), name: train.select(sorted(held))}
    return DatasetDict({**rows, **parts})


def _encoded(task: Task, name: str, rows: Dataset) -> Dataset:
    """The rows with their images as they are stored, in the column ``image``."""
    column = task.image_column
    try:
        found = rows.cast_column(column, datasets.Image(decode=False))
    except Exception as error:  # of pyarrow, or of a type that has no cast
        what, kind = f"column {column} of split {name!r}", Words(f"of type {rows.features[column]}")
        remedy = f"Give --image_column_name. Reading raised {reason(error)}"
        raise refusal(what, kind, "a column of images, bytes or paths", remedy) from None
    return found if column == "image" else found.rename_column(column, "image")


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
    remedy = f"Write it again, or drop it. Reading it raised {reason(found)}"
    return refusal(what, Words("unreadable"), "an image that Pillow can read", remedy)
