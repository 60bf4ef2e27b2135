"""Rows to batches: tokenised, in some order, in the loaders that scripts give the engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow.compute as pc
import torch
from accelerate.logging import get_logger
from accelerate.state import AcceleratorState, PartialState
from datasets import Dataset, DatasetDict
from torch.utils.data import DataLoader, Sampler
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase, default_data_collator
from transformers.trainer_pt_utils import LengthGroupedSampler

from finetune.data import sources
from finetune.errors import refusal
from finetune.settings.groups import DataArguments
from finetune.settings.schema import Run
from finetune.settings.training import TrainArguments
from tasks import Split, Task

logger = get_logger(__name__)
IGNORED = -100  # a label that is not scored
Index = TypeVar("Index", int, slice, tuple[int, int])


@dataclass(frozen=True)
class Loaders:
    """Batches to train on, and of each split to evaluate or predict, by the split's name.

    Attributes:
        train: of the training split.
        train_rows: of an epoch.
        validation: of each split to evaluate on.
        test: of each split to predict.
        origin: describes each split's rows (`finetune.data.sources.origin`).
        example: a row's input to evaluate on, before anything was made of it, as the library's
            cards take it; of a language model tokens, which begin a text.
    """

    train: DataLoader
    train_rows: int
    validation: dict[str, DataLoader]
    test: dict[str, DataLoader]
    origin: dict[str, Any]
    example: Any = None


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How rows are put into batches.

    Attributes:
        collate: makes a batch of rows; None is torch's own.
        collate_evaluation: the same for the other splits; None is as for training.
        sampler: draws the training rows, of the seed and the epoch; None shuffles them.
        order: of the rows of each other split; None is as they are. `objectives.base.answers` puts
            the predictions back into the rows' own.
        workers: processes that read the rows; 0: the run's own.
    """

    collate: Callable[..., Any] | None = None
    collate_evaluation: Callable[..., Any] | None = None
    sampler: Sampler[Any] | None = None
    order: Mapping[str, Sequence[int]] | None = None
    workers: int = 0


class Drawn(Sampler[Index]):
    """Drawn anew in each epoch, from torch's seed and the epoch alone, as by every process."""

    def __init__(self) -> None:
        self.seed, self.epoch = torch.initial_seed(), 0

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate's loader before it reads an epoch."""
        self.epoch = epoch

    def generator(self) -> torch.Generator:
        """A new one, that of the epoch."""
        return torch.Generator().manual_seed(self.seed + self.epoch)


class ByLength(Drawn[int]):
    """Rows in random order, but in batches of like lengths; the longest row is in the first.

    The rows are drawn, and of each 50 updates' rows (fewer of a small data set) the longest come
    first: `LengthGroupedSampler` of transformers, as its Trainer has it. Updates of the same rows
    are the same however many processes share them.
    """

    def __init__(self, lengths: list[int], rows_per_update: int) -> None:
        super().__init__()
        self.lengths, self.rows_per_update = lengths, rows_per_update

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        size, generator = self.rows_per_update, self.generator()
        return iter(LengthGroupedSampler(size, lengths=self.lengths, generator=generator))


def by_length(
    settings: Run[Any, Any], task: Task, lengths: Mapping[str, list[int]]
) -> tuple[ByLength | None, dict[str, list[int]]]:
    """The sampler of the training rows, if they are grouped, and the order of each split's rows.

    The longest rows are evaluated first; rows of one length stay in order.
    """
    train, processes = settings.train, AcceleratorState().num_processes
    size = train.gradient_accumulation_steps * processes * train.per_device_train_batch_size
    order = {n: np.argsort(np.negative(x), kind="stable").tolist() for n, x in lengths.items()}
    grouped = ByLength(lengths[task.train_split], size) if settings.data.group_by_length else None
    return grouped, order


def lengths_of(rows: Dataset) -> list[int]:
    """How many tokens each row has."""
    table = rows.select_columns(["input_ids"]).with_format("arrow")[:]
    return pc.list_value_length(table["input_ids"]).to_pylist()


def of_splits(
    task: Task,
    rows: Mapping[str, Any],
    how: Batching,
    train: TrainArguments,
    described: tuple[dict[str, Any], Any],
) -> Loaders:
    """A loader of the training split, and one of each other split.

    Args:
        task: names the splits.
        rows: each split's rows as model inputs, by its name.
        how: they are put into batches.
        train: batch sizes.
        described: the origin and the example of `Loaders`.
    """

    def evaluated(splits: Iterable[Split]) -> dict[str, DataLoader]:
        return {
            name: DataLoader(
                rows[name],
                train.per_device_eval_batch_size,
                sampler=how.order[name] if how.order else None,
                collate_fn=how.collate_evaluation or how.collate,
                num_workers=how.workers,
            )
            for name in (split.name for split in splits)
            if name in rows
        }

    training = DataLoader(
        rows[task.train_split],
        shuffle=how.sampler is None,
        sampler=how.sampler,
        batch_size=train.per_device_train_batch_size,
        collate_fn=how.collate,
        num_workers=how.workers,
    )
    others = evaluated(task.validation_splits), evaluated(task.test_splits)
    return Loaders(training, len(rows[task.train_split]), *others, *described)


def text_loaders(
    settings: Run[Any, Any],
    task: Task,
    rows: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    label_order: Sequence[int],
) -> Loaders:
    """Tokenised batches of every split, of like lengths where nothing depends on the order.

    ``label_order[i]`` is the model's number of label i.
    """
    arguments = settings.data
    with PartialState().main_process_first():
        tokens = {
            name: tokenise(task, split, tokenizer, label_order, arguments)
            for name, split in rows.items()
        }
    # Tensor cores want multiples of 8; without half precision the padding would be waste.
    multiple = None if AcceleratorState().mixed_precision == "no" else 8
    collate: Any = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple)
    if arguments.pad_to_max_length:
        collate = default_data_collator
    lengths = {name: lengths_of(split) for name, split in tokens.items()}
    sampler, order = by_length(settings, task, lengths)
    first = rows[task.validation_splits[0].name][0]
    example = tuple(first[column] for column in task.text_columns)
    described = sources.origin(rows, classes=task.label_names), example
    how = Batching(collate=collate, sampler=sampler, order=order)
    return of_splits(task, tokens, how, settings.train, described)


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
        allowed = f"{marks + 1} or more: this tokenizer puts {marks} own tokens into each input"
        raise refusal("max_length", max_length, allowed, "Give a greater number.")
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


def literal(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The texts with a space inside each special token's spelling: ``</s>`` becomes ``< /s>``.

    A function that parses `</s>` must not end its own sequence there: T5's and BART's
    classification reads the hidden state of the end token, and refuses a batch whose rows hold
    different numbers. ``split_special_tokens=True`` does not do: a unigram vocabulary, T5's or
    PLBART's, holds the special tokens as ordinary pieces and finds them in the text all the same.
    """
    spellings = {str(token) for token in tokenizer.all_special_tokens}
    spellings |= {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special}
    # The longest first: `<s>` may begin another one. A single character cannot be parted.
    parted = sorted((s for s in spellings if len(s) > 1), key=len, reverse=True)
    if not parted:
        return list(texts)
    pattern = re.compile("|".join(map(re.escape, parted)))
    return [pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text) for text in texts]
