"""These are images to be classified: CIFAR, MNIST, ImageNet, and scikit-learn's handwritten digits.

The names of the classes are those of the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image

from tasks import Split, Task
from tasks.metrics import ACCURACY, TOP5

FAMILY = "image_classification"
TRAIN = "train"  # the training split, of every data set of images
DIGITS_TRAIN = 1197  # of 1,797 rows, as scikit-learn orders them


def image_task(name: str, image_column: str = "image", **others: Any) -> Task:
    """Return a task of this family, with the metrics that all of them have."""
    return Task(
        name=name,
        family=FAMILY,
        objective="classify",
        image_column=image_column,
        train_split=TRAIN,
        submits_names=True,
        **{"metrics": (ACCURACY, TOP5), "main_metric": ACCURACY.name} | others,
    )


def _tested(name: str, dataset_name: str, image_column: str = "image", **others: Any) -> Task:
    """Return a task whose data have a training and a test split alone; the latter is evaluated."""
    splits = {"validation_splits": (Split("test"),), "test_splits": ()}
    return image_task(name, image_column, dataset_name=dataset_name, **splits, **others)


def digits() -> DatasetDict:
    """Return scikit-learn's 1,797 digits of 8 x 8 grey pixels, written by hand.

    The last third, in the order in which scikit-learn has them, is for validation.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = (found.images * (255 / 16)).round().astype(np.uint8)  # their values are 0 to 16
    features = Features(image=Image(), label=ClassLabel(names=[str(n) for n in range(10)]))
    rows = Dataset.from_dict({"image": list(pixels), "label": found.target}, features=features)
    return DatasetDict(
        train=rows.select(range(DIGITS_TRAIN)),
        validation=rows.select(range(DIGITS_TRAIN, len(rows))),
    )


TASKS = (
    _tested("cifar10", "uoft-cs/cifar10", "img"),
    _tested("cifar100", "uoft-cs/cifar100", "img", label_column="fine_label"),
    _tested("mnist", "ylecun/mnist"),
    _tested("fashion_mnist", "zalando-datasets/fashion_mnist"),
    image_task("imagenet-1k", dataset_name="ILSVRC/imagenet-1k"),
    image_task("imagenet-100", dataset_name="clane9/imagenet-100"),
    image_task("digits", builder=digits, test_splits=()),
)
