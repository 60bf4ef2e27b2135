"""Shaped attention: "Simplifying Transformer Blocks", arXiv 2311.01906, sec. 4.

    H = alpha I + beta A - gamma U

U is uniform attention over what a token may see, the A of queries that are zero. The paper's
attention is causal; U under any other mask follows from the same words. It learns the three scalars
of each head from 1, with query weights that start at zero, so that A = U and H = I. Starting from
plain attention instead is ours.

Attention dropout acts on A alone. The authors' code drops out H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from hf_graphattn.backends import DELEGATE

from .base import (
    TRAINABLE_HELP,
    Attend,
    GraphFilter,
    VariantConfig,
    combination,
    every_value,
    register,
    setting,
)

# An additive mask hides a key by so much or less, since exp(-1000) is 0 in every dtype. What is
# above is a position bias. It makes A uneven, but not U.
HIDES = -1e3
# Not `delegate`: the keys that an argument of the architecture's own attention hides are unknown.
BACKENDS = tuple(name for name in GraphFilter.backends if name != DELEGATE)


@register("shaped")
@dataclass(frozen=True)
class ShapedConfig(VariantConfig):
    """Shaped attention (arXiv 2311.01906): `H = alpha I + beta A - gamma U`, U uniform attention.

    It is plain attention at alpha = 0, beta = 1, gamma = 0, where it starts by default, all three
    learned. `simplified` has the paper's start.
    """

    title: ClassVar[str] = "shaped attention"
    colour: ClassVar[int | None] = 9
    scalars: ClassVar[tuple[str, ...]] = ("alpha", "beta", "gamma")
    neutral: ClassVar[tuple[float, ...]] = (0.0, 1.0, 0.0)

    alpha: float = setting(0.0, "weight of the identity")
    beta: float = setting(1.0, "weight of A")
    gamma: float = setting(0.0, "weight of uniform attention, which is subtracted")
    trainable: tuple[str, ...] = setting(("alpha", "beta", "gamma"), TRAINABLE_HELP, kw_only=True)

    @classmethod
    def simplified(cls, **settings: Any) -> Self:
        """The paper's start for training from scratch: alpha = beta = gamma = 1, all learned.

        There the query weights start at zero too, so that A = U. With a pretrained model's, this is
        neither the paper's start nor plain attention.
        """
        return cls(**{"alpha": 1.0, "beta": 1.0, "gamma": 1.0} | settings)

    @classmethod
    def centred(cls, **settings: Any) -> Self:
        """Centred attention (arXiv 2306.01610): `H = A - gamma U`, gamma learned from 0.

        The paper has gamma = 1 in every head: `ShapedConfig.centred(gamma=1.0, trainable=())`.
        There the mean of what a token may see is taken out of its output. Learning gamma from
        plain attention is ours.
        """
        return cls(**{"trainable": ("gamma",)} | settings)

    def build(self, num_heads: int) -> GraphFilter:
        return ShapedFilter(self, num_heads)


class ShapedFilter(GraphFilter):
    """The filter of `ShapedConfig`: `alpha V + beta A V - gamma U V`."""

    backends = BACKENDS

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        gamma = self.scalar("gamma")
        terms = [(self.scalar("beta"), attend(value)), (self.scalar("alpha"), value)]
        if isinstance(gamma, Tensor) or gamma != 0.0:
            terms.append((-gamma, uniform(attend, value)))
        return combination(*terms)


def uniform(attend: Attend, value: Tensor) -> Tensor:
    """`U V`, (B, H, N, D): the mean of the values that each token may see, without dropout.

    Without a mask it is a mean, or a running one; under a mask, a product that takes as much memory
    as the mask. A token that may see nothing has a row of zeros.
    """
    inputs, values = attend.inputs, every_value(attend, value)
    precise = torch.promote_types(values.dtype, torch.float32)
    if inputs.mask is not None:
        seen = inputs.mask if inputs.mask.dtype == torch.bool else inputs.mask > HIDES
        seen = seen.expand(*seen.shape[:-1], values.shape[-2])
        even = (seen / seen.sum(-1, keepdim=True).clamp_min(1).to(precise)).to(values.dtype)
        # Where heads share a mask, einsum makes one product of them; `@` would copy U for each.
        return torch.einsum("...qk,...kd->...qd", even, values).expand(value.shape)
    if inputs.causal:
        rows = value.shape[-2]
        seen = torch.arange(1, rows + 1, device=values.device).unsqueeze(-1)
        return (values[:, :, :rows].cumsum(-2, dtype=precise) / seen).to(values.dtype)
    return values.mean(-2, keepdim=True).expand(value.shape)
