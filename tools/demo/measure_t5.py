"""How good the shipped T5 is: prints a table and writes it to `t5/measured.json`.

    python tools/demo/measure_t5.py

Two numbers, both on modules that pretraining never saw: how many hidden tokens of a function the
checkpoint fills in right, and how many defects of the demo task it finds after fine-tuning; both
beside the same model with untrained weights.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.table import Table
from transformers import AutoTokenizer, PreTrainedTokenizerBase, T5ForConditionalGeneration

from finetune import code_classification
from finetune.settings.flags import flag
from tasks import corpus, demo_code
from tools.demo import measuring, pretrain_t5, pretraining

RECIPE = (
    *("--num_train_epochs", "2", "--learning_rate", "3e-4", "--warmup_ratio", "0.05"),
    *("--per_device_train_batch_size", "16", "--per_device_eval_batch_size", "50"),
    *("--max_length", "160"),
)
FUNCTIONS_A_BATCH = 20


@dataclass
class Arguments:
    """What can be changed from the command line."""

    checkpoint: str = flag("Folder to measure; written to as well.", "finetune/demo/t5")
    functions: int = flag("Held-out functions to fill in.", 600)
    train_rows: int = flag("Rows to fine-tune on.", 2000)
    seed: int = flag("Of hidden spans, weights and order.", 0)


@torch.no_grad()
def filled_in(
    model: T5ForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, arguments: Arguments
) -> float:
    """Share of the hidden tokens, sentinels and ends apart, that are the decoder's first choice.

    The functions are of modules on the validation side; what precedes a token is given.
    """
    generator = random.Random(arguments.seed)
    held_out = [
        function.source
        for function in demo_code.functions()
        if corpus.side_of(function.module) == "validation"
    ]
    sources = generator.sample(held_out, arguments.functions)
    ids = tokenizer(sources, add_special_tokens=False).input_ids
    rows = [row[: pretrain_t5.MAX_TOKENS] for row in ids]
    uncounted = torch.tensor([*tokenizer.all_special_ids, pretraining.IGNORED])
    right = total = 0
    for first in range(0, len(rows), FUNCTIONS_A_BATCH):
        batch = pretrain_t5.corrupted(
            rows[first : first + FUNCTIONS_A_BATCH], tokenizer, pretrain_t5.SHIPPED, generator
        )
        counted = ~torch.isin(batch["labels"], uncounted)
        right += int((model(**batch).logits.argmax(-1) == batch["labels"])[counted].sum())
        total += int(counted.sum())
    return right / total


def table(measured: dict[str, dict[str, float]]) -> Table:
    """The numbers for people."""
    shown = Table("what, on unseen modules", *measured)
    shown.add_row("hidden tokens filled in", *(f"{x['filled_in']:.3f}" for x in measured.values()))
    shown.add_row("defects found", *(f"{x['defects_found']:.3f}" for x in measured.values()))
    return shown


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the checkpoint and untrained weights, print and write the numbers."""
    arguments = pretraining.parse(Arguments(), argv)
    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    recipe = (*RECIPE, "--max_train_samples", str(arguments.train_rows))
    folders = measuring.starts(arguments.checkpoint, T5ForConditionalGeneration, arguments.seed)
    measured = {}
    for name, folder in zip(("checkpoint", "untrained"), folders, strict=True):
        model = T5ForConditionalGeneration.from_pretrained(folder).eval()
        results = measuring.fine_tuned(code_classification.main, folder, arguments.seed, recipe)
        measured[name] = {
            "filled_in": filled_in(model, tokenizer, arguments),
            "defects_found": results["eval_accuracy"],
        }
    report = {"recipe": recipe, **measured}
    measuring.report(arguments.checkpoint, report, arguments, table(measured))


if __name__ == "__main__":
    main()
