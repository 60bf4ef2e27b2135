"""A cache's layer whose tensors grow in place, where transformers' are copied for each token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer


class GrowingLayer(DynamicLayer):
    """`DynamicLayer` whose keys and values are the first rows of buffers with room for more.

    A full buffer is replaced by one that is a quarter longer: a token costs the copying of about
    four rows, not of all. The rows that `crop` removes are written over by the next tokens, in
    tensors that were read from it before too: clone what is to stay. Tensors that anything else
    sets as `keys` or `values` are never written to.

    What autograd has saved may not change, so while gradients are recorded all tokens are copied,
    as in `DynamicLayer`. So they are in compiled graphs.
    """

    keys: Any  # tensors once the layer is initialised
    values: Any
    _buffers: dict[str, Tensor]  # of "keys" and "values", while they are first rows

    def __init__(self, **kwargs: Any) -> None:
        self.__dict__["_buffers"] = {}
        super().__init__(**kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        self._buffers.pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a file has: tensors of its own, without room."""
        own = {name: getattr(self, name).clone() for name in self._buffers}
        return self.__dict__ | own | {"_buffers": {}}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens; those that are given are written behind the others."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            super().update(key_states, value_states, *args, **kwargs)
            return self.keys, self.values
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._append("keys", key_states)
        self._append("values", value_states)
        return self.keys, self.values

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; their number is given as one below zero."""
        buffers = dict(self._buffers)
        super().crop(tokens_to_remove)
        self._buffers.update(buffers)

    def _append(self, name: str, new: Tensor) -> None:
        kept, buffer = getattr(self, name), self._buffers.get(name)
        start = kept.shape[-2] if kept.dim() > 1 else 0  # it begins with a tensor (0,)
        end = start + new.shape[-2]
        if buffer is not None and _fits(buffer[..., start:end, :], new):
            buffer[..., start:end, :] = new
        else:
            room = new.new_empty(*new.shape[:-2], end // 4 + 16, new.shape[-1])
            buffer = torch.cat([kept, new, room], dim=-2)
        setattr(self, name, buffer[..., :end, :])
        self._buffers[name] = buffer


def _fits(rows: Tensor, new: Tensor) -> bool:
    """Whether `new` can be written there as it is; what cannot, `torch.cat` casts or refuses."""
    return (
        rows.shape == new.shape
        and rows.dtype == new.dtype
        and rows.device == new.device
        and rows.is_inference() == torch.is_inference_mode_enabled()
    )
