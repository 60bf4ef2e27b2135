"""Rows to batches: tokenised, cut, padded, in the loaders that every script gives the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator
from accelerate.logging import get_logger
from datasets import Dataset, DatasetDict
from torch.utils.data import DataLoader, Sampler
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase, default_data_collator

from finetune.data import local, orders
from finetune.data.literal import literal
from finetune.errors import refusal
from finetune.settings.groups import DataArguments
from finetune.settings.training import TrainArguments
from tasks import Split, Task

logger = get_logger(__name__)
LOOKED_AT = 100  # rows for an example


@dataclass(frozen=True)
class Loaders:
    """Batches to train on, and of each split to evaluate or predict, by the split's name.

    ``train_rows`` are those of an epoch; ``origin`` says of each split where its rows come from
    (`finetune.data.local.origin`). ``example`` is a row's input to evaluate on, before anything was
    made of it, as the library's cards take it; of a language model tokens, which begin a text.
    """

    train: DataLoader
    train_rows: int
    validation: dict[str, DataLoader]
    test: dict[str, DataLoader]
    origin: dict[str, Any]
    example: Any = None


def of_splits(
    task: Task,
    datasets: Mapping[str, Any],
    origin: dict[str, Any],
    train: TrainArguments,
    collate: Callable[..., Any] | None,
    collate_evaluation: Callable[..., Any] | None = None,
    sampler: Sampler[Any] | None = None,
    order: Mapping[str, Sequence[int]] | None = None,
    workers: int = 0,
    example: Any = None,
) -> Loaders:
    """A loader of the training split, shuffled, and one of each other split.

    Args:
        task: says which split is for what.
        datasets: each split's rows as model inputs, by its name.
        origin: where they come from.
        train: batch sizes.
        collate: rows to a batch; None is torch's own.
        collate_evaluation: the same for the other splits; None is as for training.
        sampler: draws the training rows instead; of the seed and the epoch.
        order: of the rows of each other split; None is as they are. `objectives.base.answers` puts
            what is found back into the rows' own.
        workers: processes that read the rows; 0: the run's own.
        example: an input (`Loaders`).
    """

    def evaluated(splits: Iterable[Split]) -> dict[str, DataLoader]:
        size, how = train.per_device_eval_batch_size, collate_evaluation or collate
        return {
            name: DataLoader(
                datasets[name],
                size,
                sampler=order[name] if order else None,
                collate_fn=how,
                num_workers=workers,
            )
            for name in (split.name for split in splits)
            if name in datasets
        }

    return Loaders(
        DataLoader(
            datasets[task.train_split],
            shuffle=sampler is None,
            sampler=sampler,
            batch_size=train.per_device_train_batch_size,
            collate_fn=collate,
            num_workers=workers,
        ),
        len(datasets[task.train_split]),
        evaluated(task.validation_splits),
        evaluated(task.test_splits),
        origin,
        example,
    )


def text_loaders(
    task: Task,
    rows: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    label_order: Sequence[int],
    arguments: DataArguments,
    train: TrainArguments,
    accelerator: Accelerator,
) -> Loaders:
    """Tokenised batches of every split, of like lengths where nothing depends on the order.

    ``label_order[i]`` is the model's number of label i.
    """
    with accelerator.main_process_first():
        tokens = {
            name: tokenise(task, split, tokenizer, label_order, arguments)
            for name, split in rows.items()
        }
    # Tensor cores want multiples of 8; without half precision the padding would be waste.
    multiple = None if accelerator.mixed_precision == "no" else 8
    collate: Any = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple)
    if arguments.pad_to_max_length:
        collate = default_data_collator
    lengths = {name: orders.lengths(split) for name, split in tokens.items()}
    sampler = None
    if arguments.group_by_length:
        batches = train.gradient_accumulation_steps * accelerator.num_processes
        sampler = orders.ByLength(
            lengths[task.train_split], batches * train.per_device_train_batch_size
        )
    order = {name: orders.longest_first(found) for name, found in lengths.items()}
    origin = local.origin(rows, classes=task.label_names)
    example = short_example(task, rows)
    return of_splits(
        task, tokens, origin, train, collate, sampler=sampler, order=order, example=example
    )


def short_example(task: Task, rows: DatasetDict) -> tuple[str, ...] | None:
    """The texts of the shortest of the first rows to evaluate on that has all of them."""
    split = rows[task.validation_splits[0].name][:LOOKED_AT]
    found = zip(*(split[column] for column in task.text_columns), strict=True)
    return min(filter(all, found), key=lambda texts: len("".join(texts)), default=None)


def tokenise(
    task: Task,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    label_order: Sequence[int],
    arguments: DataArguments,
) -> Dataset:
    """Model inputs of each row, and ``labels`` unless the split hides them."""
    max_length = min(arguments.max_length, tokenizer.model_max_length)
    if max_length < arguments.max_length:
        logger.warning(
            f"max_length is {arguments.max_length}; the tokenizer's own limit {max_length} is used."
        )
    marks = tokenizer.num_special_tokens_to_add(pair=len(task.text_columns) > 1)
    if max_length <= marks:
        raise refusal(
            "max_length",
            max_length,
            f"{marks + 1} or more with this tokenizer, which puts {marks} tokens of its own into "
            "each input",
            "Give a greater number.",
        )
    padding = "max_length" if arguments.pad_to_max_length else False

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        texts = [batch[column] for column in task.text_columns]
        if task.verbatim:
            texts = [literal(column, tokenizer) for column in texts]
        encoded = tokenizer(*texts, padding=padding, max_length=max_length, truncation=True)
        if "labels" not in batch:
            return dict(encoded)
        labels = batch["labels"]
        return {**encoded, "labels": [label_order[x] for x in labels] if label_order else labels}

    return rows.map(encode, batched=True, remove_columns=rows.column_names, desc="Tokenising")
