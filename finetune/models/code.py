"""Models of the code tasks: with a head that classifies, or a decoder that writes the label."""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from finetune.errors import refusal
from finetune.models import loading
from finetune.settings.code import GENERATE, CodeModelArguments
from finetune.settings.schema import Run
from tasks import Task


def load_config(
    arguments: CodeModelArguments, task: Task, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedConfig, list[int]]:
    """The model's config, and the label order (`loading.load_config`).

    Raises ``ValueError`` if a head of an encoder-decoder is to read the end token of rows that have
    none.
    """
    name = arguments.model_name_or_path
    if arguments.objective == GENERATE:
        config = loading.pretrained(AutoConfig, name, arguments)
        return config, list(range(len(task.label_names)))
    config, label_order = loading.load_config(arguments, task, tokenizer.pad_token_id)
    end = config.eos_token_id
    if config.is_encoder_decoder and end not in tokenizer("")["input_ids"]:
        allowed = f"one that ends each text with token {end}, whose hidden state the head reads"
        name = arguments.tokenizer_name or name
        raise refusal("tokenizer_name", name, allowed, "Choose the model's own tokenizer.")
    return config, label_order


def load_model(settings: Run[Any, CodeModelArguments], config: PreTrainedConfig) -> PreTrainedModel:
    """The model for the objective, in float32 and patched (`loading.load_model`)."""
    if settings.model.objective == GENERATE:
        return loading.load_model(settings, config, AutoModelForSeq2SeqLM)
    mismatched = settings.model.ignore_mismatched_sizes
    return loading.load_model(settings, config, ignore_mismatched_sizes=mismatched)
