"""LASER, attention with an exponential transformation: arXiv 2411.03493.

    out = log(A exp(c tanh(V / c))),    c = `clamp`

The exponential and the logarithm are elementwise. The paper has `log(A exp(V))`; the clamp, which
bounds the values by c, is that of x-transformers. As in the paper a channel's greatest value over
the keys, m, is taken out: `log(A exp(V)) = m + log(A exp(V - m))`. Clamped values are less than 2 c
apart, so that nothing vanishes in a dtype that holds exp(-2 c), whatever a mask hides.

There is no setting at which it is plain attention, and nothing is learned. Nor is there a matrix H:
every channel has weights of its own. Attention dropout acts on A, before the logarithm. A token
that sees nothing, or of which all is dropped, has a row of zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hf_graphattn.errors import refusal

from .base import (
    Attend,
    GraphFilter,
    VariantConfig,
    attend_all,
    every_value,
    finite_number,
    register,
    setting,
)


@register("laser")
@dataclass(frozen=True)
class LASERConfig(VariantConfig):
    """LASER (arXiv 2411.03493): `log(A exp(c tanh(V / c)))`, elementwise, c = `clamp`.

    It is plain attention at no setting: a pretrained checkpoint is changed at once. It has no
    matrix H, so that neither `output_attentions` nor `diagnose` can be used.
    """

    title: ClassVar[str] = "LASER"
    colour: ClassVar[int | None] = 5

    clamp: float = setting(15.0, "bound of the values, by c tanh(v / c); exp(-2 c) is to be held")

    def __post_init__(self) -> None:
        super().__post_init__()
        clamp = finite_number("clamp", self.clamp)
        if clamp <= 0:
            raise refusal("clamp", self.clamp, "a number above 0")
        self._set("clamp", clamp)

    def build(self, num_heads: int) -> GraphFilter:
        return LASERFilter(self, num_heads)


class LASERFilter(GraphFilter):
    """The filter of `LASERConfig`: one pass of attention over the exponentials of the values."""

    without_matrix = "log(A exp(V))"

    def __init__(self, config: LASERConfig, num_heads: int) -> None:
        super().__init__(config, num_heads)
        self.clamp = config.clamp

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        """`log(A exp V)` of the clamped values, (B, H, N, D).

        Raises:
            GraphAttentionError: the values' dtype does not hold exp(-2 clamp).
        """
        most = -math.log(torch.finfo(value.dtype).tiny) / 2
        if self.clamp > most:
            raise refusal(
                "clamp",
                self.clamp,
                f"at most {most:.1f} in {value.dtype}, which holds no smaller exponentials",
                "Lower it, or load the model in torch.bfloat16 or torch.float32.",
            )
        precise = torch.promote_types(value.dtype, torch.float32)
        clamped = self.clamp * torch.tanh(every_value(attend, value).to(precise) / self.clamp)
        greatest = clamped.detach().amax(-2, keepdim=True)
        raised = (clamped - greatest).exp().to(value.dtype)
        total = attend_all(attend, raised).to(precise)
        hidden = total == 0.0
        logarithm = total.masked_fill(hidden, 1.0).log() + greatest
        return logarithm.masked_fill(hidden, 0.0).to(value.dtype)
