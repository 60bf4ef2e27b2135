"""The layers of the architectures that have a place for filters of tokens, made by hand.

Only a plain model's parameters are used, by the names of its modules; no line calls the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import Any

import torch
from cases import TOKEN_CASES, attention
from tiny import HEADS, LAYERS
from torch import Tensor, nn


@dataclass(frozen=True)
class Layer:
    """What a layer's modules are called: those of queries, keys and values, of the attention's
    projection, of the MLP; the layer norms before, after attention, and after the MLP."""

    states: str
    out: str
    mlp: str
    first: str | None
    norm: str
    last: str | None


_BERT = Layer(
    "attention.self.query attention.self.key attention.self.value",
    "attention.output.dense",
    "intermediate output.dense",
    None,
    "attention.output.LayerNorm",
    "output.LayerNorm",
)
_VIT = Layer(
    "attention.q_proj attention.k_proj attention.v_proj",
    "attention.o_proj",
    "mlp",
    "layernorm_before",
    "layernorm_after",
    None,
)
LAYERS_OF = {
    "ALBERT": Layer(
        "attention.query attention.key attention.value",
        "attention.dense",
        "ffn activation ffn_output",
        None,
        "attention.LayerNorm",
        "full_layer_layer_norm",
    ),
    "BERT": _BERT,
    "DeiT": _VIT,
    "DistilBERT": Layer(
        "attention.q_lin attention.k_lin attention.v_lin",
        "attention.out_lin",
        "ffn",
        None,
        "sa_layer_norm",
        "output_layer_norm",
    ),
    "ELECTRA": _BERT,
    "GPT-2": Layer("attn.c_attn", "attn.c_proj", "mlp", "ln_1", "ln_2", None),
    "RoBERTa": _BERT,
    "ViT": _VIT,
}
BLOCKS = {
    "ALBERT": "encoder.albert_layer_groups.0.albert_layers",
    "DistilBERT": "transformer.layer",
    "GPT-2": "h",
    "DeiT": "layers",
    "ViT": "layers",
}


def seen_by(batch: dict[str, Any], length: int, causal: bool) -> Tensor:
    """Which tokens each may see, (B, N, N)."""
    seen = torch.ones(3, length, length, dtype=torch.bool)
    if "attention_mask" in batch:
        seen &= batch["attention_mask"].bool()[:, None]
    return seen.tril() if causal else seen


def layer_of(
    names: Layer, layer: nn.Module, x: Tensor, seen: Tensor, variant: str, scalars: dict[str, Any]
) -> Tensor:
    """One layer, from the tokens, (B, N, C), by its modules."""

    def run(paths: str | None, x: Tensor) -> Tensor:
        return reduce(lambda x, path: attrgetter(path)(layer)(x), (paths or "").split(), x)

    def act(at: str, x: Tensor) -> Tensor:
        if variant != at:
            return x
        formula = TOKEN_CASES[variant].formula
        return torch.stack([formula(*each, scalars) for each in zip(x, seen, strict=True)])

    before = run(names.first, x)
    states = torch.cat([run(path, before) for path in names.states.split()], -1)
    heads = [s.unflatten(-1, (HEADS, -1)).transpose(1, 2) for s in states.chunk(3, -1)]
    matrix = attention(*heads[:2], heads[0].shape[-1] ** -0.5, seen[:, None], False)
    added = act("featscale", run(names.out, (matrix @ heads[2]).transpose(1, 2).flatten(2)))
    if names.first:
        x = x + added
        return x + run(names.mlp, run(names.norm, act("contranorm", x)))
    x = run(names.norm, act("contranorm", x + added))
    return run(names.last, x + run(names.mlp, x))


def reference(
    architecture: str, model: Any, batch: dict[str, Any], variant: str, scalars: list[Any]
) -> Tensor:
    """The last hidden states of a plain model whose layers are made here, (B, N, C)."""
    x = model(**batch, output_hidden_states=True).hidden_states[0]
    seen = seen_by(batch, x.shape[1], causal=architecture == "GPT-2")
    blocks = [*model.get_submodule(BLOCKS.get(architecture, "encoder.layer"))]
    for layer, own in zip(blocks * (LAYERS // len(blocks)), scalars, strict=False):
        x = layer_of(LAYERS_OF[architecture], layer, x, seen, variant, own)
    final = {"GPT-2": "ln_f", "ViT": "layernorm", "DeiT": "layernorm"}.get(architecture)
    return model.get_submodule(final)(x) if final else x
