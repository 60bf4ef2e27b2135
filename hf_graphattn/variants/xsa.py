"""XSA, exclusive self-attention: arXiv 2603.09078.

    out_x = y_x - a (y_x . v_x / |v_x|^2) v_x,    y = A V,    a = `exclusion`

A token's output is made orthogonal to its own value. The paper has a = 1 in every head, and nothing
is learned. Any other `exclusion`, and learning it for each head, are ours. With `bounded` it is the
gate of a training record of modded-nanogpt, a = tanh(exclusion), learned from 0, which keeps a
between -1 and 1.

A token whose value is zero has no direction to exclude: its output is y_x. Attention dropout acts
on A, before the exclusion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hf_graphattn.errors import refusal

from .base import Attend, GraphFilter, VariantConfig, combination, register, setting


@register("xsa")
@dataclass(frozen=True)
class XSAConfig(VariantConfig):
    """XSA (arXiv 2603.09078): `y - exclusion (y.v / |v|^2) v`, y = A V, v a token's own value.

    It is plain attention at exclusion = 0. The paper trains from scratch with exclusion = 1. A
    pretrained checkpoint relies on what is excluded, so start at 0 there and learn it:
    `XSAConfig(exclusion=0.0, trainable=("exclusion",))`. With bounded=True tanh(exclusion) is in
    its place.
    """

    title: ClassVar[str] = "XSA"
    colour: ClassVar[int | None] = 11
    scalars: ClassVar[tuple[str, ...]] = ("exclusion",)
    neutral: ClassVar[tuple[float, ...]] = (0.0,)
    later: ClassVar[tuple[str, ...]] = ("bounded",)

    exclusion: float = setting(1.0, "how much is removed along a token's own value, 1 is all")
    bounded: bool = setting(
        False, "whether tanh(exclusion) is removed, which stays within -1 and 1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.bounded, bool):
            raise refusal("bounded", self.bounded, "True or False")

    def build(self, num_heads: int) -> GraphFilter:
        return XSAFilter(self, num_heads)


class XSAFilter(GraphFilter):
    """The filter of `XSAConfig`: one pass of attention, and a projection of each row."""

    def __init__(self, config: XSAConfig, num_heads: int) -> None:
        super().__init__(config, num_heads)
        self.bounded = config.bounded

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        once = attend(value)
        return combination((1.0, once), (-self._share(once, value), value))

    def matrix(self, attend: Attend, value: Tensor) -> Tensor:
        """`A - diag(a y_x . v_x / |v_x|^2)`, (B, H, N, N), which depends on the values."""
        _, identity = attend.on_identity(value)
        share = self._share(attend(value), value)
        return combination((1.0, attend.matrix), (-share, identity))

    def _share(self, once: Tensor, value: Tensor) -> Tensor:
        """`a y_x . v_x / |v_x|^2`, (B, H, N, 1), in float32 (float64 for float64 values)."""
        precise = torch.promote_types(value.dtype, torch.float32)
        once, value = once.to(precise), value.to(precise)
        # Of a zero value both products are 0: any divisor but 0 gives the share 0, and no NaN.
        square = value.square().sum(-1, keepdim=True).clamp_min(torch.finfo(precise).tiny)
        exclusion = self.scalar("exclusion")
        if self.bounded:
            exclusion = torch.as_tensor(exclusion).tanh()
        return exclusion * (once * value).sum(-1, keepdim=True) / square
