"""The flags that only models of images have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from finetune.errors import refusal
from finetune.settings.flags import FOLDER_PATH, ID_OR_PATH, PATH, at_least, flag
from finetune.settings.groups import SourceArguments, StartArguments

BUFFER = 4000  # rows that streamed ones are drawn from
MOST_STRENGTH = 30  # of torchvision's RandAugment, whose strengths are 0 to 30


@dataclass
class AugmentationArguments(SourceArguments):
    """What is drawn anew for each image and epoch, by torchvision; the labels' smoothing."""

    TITLE: ClassVar[str] = "augmentation of training images"

    random_resized_crop: float | None = flag(
        "Train on a part of each image, drawn anew: at least this share of its area, 0.08 in DeiT."
    )
    horizontal_flip: float | None = flag("Share of training images that are mirrored.")
    rand_augment: int | None = flag(
        "RandAugment: two operations for each training image, of this strength, 0 to 30."
    )
    random_erasing: float | None = flag("Share of training images of which a part is erased.")
    mixup: float | None = flag("Mix training images in pairs: alpha of the Beta distribution.")
    cutmix: float | None = flag(
        "Paste a part of another image: alpha; with mixup, each batch has one of the two."
    )
    label_smoothing: float = flag("Share of each training label that all classes have alike.", 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("random_resized_crop", "horizontal_flip", "random_erasing", "label_smoothing"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise refusal(name, value, "0 to 1", "Give a share.")
        if self.rand_augment is not None and not 0 <= self.rand_augment <= MOST_STRENGTH:
            allowed = f"0 to {MOST_STRENGTH}"
            raise refusal("rand_augment", self.rand_augment, allowed, "Give such a strength.")
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise refusal(name, value, "a number above 0", "Give such a number, or drop it.")

    @property
    def needs_torchvision(self) -> bool:
        """Whether anything is drawn."""
        image = (self.random_resized_crop, self.horizontal_flip, self.rand_augment)
        return any(x is not None for x in (*image, self.random_erasing, self.mixup, self.cutmix))


@dataclass
class ImageDataArguments(AugmentationArguments):
    """The images, their labels, and how they are read."""

    TITLE: ClassVar[str] = "images"

    train_file: str | None = flag("Own parquet file to train on.", path=PATH)
    train_dir: str | None = flag(
        "Own folder to train on, with a folder of images for each class.", path=FOLDER_PATH
    )
    validation_dir: str | None = flag("Own folder to evaluate on, as train_dir.", path=FOLDER_PATH)
    train_val_split: float | None = flag(
        "Where there is no validation split: this share of the training rows of each class, the "
        "same for every seed."
    )
    dataset_config_name: str | None = flag("Which configuration of the data, not the task's.")
    image_column_name: str | None = flag("Column with the images, where it is not the only one.")
    label_column_name: str | None = flag("Column with the labels, where it is not label.")
    streaming: bool = flag(
        "Read training images where they lie, when they are needed: parquet files on a hub or "
        "here. Other splits are read whole.",
        False,
    )
    shuffle_buffer_size: int | None = flag(
        "[streaming] Training rows are drawn from so many at a time, which are kept in memory; "
        f"default: {BUFFER}."
    )
    dataloader_num_workers: int = flag("Processes that read images; 0: the run's.", 0, free=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "dataloader_num_workers")
        at_least(self, 1, "shuffle_buffer_size")
        share = self.train_val_split
        if share is not None and not 0 < share < 1:
            raise refusal("train_val_split", share, "above 0 and below 1", "Give a share.")
        if self.shuffle_buffer_size is not None and not self.streaming:
            raise refusal(
                "shuffle_buffer_size",
                self.shuffle_buffer_size,
                "with streaming only, since other rows are drawn from all",
                "Drop the flag, or give --streaming.",
            )
        own = {"train_dir": self.train_dir, "train_val_split": share}
        for name, value in own.items() if self.streaming else ():
            if value is not None:
                remedy = (
                    "Drop --streaming: images of a folder are read when they are needed anyway."
                    if name == "train_dir"
                    else "Hold rows out in a validation split of their own."
                )
                raise refusal(name, value, "None with streaming", remedy)
        sources = ("task_name", "dataset_name", "train_file", "validation_file", "test_file")
        others = {name: x for name in sources if (x := getattr(self, name)) is not None}
        if self.train_dir is None and self.validation_dir is not None:
            raise refusal(
                "train_dir", None, "a folder beside validation_dir", "Name the folder to train on."
            )
        if self.train_dir is not None and others:
            raise refusal(
                ", ".join(others), others, "none beside train_dir", "Drop one of the two sources."
            )

    @property
    def window(self) -> int:
        """From how many rows streamed ones are drawn at a time."""
        return self.shuffle_buffer_size or BUFFER


@dataclass
class ImageModelArguments(StartArguments):
    """Where the model comes from, and what makes its inputs."""

    image_processor_name: str | None = flag(
        "Image processor, where it is not the model's own.", path=ID_OR_PATH
    )
    ignore_mismatched_sizes: bool = flag(
        "Replace a head that has other labels by a new one.", False
    )
