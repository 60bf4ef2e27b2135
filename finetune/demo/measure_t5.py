"""Measures `finetune/demo/t5` for its README, on modules that pretraining never saw.

    python finetune/demo/measure_t5.py

Prints how many hidden tokens the checkpoint fills in right, and how many defects of the demo task
it finds after fine-tuning, both beside the same model with untrained weights. Writes them to
`measured.json` beside the checkpoint.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pretrain_t5
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoTokenizer,
    HfArgumentParser,
    PreTrainedTokenizerBase,
    T5ForConditionalGeneration,
    set_seed,
)

from finetune import code_classification
from tasks import corpus, demo_code

RECIPE = (
    *("--num_train_epochs", "2", "--learning_rate", "3e-4", "--warmup_ratio", "0.05"),
    *("--per_device_train_batch_size", "16", "--per_device_eval_batch_size", "50"),
    *("--max_length", "160"),
)


@dataclass
class Arguments:
    """What can be changed from the command line."""

    checkpoint: str = field(default="finetune/demo/t5", metadata={"help": "Folder to measure."})
    functions: int = field(default=600, metadata={"help": "Held-out functions to fill in."})
    train_rows: int = field(default=2000, metadata={"help": "Rows to fine-tune on."})
    seed: int = field(default=0, metadata={"help": "Of hidden spans, weights and order."})


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
    sentinels = tokenizer.convert_tokens_to_ids(list(pretrain_t5.SENTINELS))
    ignored = {*sentinels, tokenizer.eos_token_id, pretrain_t5.IGNORED}
    settings = pretrain_t5.Arguments()
    right = total = 0
    for first in range(0, len(sources), 20):
        rows = tokenizer(sources[first : first + 20], add_special_tokens=False)["input_ids"]
        pairs = [
            pretrain_t5.corrupt(ids[: pretrain_t5.MAX_TOKENS], sentinels, settings, generator)
            for ids in rows
        ]
        ids, labels = (
            pad_sequence([torch.tensor([*x, tokenizer.eos_token_id]) for x in side], True, padding)
            for side, padding in zip(
                zip(*pairs, strict=True),
                (tokenizer.pad_token_id, pretrain_t5.IGNORED),
                strict=True,
            )
        )
        mask = (ids != tokenizer.pad_token_id).long()
        chosen = model(input_ids=ids, attention_mask=mask, labels=labels).logits.argmax(-1)
        counted = torch.tensor([[token not in ignored for token in row] for row in labels.tolist()])
        right += int((chosen == labels)[counted].sum())
        total += int(counted.sum())
    return right / total


def defects_found(checkpoint: Path, arguments: Arguments) -> float:
    """Validation accuracy on the task `demo` after fine-tuning a head; 0.5 is chance."""
    with tempfile.TemporaryDirectory() as folder:
        results = code_classification.main(
            [
                *("--model_name_or_path", str(checkpoint), "--output_dir", folder, *RECIPE),
                *("--task_name", "demo", "--seed", str(arguments.seed)),
                *("--max_train_samples", str(arguments.train_rows)),
            ]
        )
    return results["eval_accuracy"]


def main() -> None:
    """Measure the checkpoint and untrained weights, print and write the numbers."""
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses(sys.argv[1:])
    checkpoint = Path(arguments.checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        set_seed(arguments.seed)
        untrained = T5ForConditionalGeneration(AutoConfig.from_pretrained(checkpoint))
        untrained.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for name, path in (("checkpoint", checkpoint), ("untrained", Path(folder))):
            model = T5ForConditionalGeneration.from_pretrained(path).eval()
            measured[name] = {
                "filled_in": filled_in(model, tokenizer, arguments),
                "defects_found": defects_found(path, arguments),
            }
            print(name, measured[name])
    written = {"settings": vars(arguments), "recipe": list(RECIPE), **measured}
    (checkpoint / "measured.json").write_text(json.dumps(written, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
