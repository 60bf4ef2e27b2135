"""`eager`: A is made once, kept, and applied at every call.

It is the reference for the other backends, and works on any device and in any dtype.
"""

from __future__ import annotations

from torch import Tensor

from .base import Attention, attention_matrix, product


class EagerAttention(Attention):
    """Keeps A: dropout is drawn once, and every call applies the same matrix."""

    name = "eager"
    groups = True

    _matrix: Tensor | None = None

    @property
    def matrix(self) -> Tensor:
        if self._matrix is None:  # no cached_property, whose lock torch.compile cannot trace
            self._matrix = attention_matrix(self.inputs)
        return self._matrix

    def __call__(self, x: Tensor) -> Tensor:
        return product(self.matrix, x)
