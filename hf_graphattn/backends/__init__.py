"""How `A x` is computed; a backend never changes what is computed.

`eager` keeps A, `sdpa` makes a fused pass at each call, and so do `flash_attention_2` and
`flex_attention`, which are used only on request. `blockwise`, `shared` and `triton` leave the
work to a variant's kernel. A backend that the user names is never replaced by another: what it
cannot compute is refused. "auto" chooses by the rule in `choose`.

Axes, in all of the library: B sequences, H heads, N tokens (Nq queries, Nk keys), D channels of a
head, C channels of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hf_graphattn.errors import refusal

from .base import (
    Attention,
    AttentionInputs,
    DelegateAttention,
    EagerAttention,
    FirstValues,
    attention_matrix,
    log_sum_exp,
    one_per_query_head,
    product,
)
from .flash import FlashAttention
from .fused import FlexAttention, SdpaAttention
from .kernels import BlockwiseAttention, SharedAttention, TritonAttention

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


def check(backend: str, supported: Iterable[str]) -> str:
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
    if backend not in allowed:
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

    "auto" takes the first that the filter supports, that runs on the device, and takes the call.

    Args:
        requested: "auto" or the name of a backend.
        supported: the filter's backends, in the order in which "auto" prefers them.
        inputs: the call's.
        passes: how many times the filter attends.
        fits: whether the filter's kernel for a backend, if it has one, can take the call.

    Returns:
        The backend's name.

    Raises:
        GraphAttentionError: the call has arguments that only the architecture's eager attention
            reads, and the backend cannot be `delegate`.
    """
    if inputs.unknown:
        if requested not in ("auto", DELEGATE) or DELEGATE not in supported:
            raise refusal(
                "backend",
                requested,
                f"{DELEGATE}, for filters that have it, since the attention gets "
                f"{', '.join(inputs.unknown)}, which only the architecture's eager one reads",
            )
        return DELEGATE
    if requested != "auto":
        return requested
    for name in _candidates(supported, inputs.query.device.type, passes):
        # First `fits`: it declines graphs for all lengths, where `takes` may read no length.
        if fits(name, inputs) and _BACKENDS[name].takes(inputs, passes):
            return name
    return supported[0]


def explain(
    requested: str, supported: tuple[str, ...], device: str, passes: int = 1
) -> tuple[str, str]:
    """Explain what `choose` does on a type of device, for `ga.report`.

    Returns:
        The backend, and why it is used; "auto" names those that take the other calls.
    """
    if requested != "auto":
        return requested, "as requested"
    names = _candidates(supported, device, passes)
    return names[0], f"auto; else {', '.join(names[1:])}" if names[1:] else "auto"


def _candidates(supported: tuple[str, ...], device: str, passes: int) -> list[str]:
    """The backends that "auto" may take on this type of device, in order of preference."""
    names = [name for name in supported if _BACKENDS[name].automatic(device, passes)]
    return names or [supported[0]]


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
