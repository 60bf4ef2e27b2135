"""Classification and regression: a head that chooses a label, or gives a score.

Labels of images may be smoothed and mixed, and five guesses count too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from finetune.errors import diverged_logits
from finetune.objectives.base import Batch, Measured, Objective, answers
from tasks import Metric, Split, Task
from tasks.metrics import LOSS, TOP5, scores


@dataclass(frozen=True)
class Labels(Objective):
    """A head that chooses a label or gives a score.

    Attributes:
        task: says which, and by what it is measured.
        label_order: ``label_order[i]`` is the model's number of the task's label i; empty for
            scores.
    """

    task: Task
    label_order: Sequence[int] = ()

    @property
    def metrics(self) -> Sequence[Metric]:
        """The loss and the task's metrics."""
        return (LOSS, *self.task.metrics)

    def weight(self, batch: Batch) -> int:
        """The batch's examples."""
        return len(batch["labels"])

    def measure(
        self, model: nn.Module, loader: DataLoader, split: Split, accelerator: Accelerator
    ) -> Measured:
        """Loss and the task's metrics, and each example's label or score."""
        logits, labels = self.outputs(model, loader, accelerator, f"Evaluating {split.name}")
        predicted = predictions(self.task, logits)
        if labels is None:
            return Measured({}, predicted)
        references = labels.numpy()
        metrics = self.of_logits(logits, labels)
        metrics |= scores(self.task.metrics, predicted, references)
        return Measured(metrics, predicted, references)

    def outputs(
        self, model: nn.Module, loader: DataLoader, accelerator: Accelerator, description: str
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (examples, labels) in float32, and labels if the split has them, on the CPU.

        Both are in the task's numbering of labels; of which examples, `answers` says.
        """
        model.eval()
        logits, labels = answers(
            lambda batch: model(**batch).logits.float(), loader, accelerator, description
        )
        if not self.label_order:
            return logits, labels
        order = torch.tensor(self.label_order)
        return logits[:, order], None if labels is None else torch.argsort(order)[labels]

    def of_logits(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        """What is measured of the logits: the mean loss over the examples."""
        if self.task.objective == "regress":
            return {"loss": float(functional.mse_loss(logits.squeeze(-1), labels.float()))}
        return {"loss": float(functional.cross_entropy(logits, labels))}


@dataclass(frozen=True)
class ImageLabels(Labels):
    """A head that chooses the class of an image.

    Attributes:
        smoothing: the share of each training label that all classes have alike.
    """

    smoothing: float = 0.0

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean cross-entropy to the labels: classes, (examples,), or shares of each class."""
        logits = model(pixel_values=batch["pixel_values"]).logits
        return functional.cross_entropy(logits, batch["labels"], label_smoothing=self.smoothing)

    def of_logits(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        """The loss, without smoothing, and top-5 accuracy where the task has it."""
        metrics = super().of_logits(logits, labels)
        if TOP5 in self.task.metrics:
            best = logits.topk(5).indices
            metrics[TOP5.name] = float((best == labels[:, None]).any(-1).float().mean())
        return metrics


def predictions(task: Task, logits: Tensor) -> np.ndarray:
    """The predicted label's number, or the score, of each example; of shape (examples,)."""
    if task.objective == "regress":
        return logits.squeeze(-1).numpy()
    # argmax calls NaN the largest: say so instead of predicting it.
    if not bool(torch.isfinite(logits).all()):
        raise diverged_logits()
    return logits.argmax(-1).numpy()
