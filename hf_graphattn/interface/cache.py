"""Cached generation: what a filter needs of earlier tokens, kept beside their keys and values.

Row t of A^2 V = A (A V) needs (A V)_j of every earlier token j, whose query is gone. In a causal
model (A V)_j never changes, so it is kept: as the keys of a layer of the same kind, which
lies beside the layer of keys and values. What the cache does to that layer (reorder beams, crop,
select, repeat, reset) it does to the layers beside it too. Any other change of it is refused.

An operand is what a filter passes to `attend` after its first call; GFSA has one.

While attentions are recorded the filter is applied to the identity too, which gives its matrix.
The operands there (of GFSA, A's rows) have a column for each key, and other layers. The
first call that does not record drops them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
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

from hf_graphattn.backends import Attention, one_per_query_head
from hf_graphattn.errors import GraphAttentionError


class GrowingLayer(DynamicLayer):
    """`DynamicLayer` whose keys and values are the first rows of buffers with room for more.

    A full buffer is replaced by one that is a quarter longer: a token costs the copying of about
    four rows, not of all. What is set as `keys` or `values` is never written to, as after `crop`.

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
        """The state of a copy or a file: copied tensors, without room."""
        kept = {name: getattr(self, name).clone() for name in self._buffers}
        return self.__dict__ | kept | {"_buffers": {}}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens; the new ones are written behind the others."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            super().update(key_states, value_states, *args, **kwargs)
            return self.keys, self.values
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._append("keys", key_states)
        self._append("values", value_states)
        return self.keys, self.values

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
    """Whether `new` can be written there as it is; `torch.cat` casts or refuses any other."""
    return (
        rows.shape == new.shape
        and rows.dtype == new.dtype
        and rows.device == new.device
        and rows.is_inference() == torch.is_inference_mode_enabled()
    )


def _on_all(name: str) -> Callable[..., None]:
    """The method `name` of a layer, for it and for those that lie beside it."""

    def method(self: OperandLayer, *args: Any, **kwargs: Any) -> None:
        getattr(super(OperandLayer, self), name)(*args, **kwargs)
        for layer in (*self.operands, *self.rows):
            getattr(layer, name)(*args, **kwargs)
        self._see()

    return method


class OperandLayer(CacheLayerMixin):
    """Mixin for cache layers beside which a filter's operands are kept.

    Each operand is the keys of one more layer, (B, H, N, D), whose values have no columns.
    """

    keys: Any  # tensors once the layer is initialised
    values: Any
    is_sliding: bool
    operands: tuple[Any, ...] = ()  # a layer for each
    rows: tuple[Any, ...] = ()  # a layer for each operand on the identity
    keeps_rows = False  # whether attentions are recorded, which needs `rows`
    owed = 0  # how many operands of the current call have not been kept yet
    new_values: Tensor  # those of the current call, (B, key-value heads, Nq, D)
    returned: Tensor  # the values that `update` returned, which the attention has to use
    _seen: list[tuple[Tensor, int]] | None = None  # the tensors after its last operation

    crop = _on_all("crop")
    reset = _on_all("reset")
    reorder_cache = _on_all("reorder_cache")
    batch_repeat_interleave = _on_all("batch_repeat_interleave")
    batch_select_indices = _on_all("batch_select_indices")
    offload = _on_all("offload")
    prefetch = _on_all("prefetch")

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy or a file: copied layers, and nothing of the current call."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        of_call = {"new_values", "returned", "_seen"}
        state = {name: value for name, value in state.items() if name not in of_call}
        beside = {name: tuple(map(copy, getattr(self, name))) for name in ("operands", "rows")}
        return state | beside

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, as from the plain layer.

        Raises:
            GraphAttentionError: attentions are recorded, and those of earlier tokens were not.
        """
        self.new_values = value_states
        self._fit_rows(value_states.shape[-2])
        self.owed = len(self.operands) + len(self.rows)
        for layer in (*self.operands, *self.rows):
            self.lead(layer)
        keys, self.returned = super().update(key_states, value_states, *args, **kwargs)  # type: ignore[safe-super]
        self._see()
        return keys, self.returned

    def keep(self, index: int, operand: Tensor, on_identity: bool = False) -> Tensor:
        """Operand `index` of all tokens, (B, H, Nk, D), from that of the new, (B, H, Nq, D).

        D is the number of keys where the filter is applied to the identity.
        """
        layer = (self.rows if on_identity else self.operands)[index]
        operand = operand.to(self.returned.dtype)
        self.owed -= 1
        return layer.update(operand, operand[..., :0])[0]

    @property
    def changed(self) -> bool:
        """Whether keys or values were set or written otherwise than by the layer's methods.

        In inference mode torch does not count what is written, and compiled graphs ask nothing.
        """
        now, seen = self._now(), self._seen
        if now is None or seen is None:
            return False
        pairs = zip(now, seen, strict=True)
        return any(one is not other or at != then for (one, at), (other, then) in pairs)

    def beside(self) -> Any:
        """An empty layer for an operand, of the plain kind of this layer."""
        return _empty(type(self).__bases__[-1], self)

    def lead(self, beside: Any) -> None:
        """Make `beside` write the next tokens where this layer will: a dynamic one does anyway."""

    def positions(self, new: int) -> Tensor:
        """Where the `new` tokens of the current call are among its keys, (new,).

        Behind the tokens before them, which a full window has only in part.
        """
        device, most = self.returned.device, self.returned.shape[-2] - new
        before = torch.as_tensor(self.get_seq_length() - new, device=device).clamp(max=most)
        return torch.arange(new, device=device) + before

    def _see(self) -> None:
        """Remember the tensors as they are now, for `changed`."""
        self._seen = self._now()

    def _now(self) -> list[tuple[Tensor, int]] | None:
        """The tensors, and how often each was written to."""
        if not self.is_initialized or torch.compiler.is_compiling():
            return None
        tensors = self.keys, self.values
        return [(tensor, 0 if tensor.is_inference() else tensor._version) for tensor in tensors]

    def _fit_rows(self, new: int) -> None:
        """Bring the kept operands on the identity to the keys of this call.

        Where attentions are not recorded they go, since they would have a gap.
        """
        if not self.keeps_rows:
            self.rows = ()
            return
        keys, _ = self.get_mask_sizes(new)
        if not self.rows and self.get_seq_length() > 0:
            raise _no_rows("holds tokens whose attentions were not recorded")
        if self.is_sliding and self.get_seq_length() + new > keys:
            raise _no_rows("has a window, which its first tokens have left")
        self.rows = self.rows or tuple(self.beside() for _ in self.operands)
        for layer in self.rows:
            if layer.is_initialized and layer.keys.shape[-1] != keys:
                layer.keys = functional.pad(layer.keys, (0, keys - layer.keys.shape[-1]))


class OperandDynamicLayer(OperandLayer, GrowingLayer):
    """`DynamicLayer` with operands, which grows in place."""


class OperandSlidingLayer(OperandLayer, DynamicSlidingWindowLayer):
    """`DynamicSlidingWindowLayer` with operands: the window's tokens keep theirs."""

    activate_past_recording = _on_all("activate_past_recording")


class OperandStaticLayer(OperandLayer, StaticLayer):
    """`StaticLayer` with operands: buffers of full length, written where the new tokens are."""

    def lead(self, beside: Any) -> None:
        """The layer beside writes behind as many tokens, even if a caller has set their number."""
        if beside.is_initialized:
            beside.cumulative_length.copy_(self.cumulative_length)


class OperandStaticSlidingLayer(OperandStaticLayer, StaticSlidingWindowLayer):
    """`StaticSlidingWindowLayer` with operands, which move with the window."""

    def lead(self, beside: Any) -> None:
        """As in a static layer, where the number is held twice."""
        super().lead(beside)
        beside.cumulative_length_int = self.cumulative_length_int


_WITH_OPERANDS: dict[type, type[OperandLayer]] = {
    DynamicLayer: OperandDynamicLayer,
    DynamicSlidingWindowLayer: OperandSlidingLayer,
    StaticLayer: OperandStaticLayer,
    StaticSlidingWindowLayer: OperandStaticSlidingLayer,
}


def operand_layer(
    cache: Any, index: int, operands: int, training: bool, recording: bool
) -> OperandLayer | None:
    """The layer `index` of `cache`; at its first use it is replaced by one with operands beside.

    Args:
        cache: transformers' cache, or None.
        index: which layer.
        operands: how many the filter has.
        training: whether the module is in training.
        recording: whether attentions are recorded, so that it keeps what they are made of.

    Returns:
        The layer. None where none is needed: without a cache, and in training, where the cache that
        some models fill by default is thrown away.

    Raises:
        GraphAttentionError: the cache cannot have operands, or was filled or changed without them.
    """
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if cache is None:
        return None
    layer = _layer(cache, index)
    if not isinstance(layer, OperandLayer):
        kind = _WITH_OPERANDS.get(type(layer))
        if training and not (kind and _filled(layer)):
            return None
        if kind is None or cache.offloading:
            what = f"has layers of class {type(layer).__name__}"
            raise _why_not(cache, "is offloaded while it is used" if cache.offloading else what)
        plain, layer = layer, _empty(kind, layer)
        layer.__dict__.update(plain.__dict__)
        cache.layers[index] = layer
    if layer.operands and layer.changed:
        methods = "crop, reorder_cache, batch_select_indices ..."
        raise _why_not(cache, f"had tokens set otherwise than by its methods ({methods})")
    if layer.owed or len(layer.operands) != operands:
        if operands and _filled(layer):
            what = "was filled without this filter's operands (by another model, or in training)"
            raise _why_not(cache, what)
        layer.operands, layer.owed = tuple(layer.beside() for _ in range(operands)), 0
        layer.rows = ()
    layer.keeps_rows = recording and operands > 0
    return layer


class CachedAttention(Attention):
    """`attend` for new tokens: applies their rows of A to the operands of all tokens.

    Attributes:
        inner: the backend's `attend`.
        layer: the layer of the cache.
        every_value: the values of all tokens, (B, H, Nk, D).
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
            self.store = layer.keep
        self.calls = 0

    @property
    def matrix(self) -> Tensor:
        """The new tokens' rows of A, (B, H, Nq, Nk)."""
        return self.inner.matrix

    def on_identity(self, value: Tensor) -> tuple[Attention, Tensor]:
        """As in `Attention`, with other operands."""
        _, identity = super().on_identity(one_per_query_head(self.every_value, value))
        attend = CachedAttention(self.inner, self.layer, identity, on_rows=True)
        return attend, identity[:, :, self.layer.positions(value.shape[-2])]

    def __call__(self, x: Tensor) -> Tensor:
        """`A x` for the new tokens, x (B, H, Nq, D); the first call's x is the new values."""
        self.calls += 1
        if self.calls == 1:  # which the cache has anyway
            return self.inner(self.every_value)
        return self.inner(self.layer.keep(self.calls - 2, x, self.on_rows))


def _empty(kind: type, layer: Any) -> Any:
    """A layer of `kind`, as long as `layer`. Each class ignores the other arguments."""
    length = getattr(layer, "max_cache_len", None)
    window = getattr(layer, "sliding_window", length)  # a static window layer has only its length
    new = kind(max_cache_len=length, sliding_window=window)
    if hasattr(layer, "record_past"):  # assisted decoding will crop rejected tokens
        new.record_past = layer.record_past
    return new


def _layer(cache: Cache, index: int) -> Any:
    if cache.layer_class_to_replicate is not None:
        while len(cache.layers) <= index:
            cache.layers.append(cache.layer_class_to_replicate())
    return cache.layers[index]


def _filled(layer: Any) -> bool:
    return layer.is_initialized and int(layer.get_seq_length()) > 0


def _why_not(cache: Cache, what: str) -> GraphAttentionError:
    allowed = ", ".join(kind.__name__ for kind in _WITH_OPERANDS)
    return GraphAttentionError(
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
