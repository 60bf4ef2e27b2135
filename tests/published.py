"""What the published GFSA code computes, as an attention function for whole models.

arXiv 2312.04234, eq. 4 to 6, the long way: A^2 is formed, H is formed, H meets the values last.
Shares no line with hf_graphattn: own rule for which modules are self-attention, transformers'
additive masks, coefficients that hang beside the modules.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from tiny import HEADS, MODELS, ROWS
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

import hf_graphattn as ga

NAME = "published_gfsa"
COEFFICIENTS = "published_coefficients"


@dataclass
class Coefficients:
    """One self-attention module's: the order K, and a tensor (heads,) a scalar."""

    order: int
    w_0: Tensor
    w_1: Tensor
    w_K: Tensor


def attach(
    model: PreTrainedModel, architecture: str, heads: int, order: int
) -> dict[str, Coefficients]:
    """Make a plain model compute GFSA with random coefficients: module name -> coefficients."""
    attached = {}
    for name, module in model.named_modules():
        if name.endswith(ROWS[architecture].self_attention):
            attached[name] = Coefficients(
                order,
                w_0=(0.1 * torch.randn(heads)).requires_grad_(),
                w_1=(1.0 + 0.2 * torch.randn(heads)).requires_grad_(),
                w_K=(0.2 * torch.randn(heads)).requires_grad_(),
            )
            module.__dict__[COEFFICIENTS] = attached[name]
    model.set_attn_implementation(NAME)
    return attached


def published_gfsa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Output (B, N, H, D) and the matrix (B, H, N, N) that made it; dropout acts on A first."""
    groups = query.shape[1] // key.shape[1]
    key, value = (
        torch.cat([x[:, h // groups, None] for h in range(query.shape[1])], 1) for x in (key, value)
    )
    scores = query @ key.transpose(-1, -2)
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    for additive in (position_bias, attention_mask):
        if additive is not None:
            scores = scores + additive
    matrix = functional.dropout(scores.softmax(dim=-1), dropout)
    own: Coefficients | None = module.__dict__.get(COEFFICIENTS)
    if own is not None:
        matrix = graph_filter(matrix, own)
    return (matrix @ value).transpose(1, 2).contiguous(), matrix


def graph_filter(matrix: Tensor, own: Coefficients) -> Tensor:
    """`w_0 I + w_1 A + w_K (A + (K - 1) (A A - A))`, (B, H, N, N)."""
    w_0, w_1, w_K = (w[None, :, None, None] for w in (own.w_0, own.w_1, own.w_K))
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    power = matrix + (own.order - 1) * (matrix @ matrix - matrix)
    return w_0 * identity + w_1 * matrix + w_K * power


AttentionInterface.register(NAME, published_gfsa)
AttentionMaskInterface.register(NAME, eager_mask)


ALL = ("w_0", "w_1", "w_K")
ORDER = 4
TOLERANCE = 1e-4


def pair(
    architecture: str, backend: str, order: int = ORDER, **settings: object
) -> tuple[PreTrainedModel, dict[str, Coefficients], PreTrainedModel]:
    """(model with the published form, its coefficients, patched model with the same ones)."""
    torch.manual_seed(0)
    model = MODELS[architecture](**settings)
    patched = copy.deepcopy(model)
    own = attach(model, architecture, HEADS, order)
    ga.patch_model(patched, ga.GFSAConfig(order=order, trainable=ALL), backend=backend)
    filters = ga.graph_filters(patched)
    assert filters.keys() == own.keys()
    assert len(own) == ROWS[architecture].modules
    with torch.no_grad():
        for name, coefficients in own.items():
            for scalar in ALL:
                getattr(filters[name], scalar).copy_(getattr(coefficients, scalar))
    return model, own, patched


def outputs(model: PreTrainedModel, batch: dict[str, Tensor]) -> list[Tensor]:
    """The logits and every layer's states, at the positions that are not padding."""
    found = model(**batch, output_hidden_states=True)
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    states = list(found[f"{prefix}hidden_states"])
    if model.config.is_encoder_decoder:
        encoder = list(found["encoder_hidden_states"])
        if "attention_mask" in batch:
            encoder = [state[batch["attention_mask"].bool()] for state in encoder]
    else:
        encoder = []
    mask = batch.get(f"{prefix}attention_mask")
    keep = torch.ones(states[0].shape[:2]).bool() if mask is None else mask.bool()
    logits = found["logits"]
    logits = logits[keep] if logits.dim() == 3 else logits
    return [logits, *(state[keep] for state in states), *encoder]


def backward(made: list[Tensor]) -> None:
    """Gradients of a fixed random combination of everything compared."""
    generator = torch.Generator().manual_seed(7)
    sum((one * torch.randn(one.shape, generator=generator)).mean() for one in made).backward()


def assert_same(got: list[Tensor], expected: list[Tensor], tolerance: float = TOLERANCE) -> None:
    for one, other in zip(got, expected, strict=True):
        close_to_largest(one, other, other.abs().max().clamp_min(1.0), tolerance)


def close_to_largest(
    got: Tensor, expected: Tensor, scale: Tensor, tolerance: float = TOLERANCE
) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= tolerance * scale


def assert_same_gradients(
    model: PreTrainedModel,
    own: dict[str, Coefficients],
    patched: PreTrainedModel,
    tolerance: float = TOLERANCE,
) -> None:
    for scalar in ALL:
        expected = torch.stack([getattr(c, scalar).grad for c in own.values()])
        got = torch.stack([getattr(f, scalar).grad for f in ga.graph_filters(patched).values()])
        assert expected.abs().min() > 0
        close_to_largest(got, expected, expected.abs().max(), tolerance)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    largest = torch.stack([gradient.abs().max() for gradient in gradients.values()]).max()
    parameters = dict(patched.named_parameters())
    assert len(gradients) > 10
    for name, gradient in gradients.items():
        close_to_largest(parameters[name].grad, gradient, largest, tolerance)
