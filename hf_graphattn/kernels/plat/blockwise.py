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

from .naive import Values, naive

BLOCK_ELEMENTS = 2**23  # of one (B, H, rows, Nk) matrix: 32 MB in float32


def blockwise(
    inputs: AttentionInputs,
    values: Values,
    p: float | Tensor,
    eps: float,
    block_rows: int | None = None,
) -> Tensor:
    """p-LaT of `values` under the attention of `inputs`, (B, H, Nq, D); p a number or (H, 1, 1).

    `block_rows`: rows a block; by default as many as keep one matrix under `BLOCK_ELEMENTS`.
    """
    batch, heads, keys, _ = values.every.shape
    length = values.rows.shape[-2]
    rows = block_rows or max(1, BLOCK_ELEMENTS // (batch * heads * keys))
    if rows >= length:
        return _rows(inputs, values, p, eps, 0, length)
    blocks = []
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        blocks.append(checkpoint(_rows, inputs, values, p, eps, start, stop, use_reentrant=False))
    return torch.cat(blocks, dim=-2)


def _rows(
    inputs: AttentionInputs, values: Values, p: float | Tensor, eps: float, start: int, stop: int
) -> Tensor:
    matrix = attention_matrix(inputs, slice(start, stop))
    return naive(matrix, values.block(start, stop), p, eps)
