"""What depends on the objective: how a batch's loss is weighed, and how the model is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate.utils import tqdm
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from finetune.engine import DivergedError, Trainer
from finetune.outputs import write_evaluated, write_split
from tasks import Split, Task

Batch = Mapping[str, Tensor]


class Objective:
    """What the engine asks of an objective. Batches are tensors by name, rows first."""

    predicts: ClassVar[bool] = True  # whether `evaluate` writes a prediction an example

    def weight(self, batch: Batch) -> int:
        """Over how many units (examples, tokens) the batch's loss is a mean; known before it."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over those units."""
        return model(**batch).loss

    def evaluate(self, trainer: Trainer) -> dict[str, float]:
        """Metrics of the validation splits, as ``eval_<metric><suffix>``."""
        raise NotImplementedError

    def predict(self, trainer: Trainer, folder: Path) -> dict[str, float]:
        """Write the test splits' predictions into the folder; ``test_<metric>`` where known."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """What results must state beside the metrics."""
        return {}


@dataclass(frozen=True)
class Labels(Objective):
    """A head that chooses a label or gives a score.

    ``label_order[i]`` is the model's number of the task's label i; empty for scores.
    """

    label_order: Sequence[int] = field(default=())

    def weight(self, batch: Batch) -> int:
        """Its examples."""
        return len(batch["labels"])

    def evaluate(self, trainer: Trainer) -> dict[str, float]:
        """Loss and the task's metrics on every validation split, as ``eval_<metric><suffix>``."""
        found = {}
        for split in trainer.task.validation_splits:
            loader = trainer.validation[split.name]
            logits, labels = self.outputs(trainer, loader, f"Evaluating {split.name}")
            found |= _named("eval", split, score(trainer.task, logits, labels))
            predicted = predictions(trainer.task, logits)
            write_evaluated(split, predicted, labels.numpy(), trainer)
        return found

    def predict(self, trainer: Trainer, folder: Path) -> dict[str, float]:
        """One file a test split; of splits whose labels are not hidden also ``test_<metric>``."""
        found = {}
        for split in trainer.task.test_splits:
            loader = trainer.test[split.name]
            logits, labels = self.outputs(trainer, loader, f"Predicting {split.name}")
            if trainer.accelerator.is_main_process:
                write_split(trainer.task, split, predictions(trainer.task, logits), folder)
            if labels is not None:
                found |= _named("test", split, score(trainer.task, logits, labels))
        return found

    def outputs(
        self, trainer: Trainer, loader: DataLoader, description: str
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (examples, labels) in float32, and labels if the split has them, on the CPU.

        Both are in the task's numbering of labels, of all processes, without the examples that
        were repeated to fill the last batch.
        """
        trainer.model.eval()
        gather = trainer.accelerator.gather_for_metrics
        logits, labels = [], []
        for batch in tqdm(loader, desc=description, leave=False):
            references = batch.pop("labels", None)
            with torch.no_grad():
                outputs = trainer.model(**batch)
            logits.append(gather(outputs.logits.float()).cpu())
            if references is not None:
                labels.append(gather(references).cpu())
        all_labels = torch.cat(labels) if labels else None
        return self._in_task_order(torch.cat(logits), all_labels)

    def _in_task_order(self, logits: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if not self.label_order:
            return logits, labels
        order = torch.tensor(self.label_order)
        return logits[:, order], None if labels is None else torch.argsort(order)[labels]


def score(task: Task, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """``loss``, the mean over the examples, and the task's metrics."""
    if task.objective == "regress":
        loss = functional.mse_loss(logits.squeeze(-1), labels.float())
    else:
        loss = functional.cross_entropy(logits, labels)
    return {"loss": float(loss)} | task.metrics(predictions(task, logits), labels.numpy())


def predictions(task: Task, logits: Tensor) -> np.ndarray:
    """The predicted label's number, or the score, of each example; of shape (examples,)."""
    if task.objective == "regress":
        return logits.squeeze(-1).numpy()
    # argmax calls NaN the largest: say so instead of predicting it.
    if not bool(torch.isfinite(logits).all()):
        raise DivergedError("The model's logits are NaN or infinite. Lower learning_rate.")
    return logits.argmax(-1).numpy()


def _named(prefix: str, split: Split, scores: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}{split.key_suffix}": value for name, value in scores.items()}
