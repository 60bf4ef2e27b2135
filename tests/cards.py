"""Patched models with what makes their inputs, an input each, and the code of their cards."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny_code
import torch
import transformers
from PIL import Image
from transformers import PreTrainedModel

import hf_graphattn as ga

DEMO = Path(__file__).parents[1] / "finetune" / "demo"
CONFIG = ga.GFSAConfig(order=4, w_K=0.2)
Made = tuple[PreTrainedModel, Any, Any]


def _shipped(name: str, kind: str, processor: str, example: Any, **settings: Any) -> Made:
    auto = getattr(transformers, kind)
    model = auto.from_pretrained(DEMO / name, **settings)
    return model, getattr(transformers, processor).from_pretrained(DEMO / name), example


def _writer() -> Made:
    """A T5 that writes "true", and lies nowhere after this."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_code.save_writer("t5", Path(folder), "true")
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
        return model, transformers.AutoTokenizer.from_pretrained(folder), "def f(x):"


def _digits() -> Made:
    """A ViT that reads grey images."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    images = {"image_size": 8, "patch_size": 4, "num_channels": 1, "intermediate_size": 16}
    config = transformers.ViTConfig(**sizes, **images, num_labels=3)
    of_one = {"image_mean": [0.5], "image_std": [0.5], "size": {"height": 8, "width": 8}}
    processor = transformers.ViTImageProcessorPil(**of_one)
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    return transformers.ViTForImageClassification(config), processor, Image.fromarray(pixels)


def _morse() -> Made:
    model, processor, _ = _shipped("wav2vec2", "AutoModelForCTC", "AutoProcessor", None)
    rate = processor.feature_extractor.sampling_rate
    wave = np.sin(np.arange(rate) * 0.9) * (np.arange(rate) // (rate // 10) % 2)
    return model, processor, (wave, rate)


PAIR = ("Return the mean.", "It is the sum by the count.")
KINDS: dict[str, tuple[str, Callable[[], Made]]] = {
    "label": (
        "text-classification",
        lambda: _shipped(
            "bert",
            "AutoModelForSequenceClassification",
            "AutoTokenizer",
            'Return the "mean" of\n```\nall.',
            id2label={0: "disturbed", 1: "real"},
        ),
    ),
    "score": (
        "text-classification",
        lambda: _shipped(
            "bert", "AutoModelForSequenceClassification", "AutoTokenizer", PAIR, num_labels=1
        ),
    ),
    "labels": (
        "token-classification",
        lambda: _shipped("bert", "AutoModelForTokenClassification", "AutoTokenizer", PAIR[0]),
    ),
    "mask": (
        "fill-mask",
        lambda: _shipped("bert", "AutoModelForMaskedLM", "AutoTokenizer", "Return the [MASK]."),
    ),
    "text": (
        "text-generation",
        lambda: _shipped("gpt2", "AutoModelForCausalLM", "AutoTokenizer", "Return the"),
    ),
    "answer": (
        "text2text-generation",
        _writer,
    ),
    "image": ("image-classification", _digits),
    "sound": ("automatic-speech-recognition", _morse),
}


def made(kind: str) -> Made:
    """A patched model, what makes its inputs, and an input."""
    torch.manual_seed(0)
    model, processor, example = KINDS[kind][1]()
    return ga.patch_model(model.eval(), CONFIG), processor, example


def blocks(card: object) -> list[str]:
    """The blocks of code in a card."""
    return re.findall(r"(?ms)^```python\n(.*?)\n```$", f"{card}")
