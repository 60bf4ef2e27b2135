"""`attention`: filtered attention on tensors, for anyone's own module."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_graphattn import backends
from hf_graphattn.backends import DELEGATE, AttentionInputs, one_per_query_head
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.variants import GraphFilter
from hf_graphattn.variants.base import finite_number, refuse_tokens

SHAPES = "query (B, H, N, D), key and value (B, H or a divisor of it, N, D)"


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    filter: GraphFilter,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """`H V`, (B, H, N, D), in the manner of torch's `scaled_dot_product_attention`.

    With `filter` at plain attention it is `softmax(Q K^T * scale + mask) V`. A row that may attend
    nowhere has A = 0, where torch's has NaN.

    Args:
        query, key, value: (B, H, N, D). Keys and values may have fewer heads, which query heads
            share evenly. The values may have another D.
        filter: what a config builds, `GFSAConfig(...).build(num_heads)`. Make it a submodule of
            yours named `graph_filter`, so that its scalars are trained and saved, and found by
            `filter_parameters` and `optimizer_groups`.
        mask: boolean, True where a query may attend, or added to the scores; broadcastable to
            (B, H, N, N).
        is_causal: whether tokens see themselves and earlier ones alone; with it, no mask.
        scale: of the scores; by default `D ** -0.5`.
        dropout_p: the probability by which A is dropped out, also in evaluation, as in torch.

    Raises:
        GraphAttentionError: an argument is bad; or there are not as many keys as queries, so that
            A has no square.
    """
    if not isinstance(filter, GraphFilter):
        remedy = "A config builds one: GFSAConfig(order=4).build(num_heads)."
        raise refusal("filter", filter, "a GraphFilter", remedy)
    refuse_tokens(filter.variant_config, "ga.attention")
    _check_shapes(query, key, value, filter.num_heads)
    if not isinstance(is_causal, bool):
        raise refusal("is_causal", is_causal, "True or False")
    if mask is not None:
        _check_mask(mask, query)
        if is_causal:
            raise refusal("is_causal", True, "False beside a mask", "Put causality into the mask.")
        mask = mask[(None,) * (4 - mask.dim())]
    if not 0 <= finite_number("dropout_p", dropout_p) < 1:
        raise refusal("dropout_p", dropout_p, "a number from 0 to below 1")
    scaling = query.shape[-1] ** -0.5 if scale is None else finite_number("scale", scale)
    inputs = AttentionInputs(query, key, mask, is_causal, scaling, float(dropout_p))
    return filtered(filter, inputs, one_per_query_head(value, query))


def filtered(graph_filter: GraphFilter, inputs: AttentionInputs, value: Tensor) -> Tensor:
    """H V, (B, H, N, D), by the backend that the filter was given or that fits the call."""
    name = backends.choose(
        graph_filter.backend,
        tuple(name for name in graph_filter.backends if name != DELEGATE),
        inputs,
        passes=graph_filter.operands + 1,
        fits=graph_filter.fits,
    )
    return graph_filter(backends.make(name, inputs), value)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> None:
    states = {"query": query, "key": key, "value": value}
    for name, state in states.items():
        if not isinstance(state, Tensor) or state.dim() != 4 or not state.is_floating_point():
            what = tuple(state.shape) if isinstance(state, Tensor) else state
            raise refusal(name, what, f"floating-point tensors: {SHAPES}")
    shapes = ", ".join(f"{name} {tuple(state.shape)}" for name, state in states.items())
    batch, heads, length, _ = query.shape
    fits = all(
        (state.shape[0], state.shape[2]) == (batch, length) and heads % state.shape[1] == 0
        for state in (key, value)
    )
    if key.shape[-2] != length:
        raise GraphAttentionError(
            f"there are {length} queries and {key.shape[-2]} keys ({shapes}): a graph filter needs "
            f"as many, since other matrices A have no square. Cross-attention stays plain."
        )
    if not fits or key.shape[-1] != query.shape[-1]:
        raise refusal("the shapes", shapes, SHAPES)
    if heads != num_heads:
        raise refusal("query", tuple(query.shape), f"the {num_heads} heads of the filter")


def _check_mask(mask: Tensor, query: Tensor) -> None:
    batch, heads, length, _ = query.shape
    target = (batch, heads, length, length)
    allowed = f"None, or a boolean or floating-point tensor that broadcasts to {target}"
    if not isinstance(mask, Tensor):
        raise refusal("mask", mask, allowed)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise refusal("mask", mask.dtype, allowed)
    fits = all(a in (1, b) for a, b in zip(reversed(mask.shape), reversed(target), strict=False))
    if not 2 <= mask.dim() <= 4 or not fits:
        raise refusal("mask", tuple(mask.shape), allowed)
