"""A stand-in for the package flash_attn, which needs a CUDA device.

Its two functions, written in plain torch after the package's documentation, with any dtype. What
the tests learn from it is what the library makes of flash_attn: layout, packing, scale, causality,
dropout. They learn nothing of its kernels.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_graphattn.backends import flash


def install(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Let `import flash_attn` find the stand-in, and the library use it on the CPU."""
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in)
    monkeypatch.setattr(flash, "DTYPES", (torch.float32, torch.float64, torch.bfloat16))
    return stand_in


class StandIn(ModuleType):
    """The package flash_attn; `calls` are the options of every call."""

    def __init__(self) -> None:
        super().__init__("flash_attn")
        self.calls: list[dict[str, Any]] = []

    def flash_attn_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        """(B, Nq, H, D) from q (B, Nq, H, D) and k, v (B, Nk, H, D)."""
        assert q.dtype == k.dtype == v.dtype
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        self.calls.append({"dropout_p": dropout_p, "causal": causal, "packed": False})
        return torch.stack(
            [_attention(*qkv, softmax_scale, causal) for qkv in zip(q, k, v, strict=True)]
        )

    def flash_attn_varlen_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        """(all Nq, H, D) from q (all Nq, H, D) and k, v (all Nk, H, D): sequence after sequence."""
        assert q.dtype == k.dtype == v.dtype
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        assert ends_q[0] == ends_k[0] == 0
        assert (ends_q[-1], ends_k[-1]) == (len(q), len(k))
        assert max_seqlen_q == max(b - a for a, b in pairwise(ends_q))
        assert max_seqlen_k == max(b - a for a, b in pairwise(ends_k))
        self.calls.append({"dropout_p": dropout_p, "causal": causal, "packed": True})
        parts = [
            _attention(q[a:b], k[c:d], v[c:d], softmax_scale, causal)
            for (a, b), (c, d) in zip(pairwise(ends_q), pairwise(ends_k), strict=True)
        ]
        return torch.cat(parts)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool) -> Tensor:
    """(Nq, H, D) of one sequence. Causal, the last row sees all keys, the row before one less; a
    row that sees none is zero."""
    scores = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    rows, keys = scores.shape[-2:]
    seen = torch.ones(rows, keys, dtype=torch.bool)
    seen = seen.tril(keys - rows) if causal else seen
    matrix = scores.masked_fill(~seen, float("-inf")).softmax(-1).masked_fill(~seen, 0.0)
    return torch.einsum("hij,jhd->ihd", matrix, v)
