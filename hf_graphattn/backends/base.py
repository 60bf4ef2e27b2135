"""What one call of an attention layer has, and A made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class AttentionInputs:
    """The arguments of one call of an attention layer, in one form.

    query (B, H, Nq, D) and key (B, H, Nk, D). `mask` is None, boolean (True = attend) or additive
    floating point, broadcastable to (B, H, Nq, Nk); `causal` is only ever True without a mask.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    causal: bool
    scaling: float
    dropout: float


def attention_matrix(inputs: AttentionInputs, rows: slice = slice(None)) -> Tensor:
    """`A = dropout(softmax(Q K^T * scaling + mask))`, (B, H, rows, Nk), in the query's dtype.

    A query row that may attend nowhere is all zero, as in torch's fused kernels.
    """
    query = inputs.query[:, :, rows]
    scores = (query * inputs.scaling) @ inputs.key.mT
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    mask = _rows_of(inputs, rows)
    if mask is None:
        matrix = scores.softmax(-1)
    else:
        lowest = torch.finfo(scores.dtype).min
        if mask.dtype == torch.bool:
            allowed = mask
            scores = scores.masked_fill(~mask, lowest)
        else:
            allowed = ~mask.isneginf()
            scores = (scores + mask).clamp_min(lowest)  # no row of the softmax may be NaN
        matrix = scores.softmax(-1) * allowed.any(-1, keepdim=True)
    matrix = matrix.to(query.dtype)
    return functional.dropout(matrix, inputs.dropout) if inputs.dropout > 0.0 else matrix


def _rows_of(inputs: AttentionInputs, rows: slice) -> Tensor | None:
    if inputs.causal:
        device = inputs.query.device
        positions = torch.arange(inputs.query.shape[-2], device=device)[rows]
        return positions[:, None] >= torch.arange(inputs.key.shape[-2], device=device)
    mask = inputs.mask
    return mask if mask is None or mask.shape[-2] == 1 else mask[..., rows, :]


class Attention:
    """One call's attention. On its own it has inputs only: for variants with their own kernel."""

    name: ClassVar[str] = "blockwise"
    every_value: Tensor | None = None  # the values of all keys, where a cache holds earlier ones

    def __init__(self, inputs: AttentionInputs) -> None:
        self.inputs = inputs

    @property
    def matrix(self) -> Tensor:
        """A, (B, H, Nq, Nk): kept by the eager backend alone."""
        raise NotImplementedError(f"backend {self.name!r} keeps no attention matrix")

    def __call__(self, x: Tensor) -> Tensor:
        """`A x`, (B, H, Nq, D) from (B, H, Nk, D)."""
        raise NotImplementedError(f"backend {self.name!r} leaves A x to the variant's kernel")
