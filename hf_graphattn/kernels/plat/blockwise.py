"""p-LaT in blocks of query rows: memory linear in the length.

A block of rows sees all keys, so its softmax is an ordinary one. Each block is recomputed in the
backward (dropout repeats its random numbers), so that no block's matrices outlive it. A sequence
short enough for one block is computed whole and keeps its matrices, as plain attention does.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hf_graphattn.backends import AttentionInputs, attention_matrix

from .naive import weights

BLOCK_ELEMENTS = 2**23  # of one (B, H, rows, Nk) matrix: 32 MB in float32


def blockwise(
    inputs: AttentionInputs,
    value: Tensor,
    p: float | Tensor,
    eps: float,
    block_rows: int | None = None,
) -> Tensor:
    """p-LaT of `value` (B, H, N, D) under the attention of `inputs`; p a number or (H, 1, 1).

    `block_rows`: rows a block; by default as many as keep one matrix under `BLOCK_ELEMENTS`.
    """
    batch, heads, length, _ = value.shape
    rows = block_rows or max(1, BLOCK_ELEMENTS // (batch * heads * length))
    if rows >= length:
        return _rows(inputs, value, p, eps, 0, length)
    blocks = []
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        blocks.append(checkpoint(_rows, inputs, value, p, eps, start, stop, use_reentrant=False))
    return torch.cat(blocks, dim=-2)


def _rows(
    inputs: AttentionInputs, value: Tensor, p: float | Tensor, eps: float, start: int, stop: int
) -> Tensor:
    matrix = attention_matrix(inputs, slice(start, stop))
    return (weights(matrix, value, p, eps, start) @ value).to(value.dtype)
