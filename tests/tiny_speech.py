"""A tiny wav2vec 2.0 for CTC, and folders of short recordings with their transcripts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch
from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC, Wav2Vec2Processor

from finetune.models.speech import character_tokenizer

RATE = 1000
TEXTS = ("a cat", "a dog", "cat", "the dog", "a cat sees", "dog")


def wave(number: int, length: int) -> np.ndarray:
    """Noise on a tone, of shape (length,)."""
    noise = np.random.default_rng(number).standard_normal(length)
    return 0.3 * np.sin(np.arange(length) * (0.2 + 0.1 * number)) + 0.05 * noise


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    """A wav file of samples (samples,) or (samples, channels)."""
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format="WAV", subtype="FLOAT")
    return stream.getvalue()


def save_folder(folder: Path, texts: Sequence[str] = TEXTS) -> Path:
    """A folder with metadata.csv and a wav file for each text; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["file_name,text"]
    for number, text in enumerate(texts):
        (folder / f"{number}.wav").write_bytes(wav(wave(number, 150 + 30 * number)))
        lines.append(f"{number}.wav,{text}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def config(**settings: object) -> Wav2Vec2Config:
    """Of two layers and 2 heads, and frames of 8 samples; it drops and masks nothing."""
    own = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "conv_dim": (8, 8),
        "conv_kernel": (8, 4),
        "conv_stride": (4, 2),
        "feat_extract_norm": "layer",
        "do_stable_layer_norm": True,
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "layerdrop": 0.0,
        "mask_time_prob": 0.0,
    }
    dropouts = ("hidden", "attention", "activation", "feat_proj", "final")
    none = {f"{name}_dropout": 0.0 for name in dropouts}
    return Wav2Vec2Config(**(own | none | settings))


def extractor(*, masked: bool = True) -> Wav2Vec2FeatureExtractor:
    return Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=masked)


def save_config(folder: Path, **settings: object) -> Path:
    """A configuration and a feature extractor, without weights; returns the folder."""
    config(**settings).save_pretrained(folder)
    extractor().save_pretrained(folder)
    return folder


def save_model(folder: Path, texts: Sequence[str] = TEXTS, **settings: object) -> Path:
    """A random model for the characters of the texts, with its processor; returns the folder."""
    torch.manual_seed(0)
    tokenizer = character_tokenizer(texts)
    known = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    Wav2Vec2ForCTC(config(**(known | settings))).save_pretrained(folder)
    Wav2Vec2Processor(extractor(), tokenizer).save_pretrained(folder)
    return folder
