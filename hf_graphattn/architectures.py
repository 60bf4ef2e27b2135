"""What the library must know of an architecture: a row for each.

The attention modules of transformers share one calling convention; the rows say where they are.
A new architecture is one row here and one tiny model in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import nn


@dataclass(frozen=True)
class Architecture:
    """Where an architecture's self-attention is.

    name: as people write it.
    attention: class name of the attention module (a subclass of it counts too).
    self_attention: the name of a self-attention module in its layer; modules of the class under
        another name are cross-attention and stay plain.
    heads: the module's attribute (or dotted path) that holds its number of query heads.
    cross_attention: class names of modules that are cross-attention only.
    """

    name: str
    attention: str
    self_attention: str
    heads: str
    cross_attention: tuple[str, ...] = ()


ARCHITECTURES = (
    Architecture("ALBERT", "AlbertAttention", "attention", "num_attention_heads"),
    Architecture("BART", "BartAttention", "self_attn", "num_heads"),
    Architecture(
        "BERT", "BertSelfAttention", "self", "num_attention_heads", ("BertCrossAttention",)
    ),
    Architecture("DeiT", "DeiTAttention", "attention", "num_attention_heads"),
    Architecture("DistilBERT", "DistilBertSelfAttention", "attention", "n_heads"),
    Architecture(
        "ELECTRA", "ElectraSelfAttention", "self", "num_attention_heads", ("ElectraCrossAttention",)
    ),
    Architecture("GPT-2", "GPT2Attention", "attn", "num_heads"),
    Architecture("GPT-NeoX", "GPTNeoXAttention", "attention", "config.num_attention_heads"),
    Architecture("Llama", "LlamaAttention", "self_attn", "config.num_attention_heads"),
    Architecture("Mistral", "MistralAttention", "self_attn", "config.num_attention_heads"),
    Architecture("ModernBERT", "ModernBertAttention", "attn", "config.num_attention_heads"),
    Architecture("OPT", "OPTAttention", "self_attn", "num_heads"),
    Architecture("PLBART", "PLBartAttention", "self_attn", "num_heads"),
    Architecture("Qwen3", "Qwen3Attention", "self_attn", "config.num_attention_heads"),
    Architecture(
        "RoBERTa", "RobertaSelfAttention", "self", "num_attention_heads", ("RobertaCrossAttention",)
    ),
    Architecture("T5", "T5Attention", "SelfAttention", "n_heads"),
    Architecture("ViT", "ViTAttention", "attention", "num_attention_heads"),
    Architecture("Whisper", "WhisperAttention", "self_attn", "num_heads"),
)


@dataclass(frozen=True)
class AttentionModule:
    """One attention module of a model: its qualified name, and what the table says of it."""

    name: str
    module: nn.Module
    num_heads: int
    is_self_attention: bool

    @property
    def device(self) -> torch.device:
        """That of its parameters. torch's dynamic quantisation leaves none, and needs the CPU."""
        return next((each.device for each in self.module.parameters()), torch.device("cpu"))


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """The attention modules of a model that the table knows, in model order."""
    found = []
    for name, module in model.named_modules():
        classes = _transformers_classes(module)
        for row in ARCHITECTURES:
            if row.attention in classes or classes & set(row.cross_attention):
                is_self = row.attention in classes and name.split(".")[-1] == row.self_attention
                found.append(AttentionModule(name, module, attrgetter(row.heads)(module), is_self))
    return found


def self_attention_modules(model: nn.Module) -> list[AttentionModule]:
    """Those of the attention modules that can have a filter, in the order that `layers` counts."""
    return [found for found in attention_modules(model) if found.is_self_attention]


def unknown_attention(model: nn.Module) -> list[str]:
    """Class names of modules that look like attention but are in no row, for the error message."""
    names = {type(module).__name__ for module in model.modules()}
    known = {row.attention for row in ARCHITECTURES}
    return sorted(name for name in names if "attention" in name.lower() and name not in known)


def supported() -> str:
    """The names of the architectures in the table, for error messages."""
    return ", ".join(row.name for row in ARCHITECTURES)


def _transformers_classes(module: nn.Module) -> set[str]:
    return {
        cls.__name__ for cls in type(module).__mro__ if cls.__module__.startswith("transformers.")
    }
