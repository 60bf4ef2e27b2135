"""ContraNorm: arXiv 2303.06562.

    out = (1 + scale) x - scale softmax(x^ x^T) x

x are the tokens that enter the layer norm after attention, x^ the same of length 1. So each token
moves away from those that are like it. In post-norm models (BERT) x is the sum of the attention's
output and the residual, position 7 of the authors' code, for which it reports its results. In
pre-norm models (ViT) it is the same sum on its way to the MLP alone: the residual stream stays. The
authors' code for images has it before every layer norm; once a layer is ours.

The paper fixes `scale`, at 0.005 and 0.01 in the authors' examples of BERT; their code for images
has one for each channel, which can be learned. Leaving padding out, which the authors' code attends
to, is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .base import (
    TOKENS_TRAINABLE_HELP,
    Attend,
    GraphFilter,
    TokenFilter,
    VariantConfig,
    attend_all,
    combination,
    register,
    setting,
)


@register("contranorm")
@dataclass(frozen=True)
class ContraNormConfig(VariantConfig):
    """ContraNorm (arXiv 2303.06562): `(1 + scale) x - scale softmax(x^ x^T) x` of the tokens x.

    It acts on what enters the layer norm after attention; x^ are the tokens scaled to length 1.
    The model is plain at scale = 0. Where attention is causal, a token moves away from itself and
    earlier ones alone.
    """

    title: ClassVar[str] = "ContraNorm"
    colour: ClassVar[int | None] = 1
    scalars: ClassVar[tuple[str, ...]] = ("scale",)
    neutral: ClassVar[tuple[float, ...]] = (0.0,)
    place: ClassVar[str] = "norm"

    scale: float = setting(0.01, "how far each token moves away from those that are like it")
    trainable: tuple[str, ...] = setting((), TOKENS_TRAINABLE_HELP, kw_only=True)

    def build(self, num_heads: int) -> GraphFilter:
        return ContraNormFilter(self, num_heads)


class ContraNormFilter(TokenFilter):
    """The filter of `ContraNormConfig`: one pass of attention of the tokens to themselves."""

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        precise = value.to(torch.promote_types(value.dtype, torch.float32))
        unit = normalize(precise, dim=-1).to(value.dtype)
        like = attend_all(attend, value, query=unit, key=unit)
        scale = self.scalar("scale")
        return combination((1.0 + scale, value), (-scale, like))
