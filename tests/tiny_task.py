"""A tiny BERT with a tokenizer, and rows in the schema of each GLUE task, on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import ClassLabel, Dataset, Features, Value
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from tasks import Task

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("a", "cat", "dog", "sees", "the", "runs", "not", "blue", "green", "house")


def save_tokenizer(folder: Path) -> None:
    """A word-level tokenizer with BERT's special tokens."""
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=32,
        **dict(zip(names, SPECIAL, strict=True)),
    ).save_pretrained(folder)


def save_bert(folder: Path, **settings: Any) -> Path:
    """A random BERT of two layers and four heads, with its tokenizer; returns the folder."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=16,
        max_position_embeddings=32,
        **settings,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def rows(task: Task, count: int, *, hidden: bool = False) -> Dataset:
    """Rows in the task's schema as the hub has it; ``hidden`` labels are -1 as in test splits."""
    texts = {
        column: [
            " ".join(WORDS[(i + j + k) % len(WORDS)] for k in range(3 + i % 4))
            for i in range(count)
        ]
        for j, column in enumerate(task.text_columns)
    }
    labels: list[Any] = [i % (len(task.label_names) or 6) for i in range(count)]
    if task.objective == "regress":
        labels = [float(label) for label in labels]
    features = {column: Value("string") for column in texts} | {
        "label": ClassLabel(names=list(task.label_names)) if task.label_names else Value("float32"),
        "idx": Value("int32"),
    }
    return Dataset.from_dict(
        texts | {"label": [-1] * count if hidden else labels, "idx": list(range(count))},
        features=Features(features),
    )


def save_splits(
    folder: Path, splits: dict[str, Dataset], config: str = "default", *, card: bool = False
) -> Path:
    """Splits as parquet in the hub's layout, with its card or without; returns ``folder``."""
    (folder / config).mkdir(parents=True, exist_ok=True)
    files = {split: str(Path(config, f"{split}-00000-of-00001.parquet")) for split in splits}
    for split, table in splits.items():
        table.to_parquet(folder / files[split])
    if card:
        listed = [{"split": split, "path": path} for split, path in files.items()]
        said = {"configs": [{"config_name": config, "data_files": listed}]}
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump(said)}---\n")
    return folder


def save_data(
    task: Task, folder: Path, *, train: int = 8, held_out: int = 5, card: bool = False
) -> Path:
    """The task's splits in the hub's layout; returns ``folder``."""
    splits = {task.train_split: rows(task, train)}
    splits |= {split.name: rows(task, held_out) for split in task.validation_splits}
    splits |= {split.name: rows(task, held_out, hidden=True) for split in task.test_splits}
    return save_splits(folder, splits, task.dataset_config or "", card=card)
