"""Two copies of a tiny model, one patched and one with the published form, compared."""

from __future__ import annotations

import copy

import published
import torch
from tiny import HEADS, MODELS, ROWS, inputs
from torch import Tensor
from transformers import PreTrainedModel

import hf_graphattn as ga

ALL = ("w_0", "w_1", "w_K")
ORDER = 4
TOLERANCE = 1e-4


def pair(
    architecture: str, backend: str, order: int = ORDER, **settings: object
) -> tuple[PreTrainedModel, dict[str, published.Coefficients], PreTrainedModel]:
    """(model with the published form, its coefficients, patched model with the same ones)."""
    torch.manual_seed(0)
    model = MODELS[architecture](**settings)
    patched = copy.deepcopy(model)
    own = published.attach(model, architecture, HEADS, order)
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
    own: dict[str, published.Coefficients],
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


def check_against_published(
    architecture: str, backend: str, padding: str, *, with_gradients: bool
) -> None:
    """One cell of the matrix in features.py: every architecture, backend and padding."""
    model, own, patched = pair(architecture, backend)
    batch = inputs(model, padding)
    expected, got = outputs(model, batch), outputs(patched, batch)
    assert_same(got, expected)
    if with_gradients:
        backward(expected)
        backward(got)
        assert_same_gradients(model, own, patched)
