"""What the engine asks of an objective: a loss to train on, and a measure of a split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader

from finetune.terminal import track
from tasks import Metric, Split, Task

Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Measured:
    """What one evaluation of a split found.

    Attributes:
        metrics: values by the metrics' names; empty where the split's labels are hidden.
        predictions: of each example, as it was scored; None of objectives that have none.
        references: what should have been predicted; None where it is hidden.
        answers: what is handed in for each example, where that is not what was scored.
        counts: sizes that belong beside the metrics, such as the number of tokens.
    """

    metrics: Mapping[str, float]
    predictions: np.ndarray | None = None
    references: np.ndarray | None = None
    answers: np.ndarray | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def named(self, prefix: str, suffix: str) -> dict[str, float]:
        """Metrics and counts as results have them: ``<prefix>_<name><suffix>``."""
        values = {**self.metrics, **self.counts}
        return {f"{prefix}_{name}{suffix}": value for name, value in values.items()}


class Objective(ABC):
    """One way to train and to measure a model. Batches are tensors by name, rows first.

    Training batches are counted on the CPU (`weight`, `tokens`), before the device has them.

    Attributes:
        task: by what the model is measured.
    """

    task: Task

    @property
    @abstractmethod
    def metrics(self) -> Sequence[Metric]:
        """Every metric that `measure` gives."""

    @abstractmethod
    def weight(self, batch: Batch) -> int:
        """Over how many units (examples, tokens) the batch's loss is a mean; known before it."""

    @abstractmethod
    def measure(
        self, model: nn.Module, loader: DataLoader, split: Split, accelerator: Accelerator
    ) -> Measured:
        """Measure the model on a split, over all processes.

        Rows that were repeated to fill the last batch count once.

        Raises:
            DivergedError: the model's outputs cannot be scored.
        """

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over the batch's units."""
        return model(**batch).loss

    def tokens(self, batch: Batch) -> int:
        """Tokens that are not padding, for the speed that is shown; of other inputs the rows."""
        if "attention_mask" in batch:
            return int(batch["attention_mask"].sum())
        return batch["input_ids"].numel() if "input_ids" in batch else self.weight(batch)

    def facts(self) -> dict[str, Any]:
        """What results must state beside the metrics."""
        return {}


@torch.no_grad()
def answers(
    answer: Callable[[Batch], Tensor],
    loader: DataLoader,
    accelerator: Accelerator,
    description: str,
) -> tuple[Tensor, Tensor | None]:
    """What ``answer`` computes of each example, and the labels if the split has them, on the CPU.

    Both are of all processes, in the order of the split's rows, whichever the loader has read
    first, and without the examples that were repeated to fill the last batch.
    """
    outputs, labels = [], []
    for batch in track(loader, description):
        references = batch.pop("labels", None)
        outputs.append(accelerator.gather_for_metrics(answer(batch)))
        if references is not None:
            labels.append(accelerator.gather_for_metrics(references))
    order = positions(loader)
    return torch.cat(outputs).cpu()[order], torch.cat(labels).cpu()[order] if labels else None


def positions(loader: DataLoader) -> Tensor:
    """The position of each row of the split among those that the loader reads, (rows,)."""
    # Of several processes accelerate's batches are a share of those of the loader.
    batches: Any = getattr(loader.batch_sampler, "batch_sampler", loader.batch_sampler)
    return torch.tensor(list(batches.sampler)).argsort()
