"""In which order rows are read: each epoch's own, or rows of like lengths together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler

from finetune.data import columns

Index = TypeVar("Index", int, slice, tuple[int, int])


class Drawn(Sampler[Index]):
    """Drawn anew in each epoch, from torch's seed and the epoch alone, as by every process."""

    def __init__(self) -> None:
        self.seed, self.epoch = torch.initial_seed(), 0

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate's loader before it reads an epoch."""
        self.epoch = epoch

    def drawing(self) -> torch.Generator:
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
        size, generator = self.rows_per_update, self.drawing()
        return iter(LengthGroupedSampler(size, lengths=self.lengths, generator=generator))


class Numbered(Drawn[tuple[int, int]]):
    """Rows in random order, each with a number that decides what is drawn for it in this epoch."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[tuple[int, int]]:
        generator = self.drawing()
        order = torch.randperm(self.rows, generator=generator)
        numbers = torch.randint(2**62, (self.rows,), generator=generator)
        return iter(zip(order.tolist(), numbers.tolist(), strict=True))


def longest_first(lengths: Sequence[int]) -> list[int]:
    """The rows' numbers by falling length; rows of one length stay in order."""
    return np.argsort(np.negative(lengths), kind="stable").tolist()


def lengths(rows: Dataset) -> list[int]:
    """How many tokens each row has."""
    return pc.list_value_length(columns.of(rows, "input_ids")).to_pylist()
