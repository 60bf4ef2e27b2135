"""How good the shipped GPT-2 is: prints a table and writes it to `gpt2/measured.json`.

    python finetune/demo/measure_gpt2.py

Perplexity a token on modules of the standard library that pretraining never saw, in both protocols
of `finetune/lm.py`, beside that of the train side's token frequencies alone.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from measure_bert import origin
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser

import tasks
from finetune.lm_data import texts
from finetune.lm_evaluation import measure
from finetune.lm_windows import Windows, pad
from tasks.lm import FAMILY, perplexities


@dataclass
class Arguments:
    """What is measured."""

    checkpoint: str = field(
        default="finetune/demo/gpt2", metadata={"help": "Folder to measure; written to as well."}
    )
    block_size: int = field(default=256, metadata={"help": "Context in tokens."})
    stride: int = field(default=64, metadata={"help": "Of the sliding protocol."})
    batch_size: int = field(default=16, metadata={"help": "Contexts at a time."})


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


def main(argv: list[str] | None = None) -> None:
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses(argv)
    accelerator = Accelerator()
    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint)
    model = accelerator.prepare(model)
    task = tasks.get("demo", FAMILY)
    rows = task.builder()
    found = texts(task, rows.select_columns(list(task.text_columns)), tokenizer)
    train = found.pop(task.train_split).tokens
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for split, text in found.items():
        measured[split] = {
            "frequencies": {
                "perplexity": frequency_perplexity(train, text.tokens, len(tokenizer)),
                "predicted_tokens": len(text.tokens),
            }
        }
        for protocol, stride in (("block", None), ("sliding", arguments.stride)):
            windows = Windows(text.tokens, arguments.block_size, stride)
            loader = DataLoader(windows, arguments.batch_size, collate_fn=pad)
            measured[split][protocol] = measure(
                model, accelerator.prepare(loader), text, accelerator, f"{split}, {protocol}"
            )
    report = {
        "measured": measured,
        "parameters": accelerator.unwrap_model(model).num_parameters(),
        "settings": asdict(arguments),
        "origin": origin(),
    }
    path = Path(arguments.checkpoint) / "measured.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    Console(width=100).print(table(measured))


def table(measured: dict[str, dict[str, dict[str, float]]]) -> Table:
    """The numbers for people."""
    shown = Table("split", "protocol", "perplexity a token", "predicted tokens")
    for split, protocols in measured.items():
        for protocol, values in protocols.items():
            shown.add_row(
                split, protocol, f"{values['perplexity']:.1f}", str(values["predicted_tokens"])
            )
    return shown


if __name__ == "__main__":
    main()
