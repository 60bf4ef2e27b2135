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
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

from finetune.errors import refusal
from finetune.models import loading
from finetune.settings.code import GENERATE, CodeModelArguments
from finetune.settings.schema import Settings
from tasks import Task


def load_config(
    arguments: CodeModelArguments, task: Task, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedConfig, list[int]]:
    """The model's config, and the label order (`loading.load_config`).

    Raises ``ValueError`` if the model has no decoder and is asked to generate, or if a head of
    an encoder-decoder is to read the end token of rows that have none.
    """
    name = arguments.model_name_or_path
    if arguments.objective == GENERATE:
        config = loading.pretrained(AutoConfig, name, arguments)
        if config.model_type not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
            raise refusal(
                "objective",
                arguments.objective,
                f"classify for {name}, whose type {config.model_type} has no encoder and decoder",
                "Give --objective classify, or choose CodeT5, T5, BART or PLBART.",
            )
        return config, list(range(len(task.label_names)))
    config, label_order = loading.load_config(arguments, task, tokenizer.pad_token_id)
    if config.is_encoder_decoder and config.eos_token_id not in tokenizer("")["input_ids"]:
        raise refusal(
            "tokenizer_name",
            arguments.tokenizer_name or name,
            f"a tokenizer that ends each text with the model's end token {config.eos_token_id}, "
            "whose hidden state the head reads",
            "Choose the model's own tokenizer.",
        )
    return config, label_order


def load_model(
    settings: Settings[Any, CodeModelArguments], config: PreTrainedConfig
) -> PreTrainedModel:
    """The model for the objective, in float32 and patched (`loading.load_model`)."""
    if settings.model.objective == GENERATE:
        return loading.load_model(settings, config, AutoModelForSeq2SeqLM)
    mismatched = settings.model.ignore_mismatched_sizes
    return loading.load_model(settings, config, ignore_mismatched_sizes=mismatched)
