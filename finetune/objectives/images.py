"""Classification of images: labels may be smoothed and mixed, and five guesses count too."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from finetune.objectives.base import Batch
from finetune.objectives.labels import Labels
from tasks.metrics import TOP5


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
