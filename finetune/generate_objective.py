"""Generated labels as an objective of the engine: trained on the label's word, scored by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import tqdm
from torch import Tensor

from finetune.engine import Trainer
from finetune.label_words import IGNORED, UNKNOWN, LabelWords, as_wrong
from finetune.objectives import Objective
from finetune.outputs import write_evaluated, write_split
from tasks import Split


@dataclass(frozen=True)
class GeneratedLabels(Objective):
    """Labels that a decoder writes."""

    words: LabelWords

    def facts(self) -> dict[str, Any]:
        """The words that were to be written."""
        return {"label_words": list(self.words.words)}

    def loss(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean cross-entropy over the tokens of a training batch's label words."""
        return self.words.loss(model, batch)

    def weight(self, batch: Mapping[str, Tensor]) -> int:
        """Over how many tokens that mean is."""
        return int((self.words.targets(batch["labels"]) != IGNORED).sum())

    def evaluate(self, trainer: Trainer) -> dict[str, float]:
        """The task's metrics on the validation splits, as ``eval_<metric><suffix>``.

        Beside them ``eval_unknown``: the share of texts that are no label's word.
        """
        found = {}
        for split in trainer.task.validation_splits:
            predicted, labels = self._written(trainer, trainer.validation[split.name], split)
            if labels is not None:
                found |= self._scores(trainer, split, predicted, labels, "eval")
                known = as_wrong(predicted, labels, len(self.words.words))
                write_evaluated(split, known.numpy(), labels.numpy(), trainer)
        return found

    def predict(self, trainer: Trainer, folder: Path) -> dict[str, float]:
        """One file a test split, -1 for unknown texts; of known labels also ``test_<metric>``."""
        found = {}
        for split in trainer.task.test_splits:
            predicted, labels = self._written(trainer, trainer.test[split.name], split)
            if trainer.accelerator.is_main_process:
                write_split(trainer.task, split, predicted.numpy(), folder)
            if labels is not None:
                found |= self._scores(trainer, split, predicted, labels, "test")
        return found

    def _scores(
        self, trainer: Trainer, split: Split, predicted: Tensor, labels: Tensor, prefix: str
    ) -> dict[str, float]:
        known = as_wrong(predicted, labels, len(self.words.words))
        scores = trainer.task.metrics(known.numpy(), labels.numpy())
        scores |= {"unknown": float((predicted == UNKNOWN).double().mean())}
        return {f"{prefix}_{name}{split.key_suffix}": value for name, value in scores.items()}

    def _written(self, trainer: Trainer, loader: Any, split: Split) -> tuple[Tensor, Tensor | None]:
        """Numbers of the written labels, and the labels if they are known, both (examples,)."""
        accelerator = trainer.accelerator
        model = accelerator.unwrap_model(trainer.model).eval()
        written, labels = [], []
        for batch in tqdm(loader, desc=f"Generating {split.name}", leave=False):
            references = batch.pop("labels", None)
            numbers = self.words.write(model, batch)
            written.append(accelerator.gather_for_metrics(numbers).cpu())
            if references is not None:
                labels.append(accelerator.gather_for_metrics(references).cpu())
        return torch.cat(written), torch.cat(labels) if labels else None
