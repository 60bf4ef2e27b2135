"""How good the shipped GPT-2 is: prints a table and writes it to `gpt2/measured.json`.

    python tools/demo/measure_gpt2.py

Perplexity a token on modules of the standard library that pretraining never saw, in both protocols
of `finetune/lm.py`, beside that of the train side's token frequencies alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

import tasks
from finetune.data.text import Windows, pad, texts
from finetune.objectives.language import measure_text
from tasks.lm import FAMILY, perplexities
from tools.demo import measuring, pretraining
from tools.demo.pretraining import flag


@dataclass
class Arguments:
    """What is measured."""

    checkpoint: str = flag("Folder to measure; written to as well.", "finetune/demo/gpt2")
    block_size: int = flag("Context in tokens.", 256)
    stride: int = flag("Of the sliding protocol.", 64)
    batch_size: int = flag("Contexts at a time.", 16)


def frequency_perplexity(train: Tensor, text: Tensor, vocab_size: int) -> float:
    """Perplexity of the train side's token frequencies, one added to each count.

    Args:
        train: (tokens,) ids that are counted.
        text: (tokens,) ids that are predicted.
        vocab_size: number of different ids.
    """
    counts = torch.bincount(train, minlength=vocab_size).double() + 1
    log_shares = (counts / counts.sum()).log()
    return perplexities(-float(log_shares[text].sum()), len(text), None)["perplexity"]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the checkpoint, print and write the numbers."""
    arguments = pretraining.parse(Arguments(), argv)
    accelerator = Accelerator()
    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    model = accelerator.prepare(AutoModelForCausalLM.from_pretrained(arguments.checkpoint))
    task = tasks.get("demo", FAMILY)
    assert task.builder is not None
    rows = task.builder().select_columns(list(task.text_columns))
    found = texts(task, rows, tokenizer)
    train = found.pop(task.train_split).tokens
    measured: dict[str, dict[str, Any]] = {}
    for split, text in found.items():
        alone = frequency_perplexity(train, text.tokens, len(tokenizer))
        measured[split] = {
            "frequencies": {"perplexity": alone, "predicted_tokens": len(text.tokens)}
        }
        for protocol, stride in (("block", None), ("sliding", arguments.stride)):
            windows = Windows(text.tokens, arguments.block_size, stride)
            loader = accelerator.prepare(DataLoader(windows, arguments.batch_size, collate_fn=pad))
            values = measure_text(model, loader, text, accelerator)
            measured[split][protocol] = {**values.metrics, **values.counts}
    parameters = accelerator.unwrap_model(model).num_parameters()
    report = {"measured": measured, "parameters": parameters}
    measuring.report(arguments.checkpoint, report, arguments, table(measured))


def table(measured: dict[str, dict[str, Any]]) -> Table:
    """The numbers for people."""
    shown = Table("split", "protocol", "perplexity a token", "predicted tokens")
    for split, protocols in measured.items():
        for protocol, values in protocols.items():
            perplexity = f"{values['perplexity']:.1f}"
            shown.add_row(split, protocol, perplexity, str(values["predicted_tokens"]))
    return shown


if __name__ == "__main__":
    main()
