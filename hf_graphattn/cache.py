"""Cached generation: what a filter needs of earlier tokens, kept beside their keys and values.

Row t of A^2 V = A (A V) needs (A V)_j of every earlier token j, whose query is gone. In a causal
model (A V)_j never changes, so it is kept. It is stored in the last dimension of the cached values,
which grow from (B, heads, N, D) to (B, heads, N, D + operands * D). So whatever the cache does to
its values (reorder beams, crop, select, repeat, reset, preallocate) is done to the operands too.

An operand is what a filter passes to `attend` after its first call; GFSA has one.

While attentions are recorded the filter is applied to the identity too, which gives its matrix.
The operands there (of GFSA, A's rows) have a column for each key, and lie behind those on the
values, so that the cache treats them alike. The first call that does not record drops them.
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

from .backends import EAGER, Attention, one_per_query_head
from .errors import GraphAttentionError
from .growing import GrowingLayer


class OperandLayer(CacheLayerMixin):
    """Mixin for cache layers whose values carry a filter's operands."""

    operands: int  # how many there are
    groups: int  # query heads for each key-value head
    keeps_rows: bool  # whether the operands on the identity are kept too
    new_values: Tensor  # those of the current call, (B, key-value heads, Nq, D)
    returned: Tensor  # the values that it gave for this call, which the attention has to use
    values: Any  # a tensor once the layer is initialised
    is_sliding: bool
    _wide: Tensor  # values and operands of all keys of the current call
    _rows_start: int  # the column where the operands on the identity begin

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a file has: nothing of the current call."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        of_call = {"new_values", "returned", "_wide"}
        return {name: each for name, each in state.items() if name not in of_call}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, as from the plain layer; makes room for the operands.

        Raises:
            GraphAttentionError: attentions are recorded, and those of earlier tokens were not.
        """
        self.new_values = value_states
        new, width = value_states.shape[-2:]
        packed = self.operands * self.groups
        self._rows_start = width * (1 + packed)
        room = packed * (width + self._fit_rows(packed, new))
        wide = functional.pad(value_states, (0, room)) if room else value_states
        keys, wide = super().update(key_states, wide, *args, **kwargs)  # type: ignore[safe-super]
        self._wide, self.returned = wide, wide[..., :width]
        return keys, self.returned

    def keep(self, index: int, operand: Tensor, on_identity: bool = False) -> slice:
        """Keep operand `index` of the new tokens, (B, H, Nq, D); returns its columns.

        D is the number of keys where the filter is applied to the identity.
        """
        width = operand.shape[-1]
        start = self._rows_start if on_identity else width
        start += index * self.groups * width
        columns = slice(start, start + self.groups * width)
        if self.groups > 1:
            operand = operand.unflatten(1, (-1, self.groups)).transpose(2, 3).flatten(3)
        self._write(operand.to(self._wide.dtype), columns)
        return columns

    def every(self, columns: slice) -> Tensor:
        """The operand in these columns of all keys, (B, H, Nk, D)."""
        every = self._wide[..., columns].unflatten(-1, (self.groups, -1))
        return every.transpose(2, 3).flatten(1, 2)

    def products(self, row: Tensor) -> Tensor:
        """(B, key-value heads, groups, 1 + operands * groups, D): a row of A, (B, H, 1, Nk), times
        the values and the operands of all heads that share them."""
        batch, heads = self._wide.shape[:2]
        products = row.reshape(batch, heads, self.groups, -1) @ self._wide
        return products.view(batch, heads, self.groups, 1 + self.operands * self.groups, -1)

    def positions(self, new: int) -> slice | Tensor:
        """Where the `new` tokens of the current call are among its keys."""
        return slice(-new, None)

    def _fit_rows(self, packed: int, new: int) -> int:
        """The width of an operand on the identity in this call, to which the kept ones are brought.

        It is 0 where attentions are not recorded: the kept ones would have a gap, so they go.
        """
        keys = self.get_mask_sizes(new)[0] if self.keeps_rows else 0
        filled = self.is_initialized and self.values.dim() == 4  # a dynamic layer begins with ()
        kept = self.values.shape[-1] - self._rows_start if filled else 0
        if self.keeps_rows and kept == 0 and self.get_seq_length() > 0:
            raise _no_rows("holds tokens whose attentions were not recorded")
        if self.keeps_rows and self.is_sliding and self.get_seq_length() + new > keys:
            raise _no_rows("has a window, which its first tokens have left")
        if filled and kept != packed * keys:
            own, rows = self.values.tensor_split([self._rows_start], dim=-1)
            rows = rows.unflatten(-1, (packed, -1))
            rows = functional.pad(rows, (0, keys - rows.shape[-1]))
            self.values = torch.cat([own, rows.flatten(-2)], dim=-1)
        return keys

    def _write(self, packed: Tensor, columns: slice) -> None:
        if torch.is_grad_enabled():  # autograd has saved the values, so a copy of them is changed
            self._wide = self._wide.clone()
            self.values = self._wide[:, :, -self.values.shape[-2] :]
        self._wide[:, :, -packed.shape[-2] :, columns] = packed  # the cached values are a view


class OperandDynamicLayer(OperandLayer, GrowingLayer):
    """`DynamicLayer` with operands, which grows in place."""


class OperandSlidingLayer(OperandLayer, DynamicSlidingWindowLayer):
    """`DynamicSlidingWindowLayer` with operands: the window's tokens keep theirs."""


class OperandStaticLayer(OperandLayer, StaticLayer):
    """`StaticLayer` with operands: buffers of full length, written where the new tokens are."""

    def positions(self, new: int) -> slice | Tensor:
        """Where the new tokens are in the buffers."""
        length = self.cumulative_length  # it includes them already
        return torch.arange(-new, 0, device=length.device) + length

    def _write(self, packed: Tensor, columns: slice) -> None:
        self.values[:, :, self.positions(packed.shape[-2]), columns] = packed


class OperandStaticSlidingLayer(OperandStaticLayer, StaticSlidingWindowLayer):
    """`StaticSlidingWindowLayer` with operands, which move with the window."""

    def positions(self, new: int) -> slice | Tensor:
        """Where the new tokens are: at the end, once the window is full."""
        full = self.cumulative_length_int > self.max_cache_len
        return slice(-new, None) if full else super().positions(new)

    def _write(self, packed: Tensor, columns: slice) -> None:
        if self._wide is self.values:
            super()._write(packed, columns)
            return
        # The window overflows: this call sees all its tokens, the buffers keep the last ones.
        new, window = packed.shape[-2], self.max_cache_len
        self._wide[:, :, -new:, columns] = packed
        kept = min(new, window)
        self.values[:, :, window - kept :, columns] = packed[:, :, new - kept :]


_WITH_OPERANDS: dict[type, type[OperandLayer]] = {
    DynamicLayer: OperandDynamicLayer,
    DynamicSlidingWindowLayer: OperandSlidingLayer,
    StaticLayer: OperandStaticLayer,
    StaticSlidingWindowLayer: OperandStaticSlidingLayer,
}


def operand_layer(
    cache: Any, index: int, operands: int, groups: int, training: bool, recording: bool
) -> OperandLayer | None:
    """The layer `index` of `cache`; at its first use it is replaced by one that carries operands.

    `recording`: whether attentions are recorded, so that it keeps what they are made of.

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
    if not isinstance(layer, OperandLayer):
        kind = _WITH_OPERANDS.get(type(layer))
        filled = kind is not None and layer.is_initialized and int(layer.get_seq_length()) > 0
        if training and not filled:
            return None
        if kind is None or cache.offloading or (filled and operands > 0):
            raise GraphAttentionError(_why_not(cache, layer, filled))
        layer = cache.layers[index] = _replacement(layer, kind, operands, groups)
    elif (layer.operands, layer.groups) != (operands, groups):
        raise GraphAttentionError(_why_not(cache, layer, filled=True))
    layer.keeps_rows = recording and operands > 0
    return layer


class CachedAttention(Attention):
    """`attend` for new tokens: applies their rows of A to the operands of all tokens.

    Of one new token whose row of A is kept, one product with all that the cache holds gives A V,
    and of every operand x all of A x but A_tt x_t, since x_t comes later.

    on_rows: whether the filter is applied to the identity, which then stands for the values.
    """

    def __init__(
        self, inner: Attention, layer: OperandLayer, every_value: Tensor, on_rows: bool = False
    ) -> None:
        super().__init__(inner.inputs)
        self.name = inner.name
        self.inner, self.layer, self.on_rows = inner, layer, on_rows
        self.every_value: Tensor = every_value
        # A kernel's backward knows nothing of what a cache keeps.
        if self.inputs.key.shape[-2] == self.inputs.query.shape[-2] and not torch.is_grad_enabled():
            self.store = self._keep
        self.calls = 0
        one_row = inner.inputs.query.shape[-2] == 1 and inner.name == EAGER
        self.at_once = one_row and not (on_rows or layer.keeps_rows)

    @property
    def matrix(self) -> Tensor:
        """The new tokens' rows of A, (B, H, Nq, Nk)."""
        return self.inner.matrix

    def on_identity(self, value: Tensor) -> tuple[Attention, Tensor]:
        """As in `Attention`, with operands of its own."""
        _, identity = super().on_identity(one_per_query_head(self.every_value, value))
        attend = CachedAttention(self.inner, self.layer, identity, on_rows=True)
        return attend, identity[:, :, self.layer.positions(value.shape[-2])]

    def __call__(self, x: Tensor) -> Tensor:
        """`A x` for the new tokens, x (B, H, Nq, D); the first call's x is the new values."""
        operand = self.calls - 1  # the first call's x are the values, which the cache has anyway
        self.calls += 1
        if self.at_once:
            return self._row(operand, x)
        if operand < 0:
            return self.inner(self.every_value)
        return self.inner(self.layer.every(self._keep(operand, x)))

    def _keep(self, index: int, operand: Tensor) -> slice:
        return self.layer.keep(index, operand, self.on_rows)

    def _row(self, operand: int, x: Tensor) -> Tensor:
        if operand < 0:
            self._products = self.layer.products(self.matrix)
            return self._products[:, :, :, 0].reshape(x.shape)
        self.layer.keep(operand, x)
        own = self._products.diagonal(1 + operand * self.layer.groups, 2, 3).mT.reshape(x.shape)
        return torch.addcmul(own, self.matrix[..., self.layer.positions(1)], x)


def _replacement(layer: Any, kind: type[OperandLayer], operands: int, groups: int) -> OperandLayer:
    """A layer of `kind`, as long as `layer`. Each class uses only its own arguments."""
    length = getattr(layer, "max_cache_len", None)
    window = getattr(layer, "sliding_window", length)  # a static window layer has only its length
    new = kind(max_cache_len=length, sliding_window=window)
    if hasattr(layer, "record_past"):  # assisted decoding will crop rejected tokens
        new.record_past = layer.record_past  # type: ignore[attr-defined]
    if layer.is_initialized and operands == 0:  # its values are as wide as ours: they are kept
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


def _no_rows(what: str) -> GraphAttentionError:
    return GraphAttentionError(
        f"attentions cannot be recorded with this cache: it {what}, and this filter's matrix is "
        f"made of A's rows of all tokens. Record from an empty cache on, within its window, or "
        f"pass use_cache=False."
    )
