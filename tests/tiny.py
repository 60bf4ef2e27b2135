"""Tiny models, one row an architecture of the table, and inputs for them.

`ROWS` has exactly the rows of the library's `ARCHITECTURES` (a guard compares). No line reads the
library's table: where a model's self-attention is, is written here again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

VOCABULARY = 61
HEADS = 4
LAYERS = 2
FRAMES = 12  # of Whisper's encoder
TEXT = ("none", "left", "right")


@dataclass(frozen=True)
class Tiny:
    """One architecture.

    prefix, head: of the class names; the head is the one that most tests build.
    settings: of the config. dropout: the setting that is attention dropout.
    self_attention: how the qualified names of the self-attention modules end.
    modules: how many of them there are.
    reads: "text", "images" or "speech". padding: what the batches of the tests may have.
    generates: whether it writes tokens. checkpoints: whether transformers has gradient
    checkpointing for it.
    groups: where layers share a module, the setting that says how many modules there are.
    """

    prefix: str
    head: str
    settings: dict[str, Any]
    dropout: str
    self_attention: str
    modules: int = LAYERS
    reads: str = "text"
    padding: tuple[str, ...] = TEXT
    generates: bool = False
    checkpoints: bool = True
    groups: str | None = None


_ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
_BERT_DROPOUT = "attention_probs_dropout_prob"
_DECODER = {**_ENCODER, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GROUPED = {**_DECODER, "num_key_value_heads": HEADS // 2, "head_dim": 8}
_SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
_BART = {**_SEQ2SEQ, "max_position_embeddings": 64}
_IMAGES = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "image_size": 12,
    "patch_size": 4,
}

ROWS = {
    "ALBERT": Tiny(
        "Albert",
        "ForSequenceClassification",
        {**_ENCODER, "embedding_size": 16},
        _BERT_DROPOUT,
        ".attention",
        modules=1,  # one module serves every layer
        checkpoints=False,
        groups="num_hidden_groups",
    ),
    "BART": Tiny(
        "Bart",
        "ForConditionalGeneration",
        _BART,
        "attention_dropout",
        ".self_attn",
        modules=2 * LAYERS,
        generates=True,
    ),
    "BERT": Tiny("Bert", "ForSequenceClassification", _ENCODER, _BERT_DROPOUT, ".attention.self"),
    "DeiT": Tiny(
        "DeiT",
        "ForImageClassification",
        _IMAGES,
        _BERT_DROPOUT,
        ".attention",
        reads="images",
        padding=("none",),
    ),
    "DistilBERT": Tiny(
        "DistilBert",
        "ForSequenceClassification",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "hidden_dim": 48,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "max_position_embeddings": 64,
        },
        "attention_dropout",
        ".attention",
    ),
    "ELECTRA": Tiny(
        "Electra",
        "ForSequenceClassification",
        {**_ENCODER, "embedding_size": 16},
        _BERT_DROPOUT,
        ".attention.self",
    ),
    "GPT-2": Tiny(
        "GPT2",
        "LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        "attn_pdrop",
        ".attn",
        generates=True,
    ),
    "GPT-NeoX": Tiny(
        "GPTNeoX", "ForCausalLM", _DECODER, "attention_dropout", ".attention", generates=True
    ),
    "Llama": Tiny(
        "Llama", "ForCausalLM", _GROUPED, "attention_dropout", ".self_attn", generates=True
    ),
    "Mistral": Tiny(
        "Mistral",
        "ForCausalLM",
        {**_GROUPED, "sliding_window": 6},
        "attention_dropout",
        ".self_attn",
        generates=True,
    ),
    "ModernBERT": Tiny(
        "ModernBert",
        "ForSequenceClassification",
        {**_ENCODER, "local_attention": 6, "classifier_pooling": "mean", "pad_token_id": 0},
        "attention_dropout",
        ".attn",
    ),
    "OPT": Tiny(
        "OPT",
        "ForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "ffn_dim": 48,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        },
        "attention_dropout",
        ".self_attn",
        generates=True,
    ),
    "PLBART": Tiny(
        "PLBart",
        "ForConditionalGeneration",
        _BART,
        "attention_dropout",
        ".self_attn",
        modules=2 * LAYERS,
        generates=True,
    ),
    "Qwen3": Tiny(
        "Qwen3",
        "ForCausalLM",
        # The first layer sees everything, the second a window.
        {**_GROUPED, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
        "attention_dropout",
        ".self_attn",
        generates=True,
    ),
    "RoBERTa": Tiny(
        "Roberta",
        "ForSequenceClassification",
        {**_ENCODER, "pad_token_id": 0},
        _BERT_DROPOUT,
        ".attention.self",
    ),
    "T5": Tiny(
        "T5",
        "ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "decoder_start_token_id": 0,
            "initializer_factor": 0.5,  # T5 starts wide enough that `spread` would drown float32
        },
        "dropout_rate",
        ".SelfAttention",
        modules=2 * LAYERS,
        generates=True,
    ),
    "ViT": Tiny(
        "ViT",
        "ForImageClassification",
        _IMAGES,
        _BERT_DROPOUT,
        ".attention",
        reads="images",
        padding=("none",),
    ),
    "Whisper": Tiny(
        "Whisper",
        "ForConditionalGeneration",
        {
            **_SEQ2SEQ,
            "num_mel_bins": 8,
            "max_source_positions": FRAMES,
            "max_target_positions": 64,
            "decoder_start_token_id": 1,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        "attention_dropout",
        ".self_attn",
        modules=2 * LAYERS,
        reads="speech",
        generates=True,
    ),
}
GENERATORS = [name for name, row in ROWS.items() if row.generates]


def build(architecture: str, head: str | None = None, **settings: object) -> PreTrainedModel:
    """A random tiny model, in eval mode: `head` is the class name's ending (default: the row's)."""
    row = ROWS[architecture]
    config = getattr(transformers, f"{row.prefix}Config")(**{**row.settings, **settings})
    model = getattr(transformers, row.prefix + (head or row.head))(config)
    spread(model)
    return model.eval()


def deep(architecture: str, layers: int, **settings: object) -> PreTrainedModel:
    """A random tiny model with so many self-attention modules in each of its stacks."""
    row = ROWS[architecture]
    depth = {n: layers for n, value in row.settings.items() if "layer" in n and value == LAYERS}
    groups = {row.groups: layers} if row.groups else {}
    return build(architecture, **{**depth, **groups, **settings})


def spread(model: torch.nn.Module) -> None:
    """Widen the projections: at their initial 0.02 the attention is nearly uniform, and so are
    right and wrong filters alike."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(4.0)


MODELS: dict[str, Callable[..., PreTrainedModel]] = {
    name: (lambda head=None, _name=name, **settings: build(_name, head, **settings))
    for name in ROWS
}


def inputs(model: PreTrainedModel, padding: str = "none", length: int = 11) -> dict[str, Tensor]:
    """A batch of three: `padding` is none, left, right, or "full" (one row wholly masked too)."""
    row = next(row for row in ROWS.values() if type(model.config).__name__ == f"{row.prefix}Config")
    if row.reads == "images":
        return {"pixel_values": torch.randn(3, 3, 12, 12)}
    ids = torch.randint(3, VOCABULARY, (3, length))
    mask = torch.ones_like(ids)
    if padding == "left":
        mask[0, :4] = 0
        mask[1, :1] = 0
    if padding in ("right", "full"):
        mask[0, -4:] = 0
        mask[1, -1:] = 0
    if padding == "full":
        mask[2] = 0
    if row.reads == "speech":
        states = torch.randn(3, model.config.num_mel_bins, 2 * FRAMES)
        batch = {"input_features": states, "decoder_input_ids": ids}
        return batch if padding == "none" else {**batch, "decoder_attention_mask": mask}
    batch = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.randint(3, VOCABULARY, (3, length - 4))
        batch["decoder_attention_mask"] = mask[:, : length - 4] if padding != "left" else None
    return {name: tensor for name, tensor in batch.items() if tensor is not None}


def gradients(model: torch.nn.Module, out: Tensor, batch: dict[str, Any]) -> dict[str, Tensor]:
    """Of a fixed random sum of what a model returns of tokens; and this, under "out"."""
    mask = batch.get("attention_mask")
    if mask is not None and mask.shape == out.shape[:2]:
        out = out[mask.bool()]
    model.zero_grad()
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    (out * weight).sum().backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"out": out.detach(), **found}
