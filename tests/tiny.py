"""Tiny models, one builder an architecture of the table, and inputs for them.

`MODELS` has exactly the rows of `hf_graphattn.architectures.ARCHITECTURES` (a guard compares).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

VOCABULARY = 61
HEADS = 4
LAYERS = 2

_ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}
_SETTINGS = {
    "ALBERT": ("Albert", {**_ENCODER, "embedding_size": 16}),
    "BART": ("Bart", _BART),
    "BERT": ("Bert", _ENCODER),
    "GPT-2": (
        "GPT2",
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
    ),
    "PLBART": ("PLBart", _BART),
    "RoBERTa": ("Roberta", {**_ENCODER, "pad_token_id": 0}),
    "T5": (
        "T5",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "decoder_start_token_id": 0,
        },
    ),
}
HEADLESS = "Model"
HEADED = {
    "ALBERT": "ForSequenceClassification",
    "BART": "ForConditionalGeneration",
    "BERT": "ForSequenceClassification",
    "GPT-2": "LMHeadModel",
    "PLBART": "ForConditionalGeneration",
    "RoBERTa": "ForSequenceClassification",
    "T5": "ForConditionalGeneration",
}


def build(architecture: str, head: str | None = None, **settings: object) -> PreTrainedModel:
    """A random tiny model, in eval mode: `head` is the class name's ending (default: a head)."""
    prefix, own = _SETTINGS[architecture]
    config = getattr(transformers, f"{prefix}Config")(**{**own, **settings})
    model = getattr(transformers, prefix + (head or HEADED[architecture]))(config)
    spread(model)
    return model.eval()


def spread(model: torch.nn.Module) -> None:
    """Widen the projections: at their initial 0.02 the attention is nearly uniform, and so are
    right and wrong filters alike."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(4.0)


MODELS: dict[str, Callable[..., PreTrainedModel]] = {
    name: (lambda head=None, _name=name, **settings: build(_name, head, **settings))
    for name in _SETTINGS
}


def inputs(model: PreTrainedModel, padding: str = "none", length: int = 11) -> dict[str, Tensor]:
    """A batch of three: `padding` is none, left, right, or "full" (one row wholly masked too)."""
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
    batch = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.randint(3, VOCABULARY, (3, length - 4))
        batch["decoder_attention_mask"] = mask[:, : length - 4] if padding != "left" else None
    return {name: tensor for name, tensor in batch.items() if tensor is not None}


def self_attention_count(architecture: str) -> int:
    """How many self-attention modules the tiny model has."""
    if architecture == "ALBERT":
        return 1  # one module serves every layer
    return 2 * LAYERS if architecture in ("BART", "PLBART", "T5") else LAYERS
