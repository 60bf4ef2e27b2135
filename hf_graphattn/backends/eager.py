"""`eager`: A is made once, kept, and applied at every call. The reference; any device and dtype."""

from __future__ import annotations

from torch import Tensor

from .base import Attention, attention_matrix


class EagerAttention(Attention):
    """`attend` with A kept: dropped out once, the same A at every call."""

    name = "eager"

    _matrix: Tensor | None = None

    @property
    def matrix(self) -> Tensor:
        if self._matrix is None:  # no cached_property: torch.compile cannot take its lock
            self._matrix = attention_matrix(self.inputs)
        return self._matrix

    def __call__(self, x: Tensor) -> Tensor:
        return self.matrix @ x
