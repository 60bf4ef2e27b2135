"""How `A x` is computed; a backend never changes what is computed.

`eager` keeps A, `sdpa` makes a fused pass a call, `blockwise` leaves the work to a variant's own
kernel. An explicit request is never replaced by another backend; `auto` chooses by the rule in
`choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hf_graphattn.errors import refusal

from .base import Attention, AttentionInputs, attention_matrix
from .eager import EagerAttention
from .sdpa import SdpaAttention

_BACKENDS: dict[str, Callable[[AttentionInputs], Attention]] = {
    "eager": EagerAttention,
    "sdpa": SdpaAttention,
    "blockwise": Attention,
}


def check(backend: object, supported: Iterable[str]) -> str:
    """`backend`, if it is "auto" or one of `supported`.

    Raises:
        GraphAttentionError: it is neither; the message lists what is allowed.
    """
    allowed = ["auto", *sorted(supported)]
    if backend not in allowed:
        raise refusal("backend", backend, ", ".join(allowed))
    return str(backend)


def choose(requested: str, supported: tuple[str, ...], inputs: AttentionInputs) -> str:
    """The backend for one call of an attention layer.

    "auto" takes the first backend that the filter supports, which is its memory-linear one. The
    exception is attention dropout on the CPU: there torch's fused kernel has no dropout and falls
    back to a slow form, one for each pass; the kept matrix is faster, and is drawn only once.
    """
    if requested != "auto":
        return requested
    slow = inputs.dropout > 0.0 and _dropout_is_slow(supported, inputs.query.device.type)
    return "eager" if slow else supported[0]


def explain(requested: str, supported: tuple[str, ...], device: str) -> tuple[str, str]:
    """(backend, why it is used on this type of device), in the words of `ga.report`."""
    if requested != "auto":
        return requested, "asked for"
    if _dropout_is_slow(supported, device):
        return supported[0], "auto; under attention dropout on the CPU: eager"
    return supported[0], "auto: memory linear in the length"


def _dropout_is_slow(supported: tuple[str, ...], device: str) -> bool:
    return device == "cpu" and supported[0] == "sdpa"


def make(name: str, inputs: AttentionInputs) -> Attention:
    """`attend` for one call of an attention layer."""
    return _BACKENDS[name](inputs)


__all__ = ["Attention", "AttentionInputs", "attention_matrix", "check", "choose", "explain", "make"]
