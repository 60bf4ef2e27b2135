"""Vocabulary, feature extractor, configuration and model for CTC, from a checkpoint or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import (
    FEATURE_EXTRACTOR_MAPPING,
    AutoConfig,
    AutoFeatureExtractor,
    AutoModelForCTC,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2Processor,
)

from finetune.errors import refusal
from finetune.models.loading import load_model, pretrained, untrained_config
from finetune.settings.schema import Run
from finetune.settings.speech import CHARACTERS, SpeechModelArguments
from hf_graphattn.model.training import task_head

BLANK, UNKNOWN, SPACE = "[PAD]", "[UNK]", "|"
LENGTHS = ("_get_feat_extract_output_lengths", "_get_subsampling_output_length")


def load_tokenizer(
    arguments: SpeechModelArguments, transcripts: Iterable[str]
) -> PreTrainedTokenizerBase:
    """The named vocabulary, that of the checkpoint's head, or the transcripts' characters."""
    if is_new(arguments):
        return character_tokenizer(transcripts)
    name = arguments.tokenizer_name or arguments.model_name_or_path
    return pretrained(AutoTokenizer, name, arguments)


def is_new(arguments: SpeechModelArguments) -> bool:
    """Whether the vocabulary is made of the transcripts."""
    if arguments.tokenizer_name is not None:
        return arguments.tokenizer_name == CHARACTERS
    path = arguments.model_name_or_path
    return path is None or not _has_head(pretrained(AutoConfig, path, arguments))


def character_tokenizer(transcripts: Iterable[str]) -> Wav2Vec2CTCTokenizer:
    """One token for each character of the transcripts, the blank first; spaces part words."""
    characters = sorted({character for text in transcripts for character in text} - {" ", SPACE})
    vocabulary = {token: i for i, token in enumerate((BLANK, UNKNOWN, SPACE, *characters))}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.json"
        path.write_text(json.dumps(vocabulary), "utf-8")
        return Wav2Vec2CTCTokenizer(
            str(path),
            pad_token=BLANK,
            unk_token=UNKNOWN,
            word_delimiter_token=SPACE,
            bos_token=None,
            eos_token=None,
        )


def load_config(
    arguments: SpeechModelArguments, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedConfig:
    """The checkpoint's configuration, or an untrained model's, with a head for this vocabulary.

    The loss is the mean over recordings of the nats a character.

    Raises:
        ValueError: a vocabulary that the checkpoint's head does not have, or a setting that the
            configuration lacks.
    """
    known = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    path = arguments.model_name_or_path
    if path is None:
        config = untrained_config(arguments, **known)
    else:
        config = pretrained(AutoConfig, path, arguments)
        head = {name: getattr(config, name, None) for name in known}
        if _has_head(config) and not is_new(arguments) and head != known:
            allowed = f"a vocabulary for the head of {path}, with {head}; this one has {known}"
            remedy = f"Drop the flag, or give {CHARACTERS} for a new vocabulary and head."
            raise refusal("tokenizer_name", arguments.tokenizer_name, allowed, remedy)
        config.update(known)
    changes = arguments.regularisation() | {"ctc_loss_reduction": "mean"}
    for name, value in changes.items():
        if not hasattr(config, name):
            allowed = f"None with {arguments.source}, whose configuration has no such setting"
            raise refusal(name, value, allowed, "Drop the flag.")
        setattr(config, name, value)
    return config


def load_processor(
    arguments: SpeechModelArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> Wav2Vec2Processor:
    """The vocabulary with the feature extractor of the checkpoint or configuration, or the type's.

    The type's own gives a mask of the samples to models that take one, those without group norm.
    """
    if arguments.model_type is None:
        extractor = pretrained(AutoFeatureExtractor, arguments.source, arguments)
    else:
        is_masked = getattr(config, "feat_extract_norm", "layer") == "layer"
        kind: Any = FEATURE_EXTRACTOR_MAPPING[type(config)]
        extractor = kind(return_attention_mask=is_masked)
    return Wav2Vec2Processor(extractor, tokenizer)


def load_speech_model(
    settings: Run[Any, SpeechModelArguments], config: PreTrainedConfig
) -> PreTrainedModel:
    """The model with its head for CTC, a new one for a new vocabulary (`loading.load_model`)."""
    arguments = settings.model
    model = load_model(settings, config, AutoModelForCTC, ignore_mismatched_sizes=is_new(arguments))
    if is_new(arguments) and arguments.model_name_or_path is not None:
        # A checkpoint's head of as many characters is one for others.
        for name in task_head(model):
            head: Any = model.get_submodule(name)
            head.reset_parameters()
    if arguments.freeze_feature_encoder:
        speech_model: Any = model
        speech_model.freeze_feature_encoder()
    return model


def frames(model: Any, lengths: Sequence[int] | Tensor) -> Tensor:
    """How many frames the model makes of inputs of these lengths, samples or features."""
    count: Any = next(getattr(model, name) for name in LENGTHS if hasattr(model, name))
    return count(torch.as_tensor(lengths))


def _has_head(config: PreTrainedConfig) -> bool:
    return any(name.endswith("ForCTC") for name in config.architectures or [])
