"""Tokenizer, configuration and model of a language model, from a checkpoint or from nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

import hf_graphattn as ga
from finetune.errors import refusal
from finetune.models.loading import load_model
from finetune.settings.language import CHARACTERS, LanguageModelArguments
from finetune.settings.schema import Settings

END_OF_TEXT, UNKNOWN = "<|endoftext|>", "\ufffd"


def load_tokenizer(
    arguments: LanguageModelArguments, training_text: Iterable[str | None]
) -> PreTrainedTokenizerBase:
    """The model's tokenizer, the named one, or that of the training text's characters."""
    if arguments.tokenizer_name == CHARACTERS:
        return character_tokenizer(training_text)
    return AutoTokenizer.from_pretrained(arguments.tokenizer_name or arguments.model_name_or_path)


def character_tokenizer(text: Iterable[str | None]) -> PreTrainedTokenizerFast:
    """One token for each character of the text, the line break always; others are unknown."""
    found = {"\n"}
    for part in text:
        found.update(part or "")
    ordered = (END_OF_TEXT, UNKNOWN, *sorted(found - {UNKNOWN}))
    vocabulary = {token: i for i, token in enumerate(ordered)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        unk_token=UNKNOWN,
    )


def load_config(
    arguments: LanguageModelArguments, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedConfig:
    """The checkpoint's configuration, or that of an untrained model for this tokenizer.

    Raises ``ValueError`` for an unknown type or override, or a tokenizer of more tokens than the
    model has.
    """
    if arguments.model_name_or_path is not None:
        config = AutoConfig.from_pretrained(arguments.model_name_or_path)
    else:
        config = _untrained_config(arguments, tokenizer)
    if len(tokenizer) > config.vocab_size:
        raise refusal(
            "tokenizer_name",
            arguments.tokenizer_name,
            f"a tokenizer of at most {config.vocab_size} tokens, as many as {arguments.source} "
            f"has; it has {len(tokenizer)}",
            "Choose the model's own, or an untrained model.",
        )
    return config


def _untrained_config(
    arguments: LanguageModelArguments, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedConfig:
    if arguments.config_name is not None:
        config = AutoConfig.from_pretrained(arguments.config_name)
    elif arguments.model_type is not None and arguments.model_type in CONFIG_MAPPING:
        config = CONFIG_MAPPING[arguments.model_type]()
    else:
        raise refusal(
            "model_type",
            arguments.model_type,
            f"a type that transformers has: gpt2 ... ({len(CONFIG_MAPPING)} of them)",
            "Choose one, or give config_name.",
        )
    if getattr(config, "graph_attn", None) is not None:
        raise refusal(
            "config_name",
            arguments.config_name,
            f"a plain configuration; this one is patched with {config.graph_attn.get('variant')}",
            "Give that folder as model_name_or_path, or a plain configuration and a variant.",
        )
    config.vocab_size = len(tokenizer)
    for role in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, role, getattr(tokenizer, role))
    if arguments.config_overrides is not None:
        _override(config, arguments.config_overrides)
    return config


def _override(config: PreTrainedConfig, overrides: str) -> None:
    try:
        config.update_from_string(overrides)
    except (ValueError, TypeError) as error:
        numbers = {
            name for name, value in config.to_dict().items() if isinstance(value, int | float | str)
        }
        raise refusal(
            "config_overrides",
            overrides,
            f"name=value, parted by commas, of {', '.join(sorted(numbers))}",
            f"transformers said: {error}.",
        ) from error


def load_language_model(
    settings: Settings[Any, LanguageModelArguments], config: PreTrainedConfig
) -> PreTrainedModel:
    """The causal language model in float32, patched with the chosen variant."""
    if settings.model.model_name_or_path is not None:
        return load_model(settings, config, AutoModelForCausalLM)
    backend = settings.filter.backend
    options: dict[str, Any] = {"dtype": torch.float32}
    if settings.variant is None and backend != "auto":
        options["attn_implementation"] = backend
    model = AutoModelForCausalLM.from_config(config, **options)
    return (
        model
        if settings.variant is None
        else ga.patch_model(model, settings.variant, backend=backend, check=True)
    )


def positions(config: PreTrainedConfig) -> int | None:
    """How many positions the model has; None if it takes any number."""
    found: Any = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None
