"""`MultiheadAttention`: torch's `nn.MultiheadAttention` with a graph filter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hf_graphattn import backends
from hf_graphattn.backends import AttentionInputs
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.variants import GraphFilter, VariantConfig
from hf_graphattn.variants.base import refuse_tokens

from .functional import filtered


class MultiheadAttention(nn.MultiheadAttention):
    """A drop-in for `torch.nn.MultiheadAttention` whose output is `H V` in place of `A V`.

    Its arguments, parameters and their names are those of torch's, and the filter's scalars beside
    them, `graph_filter.*`. What it returns with `need_weights=True` is H. `patch_model` makes
    torch's own modules of plain torch models such ones, until they are unpatched. It is
    self-attention: it refuses keys of other tokens. A row that may attend nowhere has A = 0, where
    torch's has NaN.

    Args:
        graph_attn: the filter, `GFSAConfig(...)` ...; the other arguments are torch's. `layers` of
            the config is not read.

    Raises:
        GraphAttentionError: keys or values of their own (`kdim`, `vdim`, `add_bias_kv`,
            `add_zero_attn`); or the filter's settings do not fit.
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
        """As torch's: (output, H or None).

        Raises:
            GraphAttentionError: the keys or values are of other tokens than the queries.
        """
        self._check_calls(query, key, value, attn_mask, is_causal)
        is_batched, is_first = query.dim() == 3, self.batch_first
        states = self._projected(query, key, value)
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

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        weight, bias = self.in_proj_weight, self.in_proj_bias
        assert weight is not None
        if query is key and key is value:
            return list(functional.linear(query, weight, bias).chunk(3, -1))
        weights = weight.chunk(3)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        return [
            functional.linear(*operands)
            for operands in zip((query, key, value), weights, biases, strict=True)
        ]

    def _check_calls(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> None:
        if query.is_nested:
            raise GraphAttentionError(
                "MultiheadAttention with a graph filter takes no nested tensors. Build the "
                "nn.TransformerEncoder with enable_nested_tensor=False."
            )
        if query is not key:
            raise GraphAttentionError(
                "MultiheadAttention with a graph filter was called with other keys than its "
                "queries, and cannot tell that they are of the same tokens: self-attention gives "
                "it one tensor as query and key. Cross-attention stays plain: leave such modules "
                "out with layers=(...)."
            )
        if is_causal and mask is None:
            raise refusal("is_causal", True, "False without an attn_mask, as in torch")


def put_in(module: Any, graph_filter: GraphFilter) -> None:
    """Make torch's module one with this filter; it stays the same object, with its parameters."""
    module.__class__ = MultiheadAttention
    module.graph_filter = graph_filter
    module._qkv_same_embed_dim = False


def take_out(module: Any) -> None:
    """Make a module with a filter torch's own."""
    del module.graph_filter
    module.__class__ = nn.MultiheadAttention
    module._qkv_same_embed_dim = True


def refuse_other_keys(module: nn.MultiheadAttention) -> None:
    """Raise `GraphAttentionError` if its keys and values are not made of the tokens alone, or if
    it was given a forward of its own, as accelerate's hooks do: a filter would be passed by."""
    unsupported = {
        "a forward of its own": "forward" in vars(module),
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
    if all(tensor.dtype == torch.bool for tensor in masks):
        hidden = [tensor.logical_not() for tensor in masks]
        return None if not masks else hidden[0] if len(masks) == 1 else hidden[0] & hidden[1]
    return sum(_added(tensor, query.dtype) for tensor in masks)  # type: ignore[return-value]


def _check(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise refusal(name, mask.dtype, "boolean or floating point, as in torch")
    if tuple(mask.shape) not in shapes:
        raise refusal(name, tuple(mask.shape), " or ".join(map(str, shapes)))


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -torch.inf)
