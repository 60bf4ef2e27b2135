"""`delegate`: A x by the architecture's own eager attention, called with x in place of the values.

It computes whatever that one knows: soft-capped scores, sinks, masks of its own kind.
"""

from __future__ import annotations

from torch import Tensor

from .base import Attention, own_matrix


class DelegateAttention(Attention):
    """Calls the architecture's own attention for each x; under dropout once, for A itself."""

    name = "delegate"

    _matrix: Tensor | None = None

    @classmethod
    def automatic(cls, device: str, dropout: bool, passes: int) -> bool:
        return False  # `choose` takes it where no other can compute the call

    @property
    def matrix(self) -> Tensor:
        if self._matrix is None:
            self._matrix = own_matrix(self.inputs)
        return self._matrix

    def __call__(self, x: Tensor) -> Tensor:
        if self.inputs.dropout > 0.0:
            return self.matrix @ x
        assert self.inputs.own is not None
        return self.inputs.own(x)
