"""How good the shipped checkpoint is: prints a table and writes it to `bert/measured.json`.

    python finetune/demo/measure_bert.py

Two numbers, both on modules of the standard library that pretraining never saw: the accuracy of
filling in masked words, beside that of always answering the most frequent token; and the demo
task's Matthews correlation after fine-tuning the checkpoint, beside that from untrained weights.
"""

import json
import os
import platform
import random
import statistics
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import datasets
import torch
import transformers
from datasets import DatasetDict
from pretrain_bert import IGNORED, encode, mask_words, padded_batches, token_tables
from rich.console import Console
from rich.table import Table
from sklearn.metrics import matthews_corrcoef
from torch import nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    get_linear_schedule_with_warmup,
    set_seed,
)

from tasks import corpus, demo

MASK_SHARE = 0.15
EVALUATION_BATCH = 100


@dataclass
class Arguments:
    """What is measured; the recipe is the same for both starting points."""

    checkpoint: str = field(
        default="finetune/demo/bert", metadata={"help": "Folder to measure; written to as well."}
    )
    seeds: list[int] = field(
        default_factory=lambda: [0, 1], metadata={"help": "One fine-tuning of each kind a seed."}
    )
    epochs: int = field(default=2, metadata={"help": "Of fine-tuning."})
    learning_rate: float = field(default=5e-4, metadata={"help": "Peak, linear to zero."})
    batch_size: int = field(default=16, metadata={"help": "Sentences a step."})


@torch.no_grad()
def masked_accuracy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
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
    rows = [ids for document in encode(documents, tokenizer) for ids in document]
    generator = torch.Generator().manual_seed(0)
    tables = token_tables(tokenizer)
    right, wanted = 0, []
    for ids in padded_batches(rows, tokenizer, tokens_per_batch=4096, generator=random.Random(0)):
        corrupted, labels = mask_words(ids, *tables, MASK_SHARE, generator, replaced_by_mask=1.0)
        chosen = labels != IGNORED
        attention_mask = ids != tokenizer.pad_token_id
        logits = model(input_ids=corrupted, attention_mask=attention_mask).logits
        right += (logits[chosen].argmax(-1) == labels[chosen]).sum().item()
        wanted += labels[chosen].tolist()
    return {
        "masked_lm_accuracy": right / len(wanted),
        "most_frequent_token_share": wanted.count(statistics.mode(wanted)) / len(wanted),
        "masked_tokens": len(wanted),
    }


def classifier(checkpoint: str, seed: int, *, pretrained: bool) -> PreTrainedModel:
    """A two-class model: from the checkpoint, or with untrained weights of the same shape."""
    set_seed(seed)
    if pretrained:
        return AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)
    config = AutoConfig.from_pretrained(checkpoint, num_labels=2)
    return AutoModelForSequenceClassification.from_config(config)


def fine_tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: DatasetDict,
    arguments: Arguments,
) -> float:
    """Trains a classifier plainly on the demo task; its Matthews correlation on validation."""
    tokenize = partial(tokenizer, truncation=True, max_length=64)
    encoded = splits.map(tokenize, input_columns="sentence", remove_columns=["sentence", "idx"])
    collate = DataCollatorWithPadding(tokenizer)
    batches = DataLoader(
        encoded["train"], arguments.batch_size, shuffle=True, collate_fn=collate, drop_last=False
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, weight_decay=0.01)
    steps = len(batches) * arguments.epochs
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    model.train()
    for _ in range(arguments.epochs):
        for batch in tqdm(batches, desc="fine-tuning", leave=False):
            model(**batch).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    predictions: list[int] = []
    with torch.no_grad():
        for batch in DataLoader(encoded["validation"], EVALUATION_BATCH, collate_fn=collate):
            predictions += model(**batch).logits.argmax(-1).tolist()
    return float(matthews_corrcoef(splits["validation"]["label"], predictions))


def origin() -> dict[str, str | int | None]:
    """Machine and versions the numbers come from."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "datasets": datasets.__version__,
    }


def table(measured: dict[str, float], correlations: dict[str, list[float]]) -> Table:
    """The numbers for people."""
    rows = Table("what, on unseen modules", "checkpoint", "without it")
    rows.add_row(
        "masked-LM accuracy (without: most frequent token)",
        f"{measured['masked_lm_accuracy']:.3f}",
        f"{measured['most_frequent_token_share']:.3f}",
    )
    rows.add_row(
        "demo task, Matthews correlation (without: untrained weights)",
        *(
            f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
            for values in correlations.values()
        ),
    )
    return rows


def main(argv: list[str] | None = None) -> None:
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses(argv)
    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    masked_model = AutoModelForMaskedLM.from_pretrained(arguments.checkpoint).eval()
    measured = masked_accuracy(masked_model, tokenizer)
    splits = demo.build()
    correlations: dict[str, list[float]] = {"pretrained": [], "untrained": []}
    for seed in arguments.seeds:
        for start, values in correlations.items():
            model = classifier(arguments.checkpoint, seed, pretrained=start == "pretrained")
            values.append(fine_tune(model, tokenizer, splits, arguments))
            print(f"seed {seed}, {start}: {values[-1]:.3f}", file=sys.stderr)
    report = {
        **measured,
        "matthews_correlation": correlations,
        "parameters": masked_model.num_parameters(),
        "settings": asdict(arguments),
        "origin": origin(),
    }
    path = Path(arguments.checkpoint) / "measured.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    Console(width=100).print(table(measured, correlations))


if __name__ == "__main__":
    main()
