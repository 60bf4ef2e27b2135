"""`eager`: A is made once, kept, and applied at every call. The reference; any device and dtype."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from torch import Tensor

from .base import Attention, attention_matrix


class EagerAttention(Attention):
    """`attend` with A kept: dropped out once, the same A at every call."""

    name: ClassVar[str] = "eager"

    @cached_property
    def matrix(self) -> Tensor:
        return attention_matrix(self.inputs)

    def __call__(self, x: Tensor) -> Tensor:
        return self.matrix @ x
