"""Filtered attention for anyone's module: `attention` on tensors, and `MultiheadAttention`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hf_graphattn import backends
from hf_graphattn.backends import DELEGATE, AttentionInputs, one_per_query_head
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.variants import GraphFilter, VariantConfig
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
    """Filtered attention, in the manner of torch's `scaled_dot_product_attention`.

    With `filter` at plain attention it is `softmax(Q K^T * scale + mask) V`. A row that may attend
    nowhere has A = 0, where torch's has NaN.

    Args:
        query: (B, H, N, D).
        key: (B, H, N, D), or of fewer heads, which query heads share evenly.
        value: as `key`, or of another D.
        filter: what a config builds, `GFSAConfig(...).build(num_heads)`. Make it a submodule named
            `graph_filter` of your module, so that its scalars are trained and saved, and read by
            `filter_parameters` and `optimizer_groups`.
        mask: boolean, True where a query may attend, or added to the scores; broadcastable to
            (B, H, N, N).
        is_causal: whether tokens see themselves and earlier ones alone; with it, no mask.
        scale: of the scores; by default `D ** -0.5`.
        dropout_p: the probability by which A is dropped out, also in evaluation, as in torch.

    Returns:
        `H V`, (B, H, N, D).

    Raises:
        GraphAttentionError: an argument is bad; or there are not as many keys as queries, so that
            A has no square.
    """
    if not isinstance(filter, GraphFilter):
        remedy = "A config builds one: GFSAConfig(order=4).build(num_heads)."
        raise refusal("filter", filter, "a GraphFilter", remedy)
    refuse_tokens(filter.variant_config, "ga.attention")
    _check_shapes(query, key, value, filter.num_heads)
    if mask is not None:
        length = query.shape[-2]
        _check_mask(mask, (*query.shape[:-1], length))
        if is_causal:
            raise refusal("is_causal", True, "False beside a mask", "Put causality into the mask.")
        mask = mask[(None,) * (4 - mask.dim())]
    if not 0 <= finite_number("dropout_p", dropout_p) < 1:
        raise refusal("dropout_p", dropout_p, "a number from 0 to below 1")
    scaling = query.shape[-1] ** -0.5 if scale is None else finite_number("scale", scale)
    inputs = AttentionInputs(query, key, mask, is_causal, scaling, float(dropout_p))
    return filtered(filter, inputs, value)


def filtered(graph_filter: GraphFilter, inputs: AttentionInputs, value: Tensor) -> Tensor:
    """H V, (B, H, N, D), by the backend that the filter names or that fits the call."""
    name = graph_filter.choose_backend(inputs, without=DELEGATE)
    attend = backends.make(name, inputs)
    grouped = graph_filter.groups and attend.groups
    return graph_filter(attend, value if grouped else one_per_query_head(value, inputs.query))


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> None:
    states = {"query": query, "key": key, "value": value}
    shapes = ", ".join(f"{name} {tuple(state.shape)}" for name, state in states.items())
    if any(state.dim() != 4 for state in states.values()):
        raise refusal("the shapes", shapes, SHAPES)
    batch, heads, length, width = query.shape
    if key.shape[-2] != length:
        raise GraphAttentionError(
            f"there are {length} queries and {key.shape[-2]} keys ({shapes}): a graph filter needs "
            f"as many, since other matrices A have no square. Cross-attention stays plain."
        )
    fits = all(
        (state.shape[0], state.shape[2]) == (batch, length) and heads % state.shape[1] == 0
        for state in (key, value)
    )
    if not fits or key.shape[-1] != width:
        raise refusal("the shapes", shapes, SHAPES)
    if heads != num_heads:
        raise refusal("query", tuple(query.shape), f"the {num_heads} heads of the filter")


def _check_mask(mask: Tensor, target: tuple[int, ...]) -> None:
    _check_kind("mask", mask)
    fits = all(a in (1, b) for a, b in zip(reversed(mask.shape), reversed(target), strict=False))
    if not 2 <= mask.dim() <= 4 or not fits:
        raise refusal("mask", tuple(mask.shape), f"a tensor that broadcasts to {target}")


def _check_kind(name: str, mask: Tensor) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise refusal(name, mask.dtype, "boolean or floating point, as in torch")


class MultiheadAttention(nn.MultiheadAttention):
    """A drop-in for `torch.nn.MultiheadAttention` whose output is `H V` in place of `A V`.

    Its arguments, parameters and their names are those of torch's, and the filter's scalars beside
    them, `graph_filter.*`. What it returns with `need_weights=True` is H. `patch_model` makes
    torch's modules of plain torch models such ones, until they are unpatched. It is
    self-attention: it refuses keys of other tokens. A row that may attend nowhere has A = 0, where
    torch's has NaN.

    Args:
        graph_attn: the filter, `GFSAConfig(...)` ...; the other arguments are torch's. `layers` of
            the config is not read.

    Raises:
        GraphAttentionError: other keys or values (`kdim`, `vdim`, `add_bias_kv`, `add_zero_attn`);
            or the filter's settings do not fit.
    """

    graph_filter: GraphFilter

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        graph_attn: VariantConfig,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        if not isinstance(graph_attn, VariantConfig):
            raise refusal("graph_attn", graph_attn, "the config of a filter: GFSAConfig(...) ...")
        refuse_tokens(graph_attn, "MultiheadAttention")
        refuse_other_keys(self)
        self.graph_filter = graph_attn.build(num_heads).to(self.out_proj.weight.device)

    def _reset_parameters(self) -> None:
        # By this flag torch finds its weights here, and where it is not set torch's encoder layers
        # call this module, instead of reading them.
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False
        if "graph_filter" in self._modules:  # else torch's constructor calls this
            new = self.graph_filter.variant_config.build(self.num_heads)
            self.graph_filter.load_state_dict(new.state_dict())

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch's.

        Returns:
            The output, shaped as `query`, and H, (B, N, N) or (B, H, N, N), or None.

        Raises:
            GraphAttentionError: the keys are of other tokens than the queries.
        """
        if query is not key:
            raise GraphAttentionError(
                "MultiheadAttention with a graph filter was called with other keys than its "
                "queries, and cannot tell that they are of the same tokens: self-attention passes "
                "one tensor as query and key. Cross-attention stays plain: leave such modules out "
                "with layers=(...)."
            )
        if is_causal and attn_mask is None:
            raise refusal("is_causal", True, "False without an attn_mask, as in torch")
        is_batched, is_first = query.dim() == 3, self.batch_first
        weight: Any = self.in_proj_weight
        states = functional._in_projection_packed(  # type: ignore[attr-defined]
            query, key, value, weight, self.in_proj_bias
        )
        if not is_batched:
            states = [state.unsqueeze(0) for state in states]
        elif not is_first:
            states = [state.transpose(0, 1) for state in states]
        q, k, v = (state.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for state in states)
        # As in torch, `is_causal` stands for attn_mask where that one is not needed.
        is_causal = is_causal and key_padding_mask is None and not need_weights
        inputs = AttentionInputs(
            query=q,
            key=k,
            mask=None if is_causal else _merged(attn_mask, key_padding_mask, q),
            causal=is_causal,
            scaling=q.shape[-1] ** -0.5,
            dropout=self.dropout if self.training else 0.0,
        )
        matrix = None
        if need_weights:
            matrix = self.graph_filter.matrix(backends.make(backends.EAGER, inputs), v)
            out = matrix @ v
            matrix = matrix.mean(1) if average_attn_weights else matrix
        else:
            out = filtered(self.graph_filter, inputs, v)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if not is_batched:
            return out.squeeze(0), None if matrix is None else matrix.squeeze(0)
        return out if is_first else out.transpose(0, 1), matrix


def put_in(module: Any, graph_filter: GraphFilter) -> None:
    """Make torch's module one with this filter; it stays the same object, with its parameters."""
    module.__class__ = MultiheadAttention
    module.graph_filter = graph_filter
    module._qkv_same_embed_dim = False


def take_out(module: Any) -> None:
    """Undo `put_in`."""
    del module.graph_filter
    module.__class__ = nn.MultiheadAttention
    module._qkv_same_embed_dim = True


def refuse_other_keys(module: nn.MultiheadAttention) -> None:
    """Refuse a module whose keys and values are not made of the tokens alone.

    Raises:
        GraphAttentionError: it is such a module; or its forward was replaced, as accelerate's hooks
            do: a filter would be passed by.
    """
    unsupported = {
        "a replaced forward": "forward" in vars(module),
        "kdim or vdim": module.in_proj_weight is None,
        "add_bias_kv": module.bias_k is not None,
        "add_zero_attn": module.add_zero_attn,
    }
    for name, is_set in unsupported.items():
        if is_set:
            raise refusal(
                name,
                "set",
                "an nn.MultiheadAttention as torch makes it, whose keys and values are its tokens'",
                "Leave it out with layers=(...), or patch before what wraps it.",
            )


def _merged(mask: Tensor | None, padding: Tensor | None, query: Tensor) -> Tensor | None:
    """torch's masks, whose True is hidden, as one whose True is seen, or one that is added."""
    batch, heads, length, _ = query.shape
    if mask is not None:
        _check("attn_mask", mask, (length, length), (batch * heads, length, length))
        mask = mask.unflatten(0, (batch, heads)) if mask.dim() == 3 else mask[None, None]
    if padding is not None:
        _check("key_padding_mask", padding, (batch, length), *([(length,)] if batch == 1 else []))
        padding = padding.view(batch, 1, 1, length)
    masks = [tensor for tensor in (mask, padding) if tensor is not None]
    return sum(_added(tensor, query.dtype) for tensor in masks) if masks else None  # type: ignore[return-value]


def _check(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    _check_kind(name, mask)
    if tuple(mask.shape) not in shapes:
        raise refusal(name, tuple(mask.shape), " or ".join(map(str, shapes)))


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -torch.inf)
