"""Connectionist temporal classification: of each frame a character or the blank, then error rates.

What a recording says is the likeliest character of each frame, without repetitions and blanks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from finetune.errors import diverged_logits
from finetune.models import speech
from finetune.objectives.base import Batch, Measured, Objective, positions
from finetune.terminal import track
from tasks import Metric, Split, Task
from tasks.metrics import LOSS, scores


@dataclass(frozen=True)
class CTC(Objective):
    """Transcripts of recordings.

    Attributes:
        task: by what they are measured.
        tokenizer: the vocabulary, whose padding is the blank.
        texts: the transcripts of each split that has them, in the order of its rows.
    """

    task: Task
    tokenizer: PreTrainedTokenizerBase
    texts: Mapping[str, Sequence[str]]

    @property
    def metrics(self) -> Sequence[Metric]:
        """The loss and the task's error rates."""
        return (LOSS, *self.task.metrics)

    def weight(self, batch: Batch) -> int:
        """The batch's recordings; the model's loss is their mean of nats a character."""
        return len(batch["labels"])

    @torch.no_grad()
    def measure(
        self, model: nn.Module, loader: DataLoader, split: Split, accelerator: Accelerator
    ) -> Measured:
        """Loss and error rates, and the text that was recognised in each recording."""
        model.eval()
        predictions, nats = [], []
        for batch in track(loader, f"Evaluating {split.name}"):
            labels = batch.pop("labels", None)
            logits = model(**batch).logits.float()
            if not bool(torch.isfinite(logits).all()):
                raise diverged_logits()
            lengths = _frames(accelerator.unwrap_model(model), batch, logits)
            texts = self.read(logits, lengths)
            predictions += accelerator.gather_for_metrics(texts, use_gather_object=True)
            if labels is not None:
                each = row_nats(logits, lengths, labels, self.tokenizer.pad_token_id)
                nats.append(accelerator.gather_for_metrics(each))
        predicted = np.array(predictions)[positions(loader)]
        if split.name not in self.texts:
            return Measured({}, predicted)
        references = np.array(self.texts[split.name])
        metrics = {"loss": float(torch.cat(nats).mean())}
        metrics |= scores(self.task.metrics, predicted, references)
        return Measured(metrics, predicted, references)

    def read(self, logits: Tensor, lengths: Tensor) -> list[str]:
        """The texts of logits (B, frames, vocabulary), of each row the first ``lengths`` frames."""
        blank = self.tokenizer.pad_token_id
        beyond = torch.arange(logits.shape[1], device=logits.device) >= lengths[:, None]
        likeliest = logits.argmax(-1).masked_fill(beyond, blank)
        texts = self.tokenizer.batch_decode(likeliest, clean_up_tokenization_spaces=False)
        return [" ".join(text.split()) for text in texts]


def row_nats(logits: Tensor, lengths: Tensor, labels: Tensor, blank: int) -> Tensor:
    """Negative log-probability a character of each row's transcript, (B,) in float64.

    Args:
        logits: (B, frames, vocabulary).
        lengths: (B,), the frames of each row.
        labels: (B, characters), -100 where there is none.
        blank: its number.
    """
    counts = (labels >= 0).sum(-1)
    log_probs = logits.double().log_softmax(-1).transpose(0, 1)
    labels = labels.clamp(min=0)
    return functional.ctc_loss(log_probs, labels, lengths, counts, blank, "none") / counts


def _frames(model: nn.Module, batch: Batch, logits: Tensor) -> Tensor:
    """The frames of each row that are no padding, (B,); all of them where there is no mask."""
    if "attention_mask" in batch:
        return speech.frames(model, batch["attention_mask"].sum(-1))
    return torch.full(logits.shape[:1], logits.shape[1], device=logits.device)
