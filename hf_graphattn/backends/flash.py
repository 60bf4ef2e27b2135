"""`flash_attention_2`: each call is a pass of the flash_attn package (arXiv 2307.08691).

It works in half precision on a CUDA device. Its kernels take no mask, but they know causality, and
they take sequences of several lengths packed into one. So a mask can be used if packing can express
it: padding, left or right, causal or not, with a cache or without. Masked keys are then left out of
the packed sequences. The output has every row, also those of padding; a row that may attend nowhere
is zero.

Every pass draws another dropout mask. Reading a mask waits for the device, once for all layers that
share the mask. Under a mask torch.compile breaks its graph here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hf_graphattn.errors import GraphAttentionError, refusal

from .base import Attention, AttentionInputs

DTYPES = (torch.float16, torch.bfloat16)


class FlashAttention(Attention):
    """Computes `A x` by a pass of flash_attn at each call."""

    name = "flash_attention_2"

    @classmethod
    def automatic(cls, device: str, passes: int) -> bool:
        return False  # it is used only on request

    @classmethod
    def check_available(cls) -> None:
        _flash_attn()

    def __init__(self, inputs: AttentionInputs) -> None:
        super().__init__(inputs)
        device = inputs.query.device.type
        autocast = torch.is_autocast_enabled(device)
        self.dtype = torch.get_autocast_dtype(device) if autocast else inputs.query.dtype
        if self.dtype not in DTYPES:
            raise refusal(
                f"the dtype of the queries under backend {self.name!r}",
                self.dtype,
                " or ".join(map(str, DTYPES)),
                "Load the model in half precision, use autocast, or patch with backend='sdpa'.",
            )

    def __call__(self, x: Tensor) -> Tensor:
        inputs = self.inputs
        # flash_attn has (B, N, H, D): these are views, unless autocast asks for another dtype.
        query, key, x = (
            states.transpose(1, 2).to(self.dtype) for states in (inputs.query, inputs.key, x)
        )
        options = {"dropout_p": inputs.dropout, "softmax_scale": inputs.scaling}
        if inputs.mask is not None:
            out = _masked(query, key, x, inputs.mask, options)
        else:
            if inputs.causal:
                # Our causal mask starts in the upper left corner, flash_attn's ends in the lower
                # right one. They differ in a static cache with room left: the room is cut off.
                assert query.shape[1] <= key.shape[1]
                key, x = key[:, : query.shape[1]], x[:, : query.shape[1]]
            dense, _ = _flash_attn()
            out = dense(query, key, x, causal=inputs.causal, **options)
        return out.transpose(1, 2)


@dataclass(frozen=True)
class Packed:
    """Chosen positions of every sequence, put into one row, as flash_attn takes them."""

    where: tuple[Tensor, ...]  # the positions, as an index into (B, N)
    ends: Tensor  # (B + 1,), int32: where each sequence begins, and where the last one ends
    longest: int  # tokens of the longest sequence

    @staticmethod
    def of(chosen: Tensor) -> Packed:
        """The positions that are True in `chosen`, (B, N)."""
        lengths = chosen.sum(-1)
        ends = functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        return Packed(chosen.nonzero(as_tuple=True), ends, int(lengths.max()))


class Pass(NamedTuple):
    """One call of the packed kernel: these rows attend to these keys.

    If it is causal, a sequence's last row attends to all of its keys, the row before to one fewer,
    and so on.
    """

    rows: Packed
    keys: Packed
    causal: bool


@torch._disable_dynamo  # torch.compiler.disable, which would import the compiler already: 2 s
def _masked(query: Tensor, key: Tensor, x: Tensor, mask: Tensor, options: dict[str, Any]) -> Tensor:
    """`A x`, (B, Nq, H, D), under a mask that comes from padding and causality."""
    _, packed = _flash_attn()
    out = query.new_zeros(*query.shape[:3], x.shape[-1])
    for rows, keys, causal in _cached_passes(mask, (*query.shape[:2], key.shape[1])):
        out[rows.where] = packed(
            query[rows.where],
            key[keys.where],
            x[keys.where],
            rows.ends,
            keys.ends,
            rows.longest,
            keys.longest,
            causal=causal,
            **options,
        )
    return out


_latest: tuple[Callable[[], Tensor | None], Any, tuple[Pass, ...]] = (lambda: None, None, ())


def _cached_passes(mask: Tensor, shape: tuple[int, int, int]) -> tuple[Pass, ...]:
    """The result of `passes`, kept because the next layers and calls have the same mask."""
    global _latest
    if mask.is_inference():  # such a tensor has no version that tells whether it was written to
        return passes(mask, shape)
    latest, state, calls = _latest
    if latest() is not mask or state != (mask._version, shape):
        calls = passes(mask, shape)
        _latest = (weakref.ref(mask), (mask._version, shape), calls)
    return calls


def passes(mask: Tensor, shape: tuple[int, int, int]) -> tuple[Pass, ...]:
    """The calls that compute attention under a mask: none, one or two.

    Let the keys of a sequence be those that any of its rows attends to. If each row attends to all
    of the keys or to none, one call that is not causal is enough. The other masks that can be
    computed are causal: row i attends to the first `count[i]` of the keys, and from the first row
    that attends the count grows by one until it has reached all of them. Rows that attend to all
    of the keys may follow, as under right padding; they need a second call.

    Args:
        mask: broadcasts to (B, H, Nq, Nk).
        shape: (B, Nq, Nk).

    Raises:
        GraphAttentionError: the mask is of no such kind, or adds other values than 0 and -inf.
    """
    allowed = _boolean(mask)
    if mask.dim() > 2 and mask.shape[-3] > 1:
        raise _unfit(mask, "differs between heads")
    allowed = allowed.expand(shape[0], 1, *shape[1:])[:, 0]  # (B, Nq, Nk)
    keys = allowed.any(-2)  # (B, Nk)
    count = allowed.sum(-1)  # (B, Nq)
    every = keys.sum(-1, keepdim=True)
    first = keys[:, None] & (keys.cumsum(-1)[:, None] <= count[..., None])
    reached = count.cummax(-1).values
    before = functional.pad(reached[:, :-1], (1, 0))
    sees_some = count > 0
    sees_all = sees_some & (count == every)
    step = sees_some & ((count == before + 1) | (before == 0))
    later = sees_all & (before == every)
    if bool((allowed == first).all()):
        if bool((sees_all | ~sees_some).all()):
            return _pass(sees_all, keys, causal=False)
        if bool((step | later | ~sees_some).all()):
            return _pass(step, keys, causal=True) + _pass(later, keys, causal=False)
    raise _unfit(mask, "is neither padding nor causality (a sliding window, holes, packed texts?)")


def _pass(rows: Tensor, keys: Tensor, causal: bool) -> tuple[Pass, ...]:
    """One call, or none if no row attends.

    A sequence in which no row attends gives no keys either: flash_attn gets no keys without rows.
    """
    if not bool(rows.any()):
        return ()
    return (Pass(Packed.of(rows), Packed.of(keys & rows.any(-1, keepdim=True)), causal),)


def _boolean(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return mask
    allowed = mask == 0
    if not mask.requires_grad and bool((allowed | mask.isneginf()).all()):
        return allowed
    raise _unfit(mask, "adds to the scores (a position bias?)")


def _unfit(mask: Tensor, why: str) -> GraphAttentionError:
    return GraphAttentionError(
        f"the attention mask, {mask.dtype} of shape {tuple(mask.shape)}, {why}; allowed under "
        f"backend 'flash_attention_2': no mask, padding, causality. Patch with backend='sdpa'."
    )


def _flash_attn() -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The package's two functions: for sequences of one length, and for several lengths, packed."""
    try:
        from flash_attn import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
            flash_attn_func,
            flash_attn_varlen_func,
        )
    except ImportError as error:
        raise GraphAttentionError(
            f"backend 'flash_attention_2' needs the package flash_attn, version 2.1 or newer, "
            f"which cannot be imported ({error}). Install it (pip install flash-attn "
            f"--no-build-isolation), or use backend='sdpa'."
        ) from error
    return flash_attn_func, flash_attn_varlen_func
