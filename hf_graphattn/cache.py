"""Cached generation: what a filter needs of earlier tokens, kept beside their keys and values.

Row t of A^2 V = A (A V) needs (A V)_j of every earlier token j, whose query is gone. In a causal
model (A V)_j never changes, so it is kept. It is stored in the last dimension of the cached values,
which grow from (B, heads, N, D) to (B, heads, N, D + operands * D). So whatever the cache does to
its values (reorder beams, crop, select, repeat, reset, preallocate) is done to the operands too.

An operand is what a filter passes to `attend` after its first call; GFSA has one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from .backends import Attention
from .errors import GraphAttentionError


class OperandLayer(CacheLayerMixin):
    """Mixin for cache layers whose values carry a filter's operands."""

    operands: int  # how many there are
    groups: int  # query heads for each key-value head
    new_values: Tensor  # those of the current call, (B, key-value heads, Nq, D)
    values: Any  # a tensor once the layer is initialised
    _wide: Tensor  # values and operands of all keys of the current call

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, as from the plain layer; makes room for the operands."""
        self.new_values = value_states
        width = value_states.shape[-1]
        room = self.operands * self.groups * width
        keys, wide = super().update(  # type: ignore[safe-super]
            key_states, functional.pad(value_states, (0, room)), *args, **kwargs
        )
        self._wide = wide
        return keys, wide[..., :width]

    def append(self, index: int, operand: Tensor) -> Tensor:
        """Keep operand `index` of the new tokens, (B, H, Nq, D); returns it for all keys."""
        batch, heads, length, width = operand.shape
        packed = operand.view(batch, heads // self.groups, self.groups, length, width)
        packed = packed.transpose(2, 3).flatten(3)
        start = width * (1 + index * self.groups)
        columns = slice(start, start + width * self.groups)
        self._write(packed.to(self._wide.dtype), columns)
        every = self._wide[..., columns].unflatten(-1, (self.groups, width))
        return every.transpose(2, 3).flatten(1, 2)

    def _write(self, packed: Tensor, columns: slice) -> None:
        new = packed.shape[-2]
        if not (self._wide.requires_grad or packed.requires_grad):
            self._wide[:, :, -new:, columns] = packed  # the cached values are a view of this
            return
        # Autograd has saved the values, so they may not be changed: write into a copy.
        wide = self._wide.clone()
        wide[:, :, -new:, columns] = packed
        self._wide, self.values = wide, wide[:, :, -self.values.shape[-2] :]


class OperandDynamicLayer(OperandLayer, DynamicLayer):
    """`DynamicLayer` with operands."""


class OperandSlidingLayer(OperandLayer, DynamicSlidingWindowLayer):
    """`DynamicSlidingWindowLayer` with operands: the window's tokens keep theirs."""


class OperandStaticLayer(OperandLayer, StaticLayer):
    """`StaticLayer` with operands: buffers of full length, written where the new tokens are."""

    def _write(self, packed: Tensor, columns: slice) -> None:
        new = packed.shape[-2]  # `cumulative_length` includes them already
        positions = torch.arange(-new, 0, device=packed.device) + self.cumulative_length
        self.values[..., columns].index_copy_(2, positions, packed)


class OperandStaticSlidingLayer(OperandStaticLayer, StaticSlidingWindowLayer):
    """`StaticSlidingWindowLayer` with operands, which move with the window."""

    def _write(self, packed: Tensor, columns: slice) -> None:
        new, window = packed.shape[-2], self.max_cache_len
        if self._wide is not self.values:
            # The window overflows: this call sees all its tokens, the buffers keep the last ones.
            self._wide[:, :, -new:, columns] = packed
            kept = min(new, window)
            self.values[:, :, window - kept :, columns] = packed[:, :, new - kept :]
        elif self.cumulative_length_int > window:  # full: the one new token is the last
            self.values[:, :, -1:, columns] = packed
        else:
            super()._write(packed, columns)


_WITH_OPERANDS: dict[type, type[OperandLayer]] = {
    DynamicLayer: OperandDynamicLayer,
    DynamicSlidingWindowLayer: OperandSlidingLayer,
    StaticLayer: OperandStaticLayer,
    StaticSlidingWindowLayer: OperandStaticSlidingLayer,
}


def operand_layer(
    cache: Any, index: int, operands: int, groups: int, training: bool
) -> OperandLayer | None:
    """The layer `index` of `cache`; at its first use it is replaced by one that carries operands.

    None where no such layer is needed: without a cache, and in training, where the cache that some
    models fill by default is thrown away.

    Raises:
        GraphAttentionError: the cache cannot carry operands, or was filled without them.
    """
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if cache is None:
        return None
    layer = _layer(cache, index)
    if isinstance(layer, OperandLayer):
        if (layer.operands, layer.groups) != (operands, groups):
            raise GraphAttentionError(_why_not(cache, layer, filled=True))
        return layer
    filled = layer.is_initialized and int(layer.get_seq_length()) > 0
    if training and not filled:
        return None
    kind = _WITH_OPERANDS.get(type(layer))
    if kind is None or cache.offloading or (filled and operands > 0):
        raise GraphAttentionError(_why_not(cache, layer, filled))
    cache.layers[index] = _replacement(layer, kind, operands, groups)
    return cache.layers[index]


class CachedAttention(Attention):
    """`attend` for new tokens: applies their rows of A to the operands of all tokens."""

    def __init__(self, inner: Attention, layer: OperandLayer, every_value: Tensor) -> None:
        super().__init__(inner.inputs)
        self.name = inner.name
        self.inner, self.layer = inner, layer
        self.every_value: Tensor = every_value
        self.calls = 0

    @property
    def matrix(self) -> Tensor:
        """The new tokens' rows of A, (B, H, Nq, Nk)."""
        return self.inner.matrix

    def __call__(self, x: Tensor) -> Tensor:
        """`A x` for the new tokens, x (B, H, Nq, D); the first call's x is the new values."""
        operand = self.calls - 1  # the first call's x are the values, which the cache has anyway
        self.calls += 1
        return self.inner(self.layer.append(operand, x) if operand >= 0 else self.every_value)


def _replacement(layer: Any, kind: type[OperandLayer], operands: int, groups: int) -> OperandLayer:
    """A layer of `kind`, as long as `layer`. Each class uses only its own arguments."""
    length = getattr(layer, "max_cache_len", None)
    window = getattr(layer, "sliding_window", length)  # a static window layer has only its length
    new = kind(max_cache_len=length, sliding_window=window)
    if hasattr(layer, "record_past"):  # assisted decoding will crop rejected tokens
        new.record_past = layer.record_past  # type: ignore[attr-defined]
    if operands == 0:  # the values are as wide as the plain layer's, so they are kept
        new.__dict__.update(layer.__dict__)
    new.operands, new.groups = operands, groups
    return new


def _layer(cache: Cache, index: int) -> Any:
    if cache.layer_class_to_replicate is not None:
        while len(cache.layers) <= index:
            cache.layers.append(cache.layer_class_to_replicate())
    return cache.layers[index]


def _why_not(cache: Cache, layer: Any, filled: bool) -> str:
    allowed = ", ".join(kind.__name__ for kind in _WITH_OPERANDS)
    if filled:
        what = "was filled without this filter's operands (by another model, or in training)"
    elif cache.offloading:
        what = "is offloaded while it is used"
    else:
        what = f"has layers of class {type(layer).__name__}"
    return (
        f"the cache {type(cache).__name__} {what}, so a graph filter cannot generate with it. "
        f"Allowed: an empty, resident cache with layers {allowed}. Pass such a cache, or "
        f"use_cache=False."
    )
