"""The flags that only models of images have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from finetune.errors import refusal
from finetune.settings.flags import FOLDER_PATH, ID_OR_PATH, PATH, at_least, flag, only, shares
from finetune.settings.groups import SourceArguments, StartArguments

BUFFER = 4000  # rows that streamed ones are drawn from
MOST_STRENGTH = 30  # of torchvision's RandAugment, whose strengths are 0 to 30


@dataclass
class AugmentationArguments(SourceArguments):
    """What is drawn anew for each image and epoch, by torchvision; the labels' smoothing."""

    TITLE: ClassVar[str] = "augmentation of training images"

    random_resized_crop: float | None = flag("Least share of an image's area to train on: 0.08.")
    horizontal_flip: float | None = flag("Share of training images that are mirrored.")
    rand_augment: int | None = flag("RandAugment: two operations of this strength, 0 to 30.")
    random_erasing: float | None = flag("Share of training images of which a part is erased.")
    mixup: float | None = flag("Mix images in pairs: alpha of the Beta distribution.")
    cutmix: float | None = flag("Paste a part of another: alpha; with mixup, one of the two.")
    label_smoothing: float = flag("Share of a label that all classes have alike.", 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        shares(self, "random_resized_crop", "horizontal_flip", "random_erasing", "label_smoothing")
        shares(self, "rand_augment", scale=MOST_STRENGTH)
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

    train_file: str | None = flag("Own parquet file to train on.", metavar=PATH)
    train_dir: str | None = flag("Own folder, of one for each class.", metavar=FOLDER_PATH)
    validation_dir: str | None = flag("Own folder to evaluate on.", metavar=FOLDER_PATH)
    train_val_split: float | None = flag(
        "Without a validation split: share of each class's training rows, the same for any seed."
    )
    dataset_config_name: str | None = flag(rare=True)
    image_column_name: str | None = flag("Column with the images, if it is not the only one.")
    label_column_name: str | None = flag("Column with the labels, if it is not label.")
    streaming: bool = flag("Read training images of parquet files when they are needed.", False)
    shuffle_buffer_size: int | None = flag(f"[streaming] Rows drawn from; default: {BUFFER}.")
    dataloader_num_workers: int = flag("Processes that read images.", 0, free=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "dataloader_num_workers")
        at_least(self, 1, "shuffle_buffer_size")
        shares(self, "train_val_split", is_open=True)
        only(self, "with streaming only", self.streaming, "shuffle_buffer_size")
        only(self, "None with streaming", not self.streaming, "train_dir", "train_val_split")
        only(self, "beside train_dir only", self.train_dir is not None, "validation_dir")
        others = ("task_name", "dataset_name", "train_file", "validation_file", "test_file")
        only(self, "none beside train_dir", self.train_dir is None, *others)

    @property
    def window(self) -> int:
        """From how many rows streamed ones are drawn at a time."""
        return self.shuffle_buffer_size or BUFFER


@dataclass
class ImageModelArguments(StartArguments):
    """Where the model comes from, and what makes its inputs."""

    image_processor_name: str | None = flag("Another than the model's.", metavar=ID_OR_PATH)
    ignore_mismatched_sizes: bool = flag(default=False, rare=True)  # replace such a head
