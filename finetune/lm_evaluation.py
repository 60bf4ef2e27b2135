"""Perplexity of a language model, from the summed log-probabilities of a whole text.

Two protocols, of which `finetune.lm_windows.Windows` makes the contexts: blocks, as in GFSA's
tables (arXiv 2312.04234), and a sliding window, as in p-LaT's (arXiv 2311.03235).
"""

from __future__ import annotations

import inspect

import torch
from accelerate import Accelerator
from accelerate.utils import tqdm
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from finetune.lm_data import Text
from finetune.lm_windows import IGNORED
from tasks import lm


def measure(
    model: nn.Module, loader: DataLoader, text: Text, accelerator: Accelerator, description: str
) -> dict[str, float]:
    """Loss and perplexities of a text, each with its denominator.

    Args:
        model: a causal language model, prepared by accelerate as the loader is.
        loader: batches of `Windows` over the text.
        text: its tokens and words.
        accelerator: sums over the processes.
        description: of the progress bar.

    Returns:
        ``loss`` (nats a token), ``perplexity`` and ``predicted_tokens``, their denominator;
        ``tokens`` of the whole text; for a word-level text ``word_perplexity``, which is
        exp(loss * tokens / words), and ``words``.
    """
    nats, predicted = summed_nats(model, loader, accelerator, description)
    total = len(text.tokens)
    found = lm.perplexities(nats, predicted, text.words and text.words / total)
    found |= {"predicted_tokens": predicted, "tokens": total}
    return found if text.words is None else found | {"words": text.words}


def summed_nats(
    model: nn.Module, loader: DataLoader, accelerator: Accelerator, description: str
) -> tuple[float, int]:
    """Negative log-probability of all scored tokens, in float64 over all processes, and how many.

    A row that was repeated to fill the last batch counts once.
    """
    model.eval()
    forward = inspect.signature(accelerator.unwrap_model(model).forward).parameters
    total = torch.zeros(2, dtype=torch.float64)
    for batch in tqdm(loader, desc=description, leave=False):
        labels, options = batch.pop("labels"), {"use_cache": False}
        if "logits_to_keep" in forward:
            # A sliding window scores its end only: the vocabulary's layer is most of the work.
            first = int((labels != IGNORED).any(dim=0).int().argmax())
            labels = labels[:, first:]
            options["logits_to_keep"] = labels.shape[1]
        with torch.no_grad():
            logits = model(**batch, **options).logits
        total += accelerator.gather_for_metrics(row_nats(logits, labels)).cpu().sum(dim=0)
    return float(total[0]), int(total[1])


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
