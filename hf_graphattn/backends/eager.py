"""`eager` keeps A and applies it at every call; `delegate` calls the architecture's own attention.

`eager` is the reference for the other backends, and works on any device and in any dtype.
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
            self._matrix = self._compute_matrix()
        return self._matrix

    def _compute_matrix(self) -> Tensor:
        return attention_matrix(self.inputs)

    def __call__(self, x: Tensor) -> Tensor:
        return product(self.matrix, x)


class DelegateAttention(EagerAttention):
    """Calls the architecture's eager attention with each x in place of the values.

    That computes whatever it knows: soft-capped scores, sinks, masks of its own kind. Under dropout
    it is called once, for A itself.
    """

    name = "delegate"
    groups = False

    @classmethod
    def automatic(cls, device: str, dropout: bool, passes: int) -> bool:
        return False  # `choose` takes it where no other can compute the call

    def _compute_matrix(self) -> Tensor:
        return self.inputs.delegate_matrix()

    def __call__(self, x: Tensor) -> Tensor:
        if self.inputs.dropout > 0.0:
            return self.matrix @ x
        assert self.inputs.delegate is not None
        return self.inputs.delegate(x)
