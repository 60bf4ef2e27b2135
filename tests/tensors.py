"""Random queries, keys, values and masks of every kind, and how far a result is from another."""

from __future__ import annotations

import torch
from cases import VariantCase
from torch import Tensor

import hf_graphattn as ga
from hf_graphattn.backends import AttentionInputs
from hf_graphattn.kernels import plat


def mask_of(kind: str, heads: int, length: int) -> Tensor | None:
    """For a batch of two. "full": the second sequence may attend nowhere; "additive" hides by
    -inf; "additive_full" does both."""
    if kind in ("none", "causal"):
        return None
    if kind.startswith("additive"):
        bias = torch.randn(2, heads, length, length)
        hidden = torch.rand(2, 1, length, length) < 0.3
        hidden.diagonal(dim1=-2, dim2=-1).fill_(False)
        hidden[1] |= kind == "additive_full"
        return bias.masked_fill(hidden, float("-inf"))
    keep = torch.ones(2, 1, length, length, dtype=torch.bool)
    hidden = max(1, length // 3) if length > 1 else 0
    if kind == "left":
        keep[0, ..., :hidden] = False
        keep = keep.tril()  # so that the first rows may attend nowhere
    elif kind == "right":
        keep[0, ..., length - hidden :] = False
    else:
        keep[1] = False
    return keep


def states(heads: int, length: int, width: int = 8, batch: int = 2) -> tuple[Tensor, ...]:
    """q, k, v; the queries wide enough for attention that is far from uniform."""
    query, key, value = (torch.randn(batch, heads, length, width) for _ in range(3))
    return 2.0 * query, key, value


def built(case: VariantCase, heads: int) -> ga.GraphFilter:
    graph_filter = case.config.build(heads)
    with torch.no_grad():
        for name, values in case.start(heads).items():
            getattr(graph_filter, name).copy_(values)
    return graph_filter


def inputs_of(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, dropout: float = 0.0
) -> AttentionInputs:
    return AttentionInputs(query, key, mask, causal, query.shape[-1] ** -0.5, dropout)


def error(got: Tensor, expected: Tensor) -> float:
    """Largest difference, over the largest value expected."""
    return ((got.double() - expected).abs().max() / expected.abs().max()).item()


def every(value: Tensor) -> plat.Values:
    """The values of a whole sequence: rows and keys are the same tokens."""
    return plat.Values(every=value, rows=value)


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def close_values(kind: str, length: int, heads: int = 4) -> Tensor:
    """(2, H, N, 16): values whose distances cancel when made from dot products."""
    value = torch.randn(2, heads, length, 16)
    if kind == "nearly equal":
        return 1.0 + 1e-3 * value
    if kind == "offset":
        return value + 300.0
    if kind == "repeated tokens":
        return 3.0 * value[:, :, torch.arange(length) % 5]
    assert kind == "wide"
    return 3.0 * value
