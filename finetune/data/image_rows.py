"""Rows of images: where they come from, which classes they have, and each split's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel, Dataset, DatasetDict
from sklearn.model_selection import train_test_split

from finetune.data import augmentation, image_folders, labels, local, sources, streaming
from finetune.data import rows as row_checks
from finetune.data.wording import Words, listed, reason, refusal
from finetune.settings.images import ImageDataArguments
from tasks import Task
from tasks import image_classification as images

READERS = {".parquet": "parquet"}
ENCODED = datasets.Image(decode=False)
Rows = Mapping[str, Dataset | streaming.Streamed]


def load(arguments: ImageDataArguments, predict: bool) -> tuple[Task, Rows]:
    """The task, whose classes are the data's, and its rows: encoded ``image``, and ``labels``.

    Under ``streaming`` the training rows stay where they are.

    Raises ``ValueError`` if the source, a split or a column is missing, a label is none of the
    training rows', or torchvision is needed and cannot be imported.
    """
    if arguments.needs_torchvision:
        augmentation.transforms()  # before minutes of reading
    stream = streaming.Training(images.TRAIN, predict) if arguments.streaming else None
    task, rows = _read(arguments, stream)
    task = _with_columns(task, rows, arguments)
    row_checks.check_splits(task, rows, [task.train_split])
    if stream is not None:
        _check_names(task, rows)
    task = _with_names(task, rows)
    rows, places = _with_validation(task, rows, arguments.train_val_split)
    found = row_checks.checked(task, rows, arguments, predict)
    encoded = {n: _encoded(task, n, split, places.get(n)) for n, split in found.items()}
    if stream is None:
        return task, encoded
    training = stream.of(task, arguments.max_train_samples, arguments.window)
    return task, encoded | {task.train_split: training}


def _read(arguments: ImageDataArguments, take: sources.Take | None) -> tuple[Task, DatasetDict]:
    """The task, and the rows of its source as they are."""
    if arguments.train_dir is not None:
        rows = image_folders.read(
            {"train": arguments.train_dir, "validation": arguments.validation_dir}
        )
        if arguments.max_train_samples or arguments.max_eval_samples:
            rows = rows.shuffle(seed=0)  # sorted by class, the first rows are of the first ones
        return sources.with_metrics(_own_task(rows), arguments.metric), rows

    if arguments.dataset_name is not None and Path(arguments.dataset_name).is_dir():
        image_folders.refuse_as_data_set(Path(arguments.dataset_name))

    def adapt(task: Task) -> Task:
        config = arguments.dataset_config_name
        return task if config is None else replace(task, dataset_config=config)

    return sources.read(
        arguments,
        images.FAMILY,
        readers=READERS,
        infer=_own_task,
        named=lambda name: images.image_task(labels.OWN_FILES, dataset_name=name),
        adapt=adapt,
        take=take,
    )


def _own_task(rows: DatasetDict) -> Task:
    return images.image_task(labels.OWN_FILES, builder=lambda: rows)


def _with_columns(task: Task, rows: DatasetDict, arguments: ImageDataArguments) -> Task:
    """The task with the columns that the flags name, or that the training rows have."""
    if task.train_split not in rows:
        return task
    features = rows[task.train_split].features
    image, label = arguments.image_column_name, arguments.label_column_name
    if image is None and task.image_column not in features:
        known = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
        image = _only(known, "image_column_name", "images", features)
    if label is None and task.label_column not in features:
        known = [name for name, kind in features.items() if isinstance(kind, ClassLabel)]
        label = _only(known, "label_column_name", "class labels", features)
    return replace(
        task, image_column=image or task.image_column, label_column=label or task.label_column
    )


def _only(known: list[str], argument: str, what: str, features: Mapping[str, Any]) -> str:
    if len(known) == 1:
        return known[0]
    raise refusal(
        argument,
        None,
        f"one of the columns, {listed(features)}; {len(known)} of them are of {what}",
        "Say which one.",
    )


def _with_validation(
    task: Task, rows: DatasetDict, share: float | None
) -> tuple[DatasetDict, dict[str, list[int]]]:
    """The rows; where a share is asked for, the validation split is drawn from the training's.

    Of the splits that are drawn, also where their rows were before.
    """
    name = task.validation_splits[0].name
    if share is None and name not in rows:
        raise refusal(
            "train_val_split",
            None,
            f"a share, since the data have no split {name!r}; they have {listed(rows)}",
            "Give --train_val_split 0.1, or the folder or file to evaluate on.",
        )
    if share is None:
        return rows, {}
    if name in rows:
        allowed = f"None with data that has {name}"
        raise refusal("train_val_split", share, allowed, "Drop the flag.")
    train = rows[task.train_split]
    classes = labels.numbers(task, task.train_split, train, may_hide=False)
    try:
        kept, held = train_test_split(
            range(len(train)), test_size=share, stratify=classes, random_state=0
        )
    except ValueError as error:
        raise refusal(
            "train_val_split",
            share,
            f"a share that leaves rows of each class on both sides of {len(train)}",
            f"scikit-learn said: {reason(error)}",
        ) from None
    places = {task.train_split: sorted(kept), name: sorted(held)}
    parts = {part: train.select(numbers) for part, numbers in places.items()}
    return DatasetDict({**rows, **parts}), places


def _with_names(task: Task, rows: DatasetDict) -> Task:
    """The task with the classes that the training rows name; the other splits have no others.

    Raises ``Refused`` if they do, or if there are fewer than two.
    """
    column = task.label_column
    known = task.label_names or labels.own_names(task.train_split, rows[task.train_split], column)
    if known is None:
        raise refusal(
            f"column {column} of task {task.name}",
            Words(f"of type {rows[task.train_split].features[column]}"),
            "class labels, integers or words",
            "Choose another column: --label_column_name.",
        )
    for name, split in rows.items():
        feature = split.features.get(column)
        own = feature.names if isinstance(feature, ClassLabel) else ()
        if others := [each for each in own if each not in known]:
            raise refusal(
                f"the classes of split {name!r}",
                Words(listed(own)),
                f"those of split {task.train_split!r}: {listed(known)}; {listed(others)} not among "
                "them",
                "Name the classes alike in all splits.",
            )
    few = len(known) <= 5  # all of which are among the five best
    metrics = tuple(each for each in task.metrics if each.name != images.TOP5.name or not few)
    return replace(task, label_names=tuple(known), metrics=metrics)


def _check_names(task: Task, rows: DatasetDict) -> None:
    """Raise ``Refused`` where only all rows together would say which classes there are."""
    feature = rows[task.train_split].features[task.label_column]
    if not isinstance(feature, ClassLabel):
        raise refusal(
            f"streaming, with the column {task.label_column}",
            Words(f"of type {feature}"),
            "with class labels, whose names the data state before their rows are read",
            "Drop --streaming, or write the data with datasets' ClassLabel.",
        )


def _encoded(task: Task, name: str, rows: Dataset, places: Sequence[int] | None) -> Dataset:
    """The rows with their images as they are stored, in the column ``image``.

    Where the rows are others than those of their source, ``places`` are theirs in it.
    """
    column = task.image_column
    try:
        found = rows.cast_column(column, ENCODED)
    except Exception as error:  # of pyarrow, or of a type that has no cast
        raise refusal(
            f"column {column} of split {name!r}",
            Words(f"of type {rows.features[column]}"),
            "a column of images: encoded, as bytes or as paths",
            f"Choose another column: --image_column_name. Reading said: {reason(error)}",
        ) from None
    found = found if column == "image" else found.rename_column(column, "image")
    return found.add_column(local.ROW, list(places or range(len(found)))[: len(found)])
