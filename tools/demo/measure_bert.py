"""How good the shipped BERT is: prints a table and writes it to `bert/measured.json`.

    python tools/demo/measure_bert.py

Two numbers, both on modules of the standard library that pretraining never saw: the accuracy of
filling in masked words, beside that of always answering the most frequent token; and the demo
task's Matthews correlation after fine-tuning the checkpoint, beside that from untrained weights.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from rich.table import Table
from transformers import AutoTokenizer, BertForMaskedLM, PreTrainedTokenizerBase

from finetune import glue
from tasks import corpus
from tools.demo import measuring, pretrain_bert, pretraining
from tools.demo.pretraining import IGNORED, flag

MASK_SHARE = 0.15
RECIPE = (
    *("--num_train_epochs", "2", "--learning_rate", "5e-4", "--warmup_ratio", "0.1"),
    *("--per_device_train_batch_size", "16", "--per_device_eval_batch_size", "100"),
    *("--max_length", "64", "--weight_decay", "0.01"),
)


@dataclass
class Arguments:
    """What is measured; the recipe is the same for both starting points."""

    checkpoint: str = flag("Folder to measure; written to as well.", "finetune/demo/bert")
    seeds: list[int] = field(
        default_factory=lambda: [0, 1], metadata={"help": "One fine-tuning of each kind a seed."}
    )


@torch.no_grad()
def masked_accuracy(model: BertForMaskedLM, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    """Share of masked tokens filled in right, on the validation side of the corpus.

    15 % of the words are masked, whole, each piece by [MASK]; sentences are taken one by one.

    Args:
        model: a masked language model.
        tokenizer: its tokenizer.

    Returns:
        `masked_lm_accuracy`, `most_frequent_token_share` (the accuracy of always answering the
        most frequent one) and `masked_tokens`, the denominator of both.
    """
    documents = [document for document in corpus.documents() if document.side == "validation"]
    rows = [ids for document in pretrain_bert.encode(documents, tokenizer) for ids in document]
    mask = pretrain_bert.WordMasking(tokenizer, MASK_SHARE, replaced_by_mask=1.0)
    right = 0
    wanted: list[int] = []
    for ids in pretrain_bert.batches(rows, tokenizer, 4096, random.Random(0)):
        corrupted, labels = mask(ids)
        chosen = labels != IGNORED
        answers = pretrain_bert.chosen_logits(model, corrupted, chosen).argmax(-1)
        right += int((answers == labels[chosen]).sum())
        wanted += labels[chosen].tolist()
    return {
        "masked_lm_accuracy": right / len(wanted),
        "most_frequent_token_share": wanted.count(statistics.mode(wanted)) / len(wanted),
        "masked_tokens": len(wanted),
    }


def table(measured: dict[str, float], correlations: dict[str, list[float]]) -> Table:
    """The numbers for people."""
    shown = Table("what, on unseen modules", "checkpoint", "without it")
    accuracies = (measured["masked_lm_accuracy"], measured["most_frequent_token_share"])
    shown.add_row(
        "masked words filled in right (without: the most frequent token)",
        *(f"{value:.3f}" for value in accuracies),
    )
    shown.add_row(
        "demo task, Matthews correlation (without: untrained weights)",
        *(", ".join(f"{value:.3f}" for value in values) for values in correlations.values()),
    )
    return shown


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the checkpoint and untrained weights, print and write the numbers."""
    arguments = pretraining.parse(Arguments(), argv)
    model = BertForMaskedLM.from_pretrained(arguments.checkpoint).eval()
    measured = masked_accuracy(model, AutoTokenizer.from_pretrained(arguments.checkpoint))
    correlations: dict[str, list[float]] = {"pretrained": [], "untrained": []}
    for seed in arguments.seeds:
        folders = measuring.starts(arguments.checkpoint, BertForMaskedLM, seed)
        for values, folder in zip(correlations.values(), folders, strict=True):
            results = measuring.fine_tuned(glue.main, folder, seed, RECIPE)
            values.append(results["eval_matthews_correlation"])
    found = {
        **measured,
        "matthews_correlation": correlations,
        "parameters": model.num_parameters(),
        "recipe": RECIPE,
    }
    measuring.report(arguments.checkpoint, found, arguments, table(measured, correlations))


if __name__ == "__main__":
    main()
