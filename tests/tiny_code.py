"""Tiny encoder-decoders with tokenizers of their kind, and defect rows in Devign's schema."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tiny
import torch
from datasets import Dataset
from tiny_task import save_splits
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Tokenizer,
)

FUNCTIONS = tuple(f"int f{i}(int a) {{ return a {'+-'[i % 2]} {i}; }}" for i in range(10))
SIZES = {"train": 8, "validation": 5, "test": 5}


def t5_tokenizer() -> PreTrainedTokenizerBase:
    """A unigram one, whose vocabulary holds `</s>` as a piece, as T5's does."""
    characters = sorted(set(" ".join(FUNCTIONS) + "</s>"))
    pieces = ["<pad>", "</s>", "<unk>", "▁", "▁true", "▁false", *characters]
    scored = [(piece, 0.0 if i < 3 else -3.0) for i, piece in enumerate(dict.fromkeys(pieces))]
    return T5Tokenizer(vocab=scored, extra_ids=2, model_max_length=64)


def bart_tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level BPE one with `<s>` and `</s>` around, as BART's and CodeT5's have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*FUNCTIONS, *["true", "false"] * 9], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=64,
    )


IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def save_t5(folder: Path) -> Path:
    """A random T5 with its tokenizer; returns the folder."""
    torch.manual_seed(0)
    tokenizer = t5_tokenizer()
    model = tiny.build("T5", vocab_size=len(tokenizer), dropout_rate=0.0)
    return _save(model, tokenizer, folder)


def save_bart(folder: Path) -> Path:
    """A random BART with its tokenizer; returns the folder."""
    torch.manual_seed(0)
    tokenizer = bart_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "dropout": 0.0}
    model = tiny.build("BART", **sizes, **IDS, forced_eos_token_id=2)
    return _save(model, tokenizer, folder)


def save_writer(kind: str, folder: Path, text: str) -> Path:
    """A T5 or BART that writes this text whatever it reads, with its tokenizer; returns the folder.

    No layer adds anything, so that the decoder sees the token before alone. Each token of the text
    is nearer to the one before it than that is to itself: it is longer, and shares an axis with it.
    """
    {"t5": save_t5, "bart": save_bart}[kind](folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(text_target=text)["input_ids"]
    if tokens[-1] == model.config.decoder_start_token_id:  # BART's, which ends where it is told to
        tokens = tokens[:-1]
    axes = torch.eye(model.config.d_model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name.endswith("bias"):
                parameter.zero_()
        embeddings = model.get_input_embeddings().weight  # the head's rows too
        for i, token in enumerate([model.config.decoder_start_token_id, *tokens]):
            embeddings[token] = 3**i * (axes[i] + axes[i - 1])
    return _save(model, tokenizer, folder)


def rows(functions: Iterable[str]) -> Dataset:
    """Functions in Devign's schema, defective and not in turn."""
    columns = {"func": list(functions)}
    count = len(columns["func"])
    return Dataset.from_dict(
        {"id": list(range(count))}
        | columns
        | {"target": [i % 2 == 1 for i in range(count)], "project": ["tiny"] * count}
    )


def save_data(folder: Path, functions: Iterable[str] = FUNCTIONS, *, card: bool = True) -> Path:
    """Splits of the functions in the hub's layout; returns the folder."""
    pool = tuple(functions)
    splits = {
        split: rows(pool[i % len(pool)] for i in range(count)) for split, count in SIZES.items()
    }
    return save_splits(folder, splits, card=card)


def _save(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
