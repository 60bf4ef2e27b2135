"""`MultiheadAttention`: torch's `nn.MultiheadAttention` with a graph filter."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import backends
from .backends import AttentionInputs
from .errors import GraphAttentionError, refusal
from .functional import filtered
from .variants import GraphFilter, VariantConfig
from .variants.tokens import refuse_tokens


class MultiheadAttention(nn.MultiheadAttention):
    """A drop-in for `torch.nn.MultiheadAttention` whose output is `H V` in place of `A V`.

    Its arguments, parameters and their names are those of torch's, and the filter's scalars beside
    them, `graph_filter.*`. What it returns with `need_weights=True` is H. `patch_model` puts it in
    the place of torch's own in plain torch models. It is self-attention: it refuses keys and values
    of other tokens. A row that may attend nowhere has A = 0, where torch's has NaN.

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
        # torch's encoder layers then call this module, instead of reading its weights.
        self._qkv_same_embed_dim = False

    @classmethod
    def around(cls, plain: nn.MultiheadAttention, graph_filter: GraphFilter) -> Self:
        """A plain one's parameters and hooks, with this filter."""
        made = cls.__new__(cls)
        made.__dict__.update(plain.__dict__)
        made.graph_filter = graph_filter
        made._qkv_same_embed_dim = False
        return made

    def plain(self) -> nn.MultiheadAttention:
        """Its parameters and hooks without the filter, which it loses."""
        del self.graph_filter
        made = nn.MultiheadAttention.__new__(nn.MultiheadAttention)
        made.__dict__.update(self.__dict__)
        made._qkv_same_embed_dim = True
        return made

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
            states = [each.unsqueeze(0) for each in states]
        elif not is_first:
            states = [each.transpose(0, 1) for each in states]
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in states)
        is_causal = is_causal and key_padding_mask is None  # then attn_mask says the same
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
            functional.linear(*each)
            for each in zip((query, key, value), weights, biases, strict=True)
        ]

    def _check_calls(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> None:
        if query.is_nested:
            raise GraphAttentionError(
                "MultiheadAttention with a graph filter takes no nested tensors. Build the "
                "nn.TransformerEncoder with enable_nested_tensor=False."
            )
        if query is not key and query is not value:
            raise GraphAttentionError(
                "MultiheadAttention with a graph filter was called with other keys and values than "
                "its queries, and cannot tell that they are of the same tokens: self-attention "
                "gives it one tensor as query and key (or value). Cross-attention stays plain: "
                "leave such modules out with layers=(...)."
            )
        if is_causal and mask is None:
            raise refusal("is_causal", True, "False without an attn_mask, as in torch")


def refuse_other_keys(module: nn.MultiheadAttention) -> None:
    """Raise `GraphAttentionError` if its keys and values are not made of the tokens alone."""
    reasons = {
        "kdim or vdim": module.in_proj_weight is None,
        "add_bias_kv": module.bias_k is not None,
        "add_zero_attn": module.add_zero_attn,
    }
    for name, given in reasons.items():
        if given:
            raise refusal(
                name,
                "set",
                "an nn.MultiheadAttention whose keys and values are those of its tokens",
                "Leave it out with layers=(...).",
            )


def _merged(mask: Tensor | None, padding: Tensor | None, query: Tensor) -> Tensor | None:
    """torch's masks, whose True is hidden, as one whose True is seen, or one that is added."""
    batch, heads = query.shape[:2]
    if mask is not None:
        mask = mask.unflatten(0, (batch, heads)) if mask.dim() == 3 else mask[None, None]
    if padding is not None:
        padding = padding.view(batch, 1, 1, -1)
    given = [each for each in (mask, padding) if each is not None]
    if all(each.dtype == torch.bool for each in given):
        hidden = [each.logical_not() for each in given]
        return None if not given else hidden[0] if len(given) == 1 else hidden[0] & hidden[1]
    return sum(_added(each, query.dtype) for each in given)  # type: ignore[return-value]


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -torch.inf)
