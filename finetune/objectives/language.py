"""Language modelling: trained on the next token, scored by the perplexity of a whole text.

Two protocols, whose contexts `finetune.data.text.Windows` makes: blocks, as in GFSA's tables
(arXiv 2312.04234), and a sliding window, as in p-LaT's (arXiv 2311.03235).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from finetune.data.loaders import IGNORED
from finetune.data.text import Blocks, Text
from finetune.errors import diverged_logits
from finetune.objectives.base import Batch, Measured, Objective
from finetune.terminal import track
from tasks import Metric, Split, Task
from tasks.lm import perplexities
from tasks.metrics import scores


@dataclass(frozen=True)
class LanguageModelling(Objective):
    """Predict the next token, in one text of each split.

    Attributes:
        task: what is measured; metrics of predictions are of the most likely next tokens.
        texts: each split's tokens and words, by its name.
        blocks: what is trained on; a context in evaluation is as long as one of them.
        stride: tokens between contexts; None is the protocol of blocks.
    """

    task: Task
    texts: Mapping[str, Text]
    blocks: Blocks
    stride: int | None

    @property
    def metrics(self) -> Sequence[Metric]:
        """The task's: nats and perplexities."""
        return self.task.metrics

    def weight(self, batch: Batch) -> int:
        """Predicted tokens of a training batch: of each block all but the first."""
        return batch["labels"][:, 1:].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Nats a predicted token; no cache is built for tokens that nobody generates."""
        return model(**batch, use_cache=False).loss

    def measure(
        self, model: nn.Module, loader: DataLoader, split: Split, accelerator: Accelerator
    ) -> Measured:
        """Nats and perplexities of the split's text, each with its denominator."""
        others = [metric for metric in self.metrics if metric.function or metric.together]
        return measure_text(model, loader, self.texts[split.name], accelerator, others)

    def facts(self) -> dict[str, Any]:
        """The protocol, and how much of the training text is used."""
        return {
            "eval_protocol": "block" if self.stride is None else "sliding",
            "block_size": self.blocks.size,
            "stride": self.stride,
            "row_end": self.task.row_end,
            "train_blocks": len(self.blocks),
            "train_left_over_tokens": self.blocks.left_over,
        }


@torch.no_grad()
def measure_text(
    model: nn.Module,
    loader: DataLoader,
    text: Text,
    accelerator: Accelerator,
    others: Sequence[Metric] = (),
) -> Measured:
    """Loss and perplexities of a text, each with its denominator.

    Args:
        model: a causal language model, prepared by accelerate as the loader is.
        loader: batches of `Windows` over the text.
        text: its tokens and words.
        accelerator: sums over the processes, in float64; a row that was repeated to fill the last
            batch counts once.
        others: metrics of the most likely next tokens, beside the perplexities.

    Returns:
        ``loss`` (nats a token), ``perplexity``, for a word-level text ``word_perplexity``, which is
        exp(loss * tokens / words), and ``bits_per_byte``, loss * tokens / bytes in bits; as counts
        ``predicted_tokens``, the denominator of the first two, ``tokens`` of the whole text,
        ``words`` and ``bytes``.

    Raises:
        DivergedError: if the model's logits are NaN.
    """
    model.eval()
    forward = inspect.signature(accelerator.unwrap_model(model).forward).parameters
    total, pairs = torch.zeros(2, dtype=torch.float64), []
    for batch in track(loader, "Evaluating"):
        labels, options = batch.pop("labels"), {"use_cache": False}
        if "logits_to_keep" in forward:
            # A sliding window scores its end only: the vocabulary's layer is most of the work.
            first = int((labels != IGNORED).any(dim=0).int().argmax())
            labels = labels[:, first:]
            options["logits_to_keep"] = labels.shape[1]
        logits = model(**batch, **options).logits
        total += accelerator.gather_for_metrics(row_nats(logits, labels)).cpu().sum(dim=0)
        if others:
            pairs.append(_scored_tokens(logits, labels, accelerator))
    nats, predicted, tokens = float(total[0]), int(total[1]), len(text.tokens)
    if math.isnan(nats):
        raise diverged_logits()
    sizes = {n: count for n, count in (("words", text.words), ("bytes", text.bytes)) if count}
    shares = {f"{name}_per_token": count / tokens for name, count in sizes.items()}
    metrics = perplexities(nats, predicted, **shares)
    if others:
        metrics |= scores(others, *np.concatenate(pairs, axis=1))
    counts = {"predicted_tokens": predicted, "tokens": tokens, **sizes}
    return Measured(metrics, counts=counts)


def row_nats(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed negative log-probability and number of the scored tokens of each row: (B, 2), float64.

    Args:
        logits: (B, N, vocabulary) of any float type.
        labels: (B, N), the token after each position, -100 where it is not scored.
    """
    # Classes last: torch sums over another dimension one by one, and loses a digit.
    nats = functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    ).view_as(labels)
    return torch.stack([nats.double().sum(1), (labels != IGNORED).double().sum(1)], dim=1)


def _scored_tokens(logits: Tensor, labels: Tensor, accelerator: Accelerator) -> np.ndarray:
    """The most likely token at each scored position, and the text's: (2, any number)."""
    pairs = torch.stack([logits.argmax(-1), labels], dim=1)
    # Processes may have read windows of different lengths.
    pairs = accelerator.pad_across_processes(pairs, dim=2, pad_index=IGNORED)
    pairs = accelerator.gather_for_metrics(pairs).cpu().transpose(0, 1).flatten(1)
    return pairs[:, pairs[1] != IGNORED].numpy()
