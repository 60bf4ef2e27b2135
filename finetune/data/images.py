"""Images to batches: read from folders or tables, each checked, changed as training asks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features
from PIL.Image import Image
from torch import Tensor

from finetune.data import augmentation, sources
from finetune.data import rows as checks
from finetune.data.loaders import Batching, Loaders, of_splits
from finetune.data.streaming import InWindows, Streamed, streamed
from finetune.errors import Plain, joined, reason, refusal
from finetune.settings.images import ImageDataArguments
from finetune.settings.schema import Run
from finetune.terminal import track
from tasks import Task
from tasks import image_classification as images

CHUNK = 512  # images that are checked together
# More bits a pixel than the eight of an image processor: Pillow would cut them off at 255.
DEEP = ("I", "F", "I;16", "I;16B", "I;16L")
Rows = Mapping[str, Dataset | Streamed]


@dataclass(frozen=True)
class Inputs:
    """What a model reads, and how it numbers the labels.

    Attributes:
        processor: makes the pixel values.
        mode: Pillow's, of the images that it takes.
        size: height and width of the pixel values.
        label_order: ``label_order[i]`` is the model's number of label i.
    """

    processor: Any
    mode: str
    size: tuple[int, int]
    label_order: Sequence[int]


@dataclass(frozen=True)
class Images:
    """A split's images, read when they are needed.

    Attributes:
        name: the split's.
        rows: with the columns ``image``, encoded, and ``labels`` where they are not hidden.
        inputs: whose mode the images are converted to, and whose numbers the labels have.
    """

    name: str
    rows: Dataset | Streamed
    inputs: Inputs

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | tuple[int, int]) -> dict[str, Any]:
        """The row's image and label, and the number that decides what is drawn for it, if any.

        Raises:
            Refused: a row that cannot be used.
        """
        row, number = index if isinstance(index, tuple) else (index, None)
        cells, order = self.rows[row], self.inputs.label_order
        sample = {"image": self._image(row, cells["image"]), "number": number}
        if "labels" in cells:
            label, allowed = cells["labels"], f"0 to {len(order) - 1}"
            if label is None or not 0 <= label < len(order):
                raise refusal(f"In {self._row_name(row)}, the label", label, allowed, "Correct it.")
            sample["labels"] = order[label]
        return sample

    @cached_property
    def digest(self) -> str:
        """Of all files and labels, once each image was read; streamed rows are read later.

        Raises:
            Refused: the first image that cannot be used.
        """
        if isinstance(self.rows, Streamed):
            return self.rows.digest
        total = hashlib.sha256()
        starts = range(0, len(self), CHUNK)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for start in track(starts, f"Checking {self.name}"):
                for digest in pool.map(self._checked, range(start, min(start + CHUNK, len(self)))):
                    total.update(digest)
        return total.hexdigest()[: sources.DIGITS]

    def _checked(self, row: int) -> bytes:
        cells = self.rows[row]
        self._image(row, cells["image"])
        content = hashlib.sha256(sources.content(cells["image"]))
        return content.digest() + str(cells.get("labels")).encode()

    def _image(self, row: int, value: Mapping[str, Any] | None) -> Image:
        """The image, upright as its camera says."""
        value = dict(value or {"bytes": None, "path": None})
        what = f"In {self._row_name(row)}, the image"
        if value["path"]:
            what += f" {value['path']}"
        try:
            image = datasets.Image().decode_example(value)
        except Exception as error:  # of whichever of Pillow's readers finds the fault
            remedy = f"Write it again, or drop it. Reading it raised {reason(error)}"
            allowed = "an image that Pillow can read"
            raise refusal(what, Plain("unreadable"), allowed, remedy) from None
        if image.mode in DEEP:
            mode, allowed = Plain(f"of mode {image.mode}"), "images of 8 bits a pixel"
            remedy = "Convert it: Pillow would cut its values off at 255."
            raise refusal(what, mode, allowed, remedy)
        return image.convert(self.inputs.mode)

    def _row_name(self, row: int) -> str:
        if isinstance(self.rows, Streamed):
            return self.rows.row_name(row)
        return sources.row_name(self.name, self.rows, row)


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
                batch = dict(zip(batch, self.changes.batch(*batch.values()), strict=True))
        return batch

    def _changed(self, row: Mapping[str, Any]) -> Tensor:
        with augmentation.drawn_from(row["number"]):
            image = reduce(lambda x, change: change(x), self.changes.image, row["image"])
            pixels = self._pixels([image])
            return reduce(lambda x, change: change(x), self.changes.pixels, pixels)

    def _pixels(self, batch: list[Image]) -> Tensor:
        # What is cut to the model's size by chance is neither resized nor cut again.
        without = ("do_resize", "do_center_crop") if self.changes.crops else ()
        off = {name: False for name in without if hasattr(self.processor, name)}
        return self.processor(batch, return_tensors="pt", **off)["pixel_values"]


def load(arguments: ImageDataArguments, predict: bool) -> tuple[Task, Rows]:
    """The task, whose classes are the data's, and its rows: encoded ``image``, and ``labels``.

    Under ``streaming`` the training rows stay where they are.

    Raises:
        ValueError: the source, a split or a column is missing, a label is none of the training
            rows', or torchvision is needed and cannot be imported.
    """
    if arguments.needs_torchvision:
        augmentation.transforms()  # before minutes of reading
    own_task = partial(_own_task, arguments)
    if arguments.train_dir is not None:
        rows = _folders(arguments)
        task = sources.with_flags(own_task(rows), arguments)
    else:
        reader = partial(streamed, images.TRAIN) if arguments.streaming else sources.read_files
        task, rows = sources.read(arguments, images.FAMILY, own_task, predict, reader)
    whole = {n: x.sample() if isinstance(x, Streamed) else x for n, x in rows.items()}
    task = _with_columns(task, whole, arguments)
    checks.check_splits(task, whole, [task.train_split])
    train = rows[task.train_split]
    task = _with_names(task, whole, streaming=isinstance(train, Streamed))
    share, classes = arguments.train_val_split, None
    if share is not None:
        classes = checks.label_numbers(task, task.train_split, train, may_hide=False)
    whole = sources.numbered(whole)
    whole = checks.with_validation(task, whole, "train_val_split", share, classes)
    checked = checks.checked(task, whole, arguments, predict)
    encoded: dict[str, Any] = {n: _encoded(task, n, split) for n, split in checked.items()}
    if isinstance(train, Streamed):
        names = {task.image_column: "image", task.label_column: "labels"}
        encoded[task.train_split] = train.first(
            arguments.max_train_samples, names, arguments.window
        )
    return task, encoded


def loaders(settings: Run[Any, Any], task: Task, rows: Rows, inputs: Inputs) -> Loaders:
    """Batches of every split; of the training split as the flags change it.

    Raises:
        ValueError: an image that cannot be read.
    """
    arguments, train_rows = settings.data, rows[task.train_split]
    splits = {name: Images(name, split, inputs) for name, split in rows.items()}
    whole = {name: split for name, split in rows.items() if isinstance(split, Dataset)}
    digests = {name: splits[name].digest for name in whole}
    origin = sources.origin(whole, digests, task.label_names)
    if isinstance(train_rows, Streamed):
        origin[task.train_split] = train_rows.origin()
        sampler = InWindows(train_rows.sizes, arguments.window)
    else:
        sampler = InWindows([len(train_rows)], len(train_rows))
    changes = augmentation.augmentation(arguments, inputs.size, len(inputs.label_order))
    how = Batching(
        collate=Collate(inputs.processor, changes),
        collate_evaluation=Collate(inputs.processor),
        sampler=sampler,
        workers=arguments.dataloader_num_workers,
    )
    example = splits[task.validation_splits[0].name][0]["image"]
    return of_splits(task, splits, how, settings.train, (origin, example))


def _folders(arguments: ImageDataArguments) -> DatasetDict:
    """The images of folders with a folder for each class."""
    rows = DatasetDict()
    folders = {"train": arguments.train_dir, "validation": arguments.validation_dir}
    for name, path in ((name, path) for name, path in folders.items() if path is not None):
        folder = Path(path).resolve()
        files = sorted(folder.glob("[!.]*/[!.]*"))
        outside = [file for file in sorted(folder.glob("[!.]*")) if not file.is_dir()]
        outside += [file for file in files if file.is_dir()]
        if outside or not files:
            allowed = "a folder of images for each class, without inner ones"
            remedy = f"Move {outside[0]}." if outside else "Add images."
            raise refusal(f"{name}_dir", path, allowed, remedy)
        classes = sorted({file.parent.name for file in files})
        features = Features(image=datasets.Image(), label=ClassLabel(names=classes))
        labels = [classes.index(file.parent.name) for file in files]
        cells = {"image": list(map(str, files)), "label": labels}
        rows[name] = Dataset.from_dict(cells, features=features)
        size = sum(file.stat().st_size for file in files if file.exists())
        rows[name].info.download_checksums = {str(folder): {"num_bytes": size, "checksum": None}}
    if arguments.max_train_samples or arguments.max_eval_samples:
        rows = rows.shuffle(seed=0)  # sorted by class, the first rows are of the first ones
    return rows


def _own_task(arguments: ImageDataArguments, rows: DatasetDict | None) -> Task:
    builder = None if rows is None else lambda: rows
    name = arguments.dataset_name
    return images.image_task(checks.OWN_FILES, dataset_name=name, builder=builder)


def _with_columns(task: Task, rows: DatasetDict, arguments: ImageDataArguments) -> Task:
    """The task with the columns that the flags name, or else the only ones of their kind."""
    features = rows[task.train_split].features if task.train_split in rows else {}
    if not features:
        return task

    def chosen(flag: str, usual: str, kind: type) -> str:
        alike = [name for name, feature in features.items() if isinstance(feature, kind)]
        usual_names = [usual, *(alike if len(alike) == 1 else ())]
        return checks.chosen_column(flag, getattr(arguments, flag), usual_names, features)

    image = chosen("image_column_name", task.image_column, datasets.Image)
    label = chosen("label_column_name", task.label_column, ClassLabel)
    return replace(task, image_column=image, label_column=label)


def _with_names(task: Task, rows: DatasetDict, *, streaming: bool) -> Task:
    """The task with the classes that the training rows name; the other splits have no others."""
    column = checks.Column(task.name, task.train_split, rows[task.train_split], task.label_column)
    if streaming and not isinstance(column.feature, ClassLabel):
        # Only all rows together would name the classes.
        raise column.of_wrong_type("datasets' ClassLabel with streaming", "Drop --streaming.")
    known = task.label_names or checks.label_names(column)
    if known is None:
        allowed = "class labels, integers or words"
        raise column.of_wrong_type(allowed, "Give --label_column_name.")
    for name, split in rows.items():
        names = getattr(split.features.get(task.label_column), "names", ())
        if not set(names) <= set(known):
            allowed = f"those of split {task.train_split!r}: {joined(known)}"
            remedy = "Name the classes alike in all splits."
            raise refusal(f"the classes of split {name!r}", Plain(joined(names)), allowed, remedy)
    few = len(known) <= 5  # all of which are among the five best
    kept = tuple(each for each in task.metrics if each.name != images.TOP5.name or not few)
    return replace(task, label_names=tuple(known), metrics=kept)


def _encoded(task: Task, name: str, rows: Dataset) -> Dataset:
    """The rows with their images as they are stored, in the column ``image``."""
    with sources.reading([f"column {task.image_column} of split {name!r}{checks.source(rows)}"]):
        encoded = rows.cast_column(task.image_column, datasets.Image(decode=False))
    names = {task.image_column: "image"} if task.image_column != "image" else {}
    return encoded.rename_columns(names)
