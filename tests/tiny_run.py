"""A trainer of a tiny BERT on a few rows, in this process."""

from __future__ import annotations

from pathlib import Path

import tiny_task
from accelerate.utils import set_seed
from datasets import DatasetDict

import tasks
from finetune import arguments, data, engine, models, objectives

COLA = tasks.get("cola")


def trainer(
    folder: Path, *flags: str, count: int = 10, held_out: int = 7, dropout: float = 0.0
) -> engine.Trainer:
    """On ``count`` rows of CoLA's schema; the model is made once in ``folder``/bert."""
    if not (folder / "bert").exists():
        tiny_task.save_bert(
            folder / "bert", hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
        )
    settings = arguments.parse(
        ["--model_name_or_path", str(folder / "bert"), "--output_dir", str(folder), *flags]
    )
    accelerator = engine.make_accelerator(settings.train)
    set_seed(settings.train.seed)
    rows = DatasetDict(train=tiny_task.rows(COLA, count), validation=tiny_task.rows(COLA, held_out))
    checked = data.checked(COLA, rows, settings.data, predict=False)
    tokenizer = models.load_tokenizer(settings.model)
    config, order = models.load_config(settings.model, COLA, tokenizer.pad_token_id)
    loaders = data.loaders(
        COLA, checked, tokenizer, order, settings.data, settings.train, accelerator
    )
    model = models.load_model(settings, config)
    return engine.Trainer(accelerator, model, loaders, COLA, objectives.Labels(order), settings)
