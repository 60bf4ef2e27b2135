"""How `A x` is computed; a backend never changes what is computed.

`eager` keeps A, `sdpa` makes a fused pass at each call, and so do `flash_attention_2` and
`flex_attention`, which are used only on request. `blockwise`, `shared` and `triton` leave the
work to a variant's kernel. A backend that the user names is never replaced by another: what it
cannot compute is refused. "auto" chooses by the rule in `choose`.

Axes: B sequences, H heads, N tokens (Nq queries, Nk keys), D channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hf_graphattn.errors import refusal

from .base import (
    Attention,
    AttentionInputs,
    FirstValues,
    attention_matrix,
    log_sum_exp,
    one_per_query_head,
    product,
)
from .eager import DelegateAttention, EagerAttention
from .flash import FlashAttention
from .flex import FlexAttention
from .kernels import BlockwiseAttention, SharedAttention, TritonAttention
from .sdpa import SdpaAttention

_BACKENDS: dict[str, type[Attention]] = {
    backend.name: backend
    for backend in (
        BlockwiseAttention,
        DelegateAttention,
        EagerAttention,
        FlashAttention,
        FlexAttention,
        SdpaAttention,
        SharedAttention,
        TritonAttention,
    )
}

DELEGATE, EAGER, SDPA = DelegateAttention.name, EagerAttention.name, SdpaAttention.name


def check(backend: object, supported: Iterable[str]) -> str:
    """Check the name of a backend at patch time.

    Args:
        backend: the user's choice.
        supported: the backends of the filter.

    Returns:
        `backend`, which is "auto" or one of `supported` that can run here.

    Raises:
        GraphAttentionError: it is neither, and the message lists what is allowed; or a package or
            a device that it needs is missing.
    """
    allowed = ["auto", *sorted(supported)]
    if not isinstance(backend, str) or backend not in allowed:
        raise refusal("backend", backend, ", ".join(allowed))
    if backend != "auto":
        _BACKENDS[backend].check_available()
    return backend


def choose(
    requested: str,
    supported: tuple[str, ...],
    inputs: AttentionInputs,
    passes: int = 1,
    fits: Callable[[str, AttentionInputs], bool] = lambda backend, inputs: True,
) -> str:
    """Choose the backend for one call of an attention layer.

    "auto" takes the first that the filter supports and that takes the device, the dropout and the
    call.

    Args:
        requested: "auto" or the name of a backend.
        supported: the filter's backends, in the order in which "auto" prefers them.
        inputs: the call's.
        passes: how many times the filter attends.
        fits: whether the filter's kernel for a backend, if it has one, can take the call.

    Returns:
        The backend's name.

    Raises:
        GraphAttentionError: the call has arguments that only the architecture's own attention
            understands, and the backend cannot be `delegate`.
    """
    if inputs.unknown:
        if requested not in ("auto", DELEGATE) or DELEGATE not in supported:
            raise refusal(
                "backend",
                requested,
                f"{DELEGATE}, for filters that have it, since the attention is given "
                f"{', '.join(inputs.unknown)}, which only the architecture's own knows",
            )
        return DELEGATE
    if requested != "auto":
        return requested
    for name in _automatic(supported, inputs.query.device.type, inputs.dropout > 0.0, passes):
        # First `fits`: it declines graphs for all lengths, where `takes` may read no length.
        if fits(name, inputs) and _BACKENDS[name].takes(inputs, passes):
            return name
    return supported[0]


def explain(
    requested: str, supported: tuple[str, ...], device: str, passes: int = 1
) -> tuple[str, str]:
    """Explain what `choose` does on a type of device, for `ga.report`.

    Returns:
        The backend, and why it is used.
    """
    if requested != "auto":
        return requested, "asked for"
    allowed = _automatic(supported, device, False, passes)
    chosen, dropped = allowed[0], _automatic(supported, device, True, passes)[0]
    if chosen == SharedAttention.name:
        other, why = explain("auto", tuple(allowed[1:]), device, passes)
        return chosen, why.replace("auto", f"auto, in float32; else {other}", 1)
    others = ["for short sequences"] if _BACKENDS[chosen].leaves_short(device, passes) else []
    others += ["under attention dropout"] if dropped != chosen else []
    if others:
        return chosen, f"auto; eager {' and '.join(others)}"
    if chosen == "triton":
        return chosen, f"auto; {allowed[1]} where the kernels do not fit"
    return chosen, "auto: memory linear in the length"


def _automatic(supported: tuple[str, ...], device: str, dropout: bool, passes: int) -> list[str]:
    allowed = [name for name in supported if _BACKENDS[name].automatic(device, dropout, passes)]
    return allowed or [supported[0]]


def has_matrix(name: str) -> bool:
    """Whether this backend has A itself."""
    return _BACKENDS[name].matrix is not Attention.matrix


def make(name: str, inputs: AttentionInputs) -> Attention:
    """`attend` for one call of an attention layer."""
    backend = _BACKENDS[name]
    return backend(inputs if backend.groups else inputs.ungrouped())


__all__ = [
    "DELEGATE",
    "EAGER",
    "SDPA",
    "Attention",
    "AttentionInputs",
    "FirstValues",
    "attention_matrix",
    "check",
    "choose",
    "explain",
    "has_matrix",
    "log_sum_exp",
    "make",
    "one_per_query_head",
    "product",
]
