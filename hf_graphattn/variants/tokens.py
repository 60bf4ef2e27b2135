"""Filters of tokens: attention stays plain, and they act after it, on (B, N, C) as on one head.

`attend(x)` is here the attention of the tokens to themselves, `softmax(X X^T + mask) x`, with the
mask of the layer's own attention: padding is excluded, and later tokens in causal models. Masks
other than that of padding are ours: the papers have images, and bidirectional models.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hf_graphattn.errors import refusal

from .base import Attend, GraphFilter, VariantConfig

TRAINABLE_HELP = "which scalars are learned, one value for each channel; the others stay as given"


class TokenFilter(GraphFilter):
    """One layer's filter of tokens. A learned scalar is a `nn.Parameter` of shape (C,)."""

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        """The filtered tokens, (B, 1, N, C), from the tokens and their attention to themselves."""
        raise NotImplementedError

    def matrix(self, attend: Attend, value: Tensor) -> Tensor:
        """`A`, (B, H, N, N), of the layer's attention, which stays plain."""
        return attend.matrix

    def scalar(self, name: str) -> float | Tensor:
        """A scalar in the shape that multiplies (B, 1, N, C): a number, or a tensor (C,)."""
        scalar: Any = self.own(name)
        return scalar


def refuse_tokens(config: VariantConfig, where: str) -> None:
    """Raise `GraphAttentionError` for the config of a filter of tokens.

    where: what has no place for it.
    """
    if config.place:
        raise refusal(
            "config",
            config,
            f"a filter of attention in {where}, since variant {config.variant!r} filters tokens "
            f"after attention, in transformers models",
        )
