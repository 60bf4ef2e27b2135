"""A trainer of a tiny BERT on a few rows, in this process."""

from __future__ import annotations

from pathlib import Path

import tiny_task
from accelerate.utils import set_seed
from datasets import DatasetDict

import tasks
from finetune import glue
from finetune.data import loaders, rows
from finetune.engine.launch import make_accelerator
from finetune.engine.trainer import Trainer
from finetune.models import loading
from finetune.objectives.labels import Labels

COLA = tasks.get("cola")


def trainer(
    folder: Path, *flags: str, count: int = 10, held_out: int = 7, dropout: float = 0.0
) -> Trainer:
    """On ``count`` rows of CoLA's schema; the model is made once in ``folder``/bert."""
    if not (folder / "bert").exists():
        tiny_task.save_bert(
            folder / "bert", hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
        )
    settings = glue.SCHEMA.parse(
        ["--model_name_or_path", str(folder / "bert"), "--output_dir", str(folder), *flags]
    )
    accelerator = make_accelerator(settings.train)
    set_seed(settings.train.seed)
    found = DatasetDict(
        train=tiny_task.rows(COLA, count), validation=tiny_task.rows(COLA, held_out)
    )
    checked = rows.checked(COLA, found, settings.data, predict=False)
    tokenizer = loading.load_tokenizer(settings.model)
    config, order = loading.load_config(settings.model, COLA, tokenizer)
    batches = loaders.text_loaders(settings, COLA, checked, tokenizer, order)
    model = loading.load_model(settings, config)
    return Trainer(accelerator, model, batches, Labels(COLA, order), settings)
