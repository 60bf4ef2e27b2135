"""A temperature of the softmax, and scalable softmax (SSMax): arXiv 2501.19399.

    A_x = softmax((slope log n_x + offset) q_x K^T * scaling + mask),    out = A V

n_x is the number of keys that token x may see. With longer contexts softmax spreads its weight over
more keys; a factor that grows as log n keeps it from fading. The paper learns s (here `slope`) for
each head from training from nothing, with and without a bias b (here `offset`). Starting at plain
attention, and counting n_x under any mask, are ours.

The factor acts on the queries, before the softmax: position biases and other additive masks are
added to the scores as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hf_graphattn.backends import AttentionInputs

from .base import (
    TRAINABLE_HELP,
    Attend,
    GraphFilter,
    VariantConfig,
    attend_all,
    combination,
    register,
    setting,
)
from .shaped import BACKENDS, HIDES


@register("temperature")
@dataclass(frozen=True)
class TemperatureConfig(VariantConfig):
    """Temperature and SSMax (arXiv 2501.19399): queries times `slope log n_x + offset`.

    n_x is the number of keys that token x may see. It is plain attention at slope = 0, offset = 1,
    where it starts by default, both learned. A temperature alone is `trainable=("offset",)`.
    """

    title: ClassVar[str] = "temperature"
    colour: ClassVar[int | None] = 17
    scalars: ClassVar[tuple[str, ...]] = ("slope", "offset")
    neutral: ClassVar[tuple[float, ...]] = (0.0, 1.0)

    slope: float = setting(0.0, "how the queries grow with log n, n the keys that a token may see")
    offset: float = setting(1.0, "factor of the queries at n = 1, an inverse temperature")
    trainable: tuple[str, ...] = setting(("slope", "offset"), TRAINABLE_HELP, kw_only=True)

    def build(self, num_heads: int) -> GraphFilter:
        return TemperatureFilter(self, num_heads)


class TemperatureFilter(GraphFilter):
    """The filter of `TemperatureConfig`: one pass of attention with other queries."""

    groups = True
    backends = BACKENDS  # not `delegate`, whose queries are out of reach

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        inputs = attend.inputs
        factor = self.scalar("slope") * log_visible(inputs) + self.scalar("offset")
        # Cached values as they are: a backend that groups heads does not want them a query head.
        values = value if attend.every_value is None else attend.every_value
        return attend_all(attend, values, query=combination((factor, inputs.query)))


def log_visible(inputs: AttentionInputs) -> Tensor:
    """`log n_x`, (B or 1, H or 1, Nq or 1, 1), in float32 (float64 for float64 queries).

    It is 0 for a token that may see nothing.
    """
    query, mask, keys = inputs.query, inputs.mask, inputs.key.shape[-2]
    if mask is not None:
        seen = mask if mask.dtype == torch.bool else mask > HIDES
        visible = seen.expand(*seen.shape[:-1], keys).sum(-1, keepdim=True).clamp_min(1)
    elif inputs.causal:
        visible = torch.arange(1, query.shape[-2] + 1, device=query.device).view(1, 1, -1, 1)
    else:
        visible = torch.full((1, 1, 1, 1), keys, device=query.device)
    return visible.to(torch.promote_types(query.dtype, torch.float32)).log()
