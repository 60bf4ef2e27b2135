"""Language modelling as an objective of the engine: weighed by tokens, scored by perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.utils.data import DataLoader

from finetune.engine import DivergedError, Trainer
from finetune.lm_data import Text
from finetune.lm_evaluation import measure
from finetune.lm_windows import Blocks
from finetune.objectives import Batch, Objective
from tasks import Split


@dataclass(frozen=True)
class LanguageModelling(Objective):
    """Predict the next token, in one text of each split.

    Attributes:
        texts: each split's tokens and words, by its name.
        blocks: what is trained on.
        block_size: tokens of a block, and of a context in evaluation.
        stride: tokens between contexts; None is the protocol of blocks.
    """

    predicts: ClassVar[bool] = False

    texts: dict[str, Text]
    blocks: Blocks
    block_size: int
    stride: int | None

    def weight(self, batch: Batch) -> int:
        """Predicted tokens of a training batch: of each block all but the first."""
        return batch["labels"][:, 1:].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Nats a predicted token; no cache is built for tokens that nobody generates."""
        return model(**batch, use_cache=False).loss

    def evaluate(self, trainer: Trainer) -> dict[str, float]:
        """Perplexities of the validation splits, as ``eval_<name><suffix>``."""
        return self._measure(trainer, trainer.task.validation_splits, trainer.validation, "eval")

    def predict(self, trainer: Trainer, folder: Path) -> dict[str, float]:
        """Perplexities of the test splits, as ``test_<name><suffix>``; no file is written."""
        return self._measure(trainer, trainer.task.test_splits, trainer.test, "test")

    def facts(self) -> dict[str, Any]:
        """What results must state: the protocol, and what of the training text is used."""
        return {
            "eval_protocol": "block" if self.stride is None else "sliding",
            "block_size": self.block_size,
            "stride": self.stride,
            "train_blocks": len(self.blocks),
            "train_left_over_tokens": self.blocks.left_over,
        }

    def _measure(
        self, trainer: Trainer, splits: Iterable[Split], loaders: dict[str, DataLoader], prefix: str
    ) -> dict[str, float]:
        found = {}
        for split in splits:
            text, loader = self.texts[split.name], loaders[split.name]
            measured = measure(
                trainer.model, loader, text, trainer.accelerator, f"Evaluating {split.name}"
            )
            if math.isnan(measured["loss"]):
                raise DivergedError("The model's logits are NaN or infinite. Lower learning_rate.")
            found |= {f"{prefix}_{name}{split.key_suffix}": x for name, x in measured.items()}
        return found
