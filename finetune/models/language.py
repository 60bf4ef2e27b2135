"""Tokenizer and configuration of a language model, from a checkpoint or from nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from finetune.errors import refusal
from finetune.models.loading import pretrained, untrained_config
from finetune.settings.language import CHARACTERS, LanguageModelArguments

END_OF_TEXT, UNKNOWN = "<|endoftext|>", "\ufffd"


def load_tokenizer(
    arguments: LanguageModelArguments, training_text: Iterable[str | None]
) -> PreTrainedTokenizerBase:
    """The model's tokenizer, the named one, or that of the training text's characters."""
    if arguments.tokenizer_name == CHARACTERS:
        return character_tokenizer(training_text)
    name = arguments.tokenizer_name or arguments.model_name_or_path
    return pretrained(AutoTokenizer, name, arguments)


def character_tokenizer(text: Iterable[str | None]) -> PreTrainedTokenizerFast:
    """One token for each character of the text, the line break always; others are unknown."""
    characters = {"\n"}.union(*(part or "" for part in text))
    ordered = (END_OF_TEXT, UNKNOWN, *sorted(characters - {UNKNOWN}))
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

    Raises:
        ValueError: an unknown type or override, or a tokenizer of more tokens than the model
            has.
    """
    if arguments.model_name_or_path is not None:
        config = pretrained(AutoConfig, arguments.model_name_or_path, arguments)
    else:
        roles = ("bos_token_id", "eos_token_id", "pad_token_id")
        tokens = {role: getattr(tokenizer, role) for role in roles}
        config = untrained_config(arguments, vocab_size=len(tokenizer), **tokens)
    if len(tokenizer) > config.vocab_size:
        name, most = arguments.tokenizer_name, config.vocab_size
        allowed = (
            f"a tokenizer of at most {most} tokens, as {arguments.source}; it has {len(tokenizer)}"
        )
        raise refusal("tokenizer_name", name, allowed, "Choose the model's own tokenizer.")
    return config


def positions(config: PreTrainedConfig) -> int | None:
    """How many positions the model has; None if it takes any number."""
    count: Any = getattr(config, "max_position_embeddings", None)
    return count if isinstance(count, int) and count > 0 else None
