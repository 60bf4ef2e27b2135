"""What the published GFSA code computes, as an attention function for whole models.

arXiv 2312.04234, eq. 4 to 6, the long way: A^2 is formed, H is formed, H meets the values last.
Shares no line with hf_graphattn: own rule for which modules are self-attention, transformers'
additive masks, coefficients that hang beside the modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tiny import ROWS
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

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
