"""The training batches, in portions of one update, from any position of any epoch on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import skip_first_batches
from torch import Tensor

from finetune.settings.training import TrainArguments


@dataclass(frozen=True)
class Portion:
    """A process's batch, on the CPU; ``counts`` is false where all its rows are another's."""

    batch: dict[str, Tensor]
    counts: bool


class Updates:
    """The batches of each update of an epoch, in the epoch's own order.

    Args:
        loader: as accelerate prepares it.
        accelerator: of the run.
        rows: of an epoch.
        train: the sizes of a batch and of an update.
    """

    def __init__(
        self, loader: Any, accelerator: Accelerator, rows: int, train: TrainArguments
    ) -> None:
        self.loader, self.accelerator, self.rows = loader, accelerator, rows
        # What is read of a batch before the model has it would wait for the device.
        self.loader.device = None
        self.batch_size = train.per_device_train_batch_size
        self.accumulation = train.gradient_accumulation_steps
        # The prepared loader's length is that of one process, as the schedule needs it.
        self.batches = len(loader)

    def read(self, epoch: int, done: int) -> Iterator[list[Portion]]:
        """What is left of the epoch after so many batches, an update at a time."""
        if done >= self.batches:
            return
        # Without it every epoch would have the first one's order.
        self.loader.set_epoch(epoch)
        batches = iter(skip_first_batches(self.loader, done) if done else self.loader)
        # To begin reading draws from torch's random state, which a resumed run must not notice.
        with torch.random.fork_rng(devices=[]):
            first = next(batches)
        numbered = enumerate(itertools.chain([first], batches), start=done)
        while window := list(itertools.islice(numbered, self.accumulation)):
            yield [self._portion(number, batch) for number, batch in window]

    def samples(self, steps: int) -> int:
        """How many rows so many updates train on, over all processes."""
        epochs, left = divmod(steps, math.ceil(self.batches / self.accumulation))
        batches = left * self.accumulation * self.accelerator.num_processes
        return epochs * self.rows + min(batches * self.batch_size, self.rows)

    def _portion(self, number: int, batch: dict[str, Tensor]) -> Portion:
        """The batch without the rows that were repeated to give each process as many."""
        accelerator = self.accelerator
        before = number * accelerator.num_processes + accelerator.process_index
        left = max(self.rows - before * self.batch_size, 0)
        # Where there is none, one row keeps the processes in step, with the weight 0.
        return Portion({name: value[: max(left, 1)] for name, value in batch.items()}, left > 0)


def plan(batches: int, train: TrainArguments) -> tuple[int, int, int]:
    """Number of epochs, updates and warm-up updates for so many batches an epoch and process.

    The last update of an epoch may hold fewer than ``gradient_accumulation_steps`` batches.
    """
    an_epoch = math.ceil(batches / train.gradient_accumulation_steps)
    steps = train.max_train_steps or train.num_train_epochs * an_epoch
    warm_up = train.num_warmup_steps or math.ceil(train.warmup_ratio * steps)
    return math.ceil(steps / an_epoch), steps, warm_up
