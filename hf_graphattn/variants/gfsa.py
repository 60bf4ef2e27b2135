"""GFSA, Graph Filter-based Self-Attention: arXiv 2312.04234, eq. 4 to 6.

    H = w_0 I + w_1 A + w_K (A + (K - 1) (A^2 - A))

The bracket is the paper's first-order approximation of A^K, K being `order`. `A^2` is never
formed: with y = A V and z = A y, the layer's output H V is

    w_0 V + c_1 y + c_2 z,    c_1 = w_1 + (2 - K) w_K,    c_2 = (K - 1) w_K

which takes two passes of attention, with memory linear in the length if a pass is fused.

The paper starts at w_0 = 0, w_1 = 1, w_K = 0 (Algorithm 1), and lets w_0 and w_1 be learned or
fixed (App. C). By default w_K alone is learned here, as in the authors' code for images.

Attention dropout acts on A before the filter, as in the authors' language code; their code for T5
and for images drops out H. A backend that keeps A draws one dropout mask and applies the same
matrix twice, as published. Two fused passes draw two independent masks: then the output's mean is
the output without dropout, but its variance is another. With one mask the mean differs slightly,
since A_xx meets its own mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hf_graphattn.errors import refusal
from hf_graphattn.kernels import Scalar

from .base import TRAINABLE_HELP, GraphFilter, VariantConfig, is_integer, register, setting
from .polynomial import PassesFilter

MOST = 1_000_000  # the greatest order: its product with a scalar is to be finite


@register("gfsa")
@dataclass(frozen=True)
class GFSAConfig(VariantConfig):
    """GFSA (arXiv 2312.04234): `H = w_0 I + w_1 A + w_K (A + (K-1)(A^2 - A))`, K = `order`.

    It is plain attention at w_0 = 0, w_1 = 1, w_K = 0, where it starts by default. `order` is 2 to
    10 in the paper; at 1 the bracket is A and one pass is enough.
    """

    title: ClassVar[str] = "GFSA"
    colour: ClassVar[int | None] = 3
    scalars: ClassVar[tuple[str, ...]] = ("w_0", "w_1", "w_K")
    neutral: ClassVar[tuple[float, ...]] = (0.0, 1.0, 0.0)

    order: int = setting(3, "K, the power of A that the last term approximates (paper: 2 to 10)")
    w_0: float = setting(0.0, "weight of the identity")
    w_1: float = setting(1.0, "weight of A")
    w_K: float = setting(0.0, "weight of the approximated A^K")
    trainable: tuple[str, ...] = setting(("w_K",), TRAINABLE_HELP, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_integer(self.order) or not 1 <= self.order <= MOST:
            raise refusal("order", self.order, f"an integer of at least 1 and at most {MOST}")
        self._set("order", int(self.order))

    def build(self, num_heads: int) -> GraphFilter:
        return GFSAFilter(self, num_heads)


class GFSAFilter(PassesFilter):
    """The filter of `GFSAConfig`; see the equations at the top of the file."""

    def __init__(self, config: GFSAConfig, num_heads: int) -> None:
        super().__init__(config, num_heads)
        self.order = config.order
        self.operands = 1 if config.order > 1 else 0

    def weights(self) -> list[Scalar]:
        w_0, w_1, w_K = self.scalar("w_0"), self.scalar("w_1"), self.scalar("w_K")
        weights = [w_0, w_1 + (2 - self.order) * w_K]
        return [*weights, (self.order - 1) * w_K] if self.order > 1 else weights
