"""Tiny models, one row an architecture of the table, and inputs for them.

`ROWS` has exactly the rows of the library's `ARCHITECTURES` (a guard compares). No line reads the
library's table: where a model's self-attention is, is written here again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

VOCABULARY = 61
HEADS = 4
LAYERS = 2
FRAMES = 12  # of Whisper's encoder
WIDTH, INNER, POSITIONS = 32, 48, 64
# Settings of configs, of which each model has those that its config class knows.
SIZES = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "d_model", "dim", "n_embd", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "ffn_dim", "d_ff"), INNER),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), INNER),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_target_positions"), POSITIONS),
    "num_key_value_heads": HEADS // 2,
    **dict.fromkeys(("head_dim", "d_kv", "num_mel_bins"), WIDTH // HEADS),
    "embedding_size": WIDTH // 2,
    "image_size": 12,
    "patch_size": 4,
    "max_source_positions": FRAMES,
}
DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop", "dropout_rate")
CLASSIFIES, SEES = "ForSequenceClassification", "ForImageClassification"
WRITES, READS_AND_WRITES = "ForCausalLM", "ForConditionalGeneration"


@dataclass(frozen=True)
class Tiny:
    """One architecture.

    prefix, head: of the class names; the head is the one that most tests build.
    self_attention: how the qualified names of the self-attention modules end.
    more: settings of the config beside `SIZES`.
    is_shared: whether all layers share one module, and there is no gradient checkpointing.
    """

    prefix: str
    head: str
    self_attention: str
    more: dict[str, Any] = field(default_factory=dict)
    is_shared: bool = False

    @property
    def config_class(self) -> type[transformers.PreTrainedConfig]:
        return getattr(transformers, f"{self.prefix}Config")

    @property
    def settings(self) -> dict[str, Any]:
        known = {each.name for each in fields(self.config_class)}
        return {name: size for name, size in SIZES.items() if name in known} | self.more

    @property
    def dropout(self) -> str:
        """The setting that is attention dropout."""
        known = {each.name for each in fields(self.config_class)}
        return next(name for name in DROPOUTS if name in known)

    @property
    def modules(self) -> int:
        """How many self-attention modules there are."""
        return 1 if self.is_shared else LAYERS * (1 + (self.head == READS_AND_WRITES))

    @property
    def reads(self) -> str:
        return {SEES: "images"}.get(self.head, "speech" if self.prefix == "Whisper" else "text")

    @property
    def padding(self) -> tuple[str, ...]:
        """What the batches of the tests may have."""
        return ("none",) if self.reads == "images" else ("none", "left", "right")

    @property
    def generates(self) -> bool:
        return self.head not in (CLASSIFIES, SEES)


_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_PAD = {"pad_token_id": 0}
ROWS = {
    "ALBERT": Tiny("Albert", CLASSIFIES, ".attention", is_shared=True),
    "BART": Tiny("Bart", READS_AND_WRITES, ".self_attn"),
    "BERT": Tiny("Bert", CLASSIFIES, ".attention.self"),
    "DeiT": Tiny("DeiT", SEES, ".attention"),
    "DistilBERT": Tiny("DistilBert", CLASSIFIES, ".attention"),
    "ELECTRA": Tiny("Electra", CLASSIFIES, ".attention.self"),
    "GPT-2": Tiny("GPT2", "LMHeadModel", ".attn", _SPECIAL),
    "GPT-NeoX": Tiny("GPTNeoX", WRITES, ".attention", _SPECIAL),
    "Llama": Tiny("Llama", WRITES, ".self_attn", _SPECIAL),
    "Mistral": Tiny("Mistral", WRITES, ".self_attn", {**_SPECIAL, "sliding_window": 6}),
    "ModernBERT": Tiny(
        "ModernBert",
        CLASSIFIES,
        ".attn",
        {**_PAD, "local_attention": 6, "classifier_pooling": "mean"},
    ),
    "OPT": Tiny("OPT", WRITES, ".self_attn", _PAD),
    "PLBART": Tiny("PLBart", READS_AND_WRITES, ".self_attn"),
    "Qwen3": Tiny(
        "Qwen3",
        WRITES,
        ".self_attn",
        # The first layer sees everything, the second a window.
        {**_SPECIAL, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "RoBERTa": Tiny("Roberta", CLASSIFIES, ".attention.self", _PAD),
    "T5": Tiny(
        "T5",
        READS_AND_WRITES,
        ".SelfAttention",
        # T5 starts wide enough that `spread` would drown float32.
        {"decoder_start_token_id": 0, "initializer_factor": 0.5},
    ),
    "ViT": Tiny("ViT", SEES, ".attention"),
    "Whisper": Tiny(
        "Whisper", READS_AND_WRITES, ".self_attn", {**_SPECIAL, "decoder_start_token_id": 1}
    ),
}
GENERATORS = [name for name, row in ROWS.items() if row.generates]


def build(architecture: str, head: str | None = None, **settings: object) -> PreTrainedModel:
    """A random tiny model, in eval mode: `head` is the class name's ending (default: the row's)."""
    row = ROWS[architecture]
    config = row.config_class(**{**row.settings, **settings})
    model = getattr(transformers, row.prefix + (head or row.head))(config)
    spread(model)
    return model.eval()


def deep(architecture: str, layers: int, **settings: object) -> PreTrainedModel:
    """A random tiny model with so many self-attention modules in each of its stacks."""
    row = ROWS[architecture]
    depth = {n: layers for n, value in row.settings.items() if "layer" in n and value == LAYERS}
    groups = {"num_hidden_groups": layers} if row.is_shared else {}
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
    row = next(row for row in ROWS.values() if type(model.config) is row.config_class)
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
