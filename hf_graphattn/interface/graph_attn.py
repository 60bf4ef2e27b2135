"""The one function that a patched model's attention modules call, and how it is registered.

attention module -> graph_attn(module, q, k, v, mask, ...)
    no filter (cross-attention, a layer not chosen) -> plain attention
    else  attend = backend(q, k, mask ...)          # attend(x) = A x
          out    = module.graph_filter(attend, v)   # H V

transformers makes one mask for all layers of a model, by the mask function registered under the
attention's name. Ours is the one of SDPA: boolean (B, 1, Nq, Nk), True where a query may attend, or
None if nothing is masked but by causality, which the attention must then apply by itself. A 4-D
mask of the caller arrives unchanged, and T5's position bias beside it. Models with an indexer
choose the keys of each query themselves, and pass the chosen keys beside the mask.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.utils.generic import TransformersKwargs
from transformers.utils.output_capturing import _active_collector

from hf_graphattn import backends
from hf_graphattn.architectures import eager_attention
from hf_graphattn.backends import AttentionInputs, FirstValues, one_per_query_head
from hf_graphattn.errors import GraphAttentionError, no_square

from . import token_filters
from .cache import CachedAttention, OperandLayer, operand_layer
from .first_layer import first_values

# The name of the attention function and of the mask function. What is saved is `configs.SAVED`.
NAME = "hf_graphattn"
# The same with the masks of transformers' eager attention, for classes that are not verified: they
# are never left out, so the class's `is_causal` is not read.
AS_EAGER = "hf_graphattn_as_eager"
NAMES = (NAME, AS_EAGER)
# Arguments of attention functions that do not change what they compute: the masks hold it already,
# or they concern what the model reads, generates or returns. Only the architecture's eager
# function can read others.
HARMLESS = frozenset(TransformersKwargs.__annotations__) | {
    "cache_position",
    "deterministic",
    "do_sample",
    "grid_thw",
    "input_features",
    "input_ids",
    "logits_to_keep",
    "max_new_tokens",
    "min_new_tokens",
    "num_beams",
    "output_logits",
    "return_dict",
    "sliding_window",
    "use_cache",
    "vision_feature_layer",
}
# Arguments that eager attention functions do not name, since they read them elsewhere.
READ_ELSEWHERE = {"s_aux": "the module's `sinks`, which the eager functions read from there"}
# The arguments that pass the tokens that cross-attention reads to attention modules.
OTHER_TOKENS = (
    "context",
    "context_hidden_states",
    "cross_attention_states",
    "encoder_hidden_states",
    "key_value_states",
)
# The attribute of an attention module that holds its filter; None marks it as plain on purpose.
FILTER = "graph_filter"

logger = logging.getLogger("hf_graphattn")


def is_filter_key(name: str) -> bool:
    """Whether a tensor of this name in a state dict belongs to a filter."""
    return f".{FILTER}." in f".{name}"


def graph_attn(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    graph_attn_layer: OperandLayer | None = None,
    graph_attn_first: dict[str, FirstValues] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function registered with transformers as "hf_graphattn".

    Args:
        module: the attention module.
        query: (B, H, Nq, D).
        key: (B, H or fewer, Nk, D).
        value: (B, H or fewer, Nk, D).
        attention_mask: None, boolean or additive; it contains the causality.
        dropout: the share of A that is dropped.
        scaling: of the scores, by default `D ** -0.5`.
        is_causal: by default the module's.
        position_bias: T5's, (1 or B, H, Nq, Nk).
        graph_attn_layer: the layer of the cache, from `before_attention`.
        graph_attn_first: the first layers' values in this forward, from `begin_forward`.
        kwargs: what else the model passes to its attention.

    Returns:
        The output, (B, Nq, H, D), and the filtered matrix H, (B, H, Nq, Nk), which is None unless
        the call records attentions.

    Raises:
        GraphAttentionError: the model was loaded without its filters; there are keys from a cache
            that the filter cannot use; an argument changes the attention in a way that neither
            this function nor the architecture's eager one computes.
    """
    graph_filter = _filter_of(module)
    as_eager = module.config._attn_implementation == AS_EAGER
    attention_mask, kwargs = _hide_unchosen(module, attention_mask, kwargs, key)
    unknown = tuple(n for n in kwargs if kwargs[n] is not None and n not in HARMLESS)
    if unknown:
        _refuse_unread(module, unknown)

    def eager(x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The output of the architecture's eager attention with x in place of the values."""
        more = {"is_causal": is_causal, "position_bias": position_bias}
        more = {name: item for name, item in more.items() if item is not None} | kwargs
        return eager_attention(module)(
            module, query, key, x, attention_mask, dropout=dropout, scaling=scaling, **more
        )

    if graph_filter is None and as_eager:
        return eager(value)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, causal = _merge_masks(
        attention_mask, position_bias, bool(causal) and not as_eager, query, key
    )
    inputs = AttentionInputs(
        query=query,
        key=key,
        mask=mask,
        causal=causal,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout=dropout,
        delegate=partial(_per_query_head, eager, key.shape[1]),
        unknown=unknown,
    )
    if graph_attn_layer is not None and value is not graph_attn_layer.returned:
        raise GraphAttentionError(
            f"{type(module).__name__} changes the values that its cache keeps, before they reach "
            f"the attention, so that cached generation has no room for a filter's. Pass "
            f"use_cache=False."
        )
    if graph_filter is None:
        out, weights = _plain(inputs, value)
    else:
        new = value if graph_attn_layer is None else graph_attn_layer.new_values
        if new.shape[-2] != query.shape[-2]:
            raise no_square(type(module).__name__, query.shape[-2], key.shape[-2])
        if graph_filter.variant_config.place:
            token_filters.leave(module, graph_filter, inputs)
        if graph_filter.reads_first:
            new = one_per_query_head(new, query)
            every = new if graph_attn_layer is None else one_per_query_head(value, query)
            first = first_values(module, graph_filter, graph_attn_first, new, every)
            inputs = replace(inputs, first=first)
        out, weights = _filtered(graph_filter, inputs, new, value, graph_attn_layer)
    return out.transpose(1, 2).contiguous(), weights


def _merge_masks(
    mask: Tensor | None, position_bias: Tensor | None, causal: bool, query: Tensor, key: Tensor
) -> tuple[Tensor | None, bool]:
    """(The mask with the position bias, whether causality is to be applied besides)."""
    if mask is not None or query.shape[-2] == 1:  # a branch, since a compiled length is symbolic
        causal = False
    if position_bias is None:
        return mask, causal
    if causal:
        lengths = query.shape[-2], key.shape[-2]
        mask = torch.ones(lengths, dtype=torch.bool, device=query.device).tril()
    if mask is None:
        return position_bias, False
    if mask.dtype == torch.bool:
        return position_bias.masked_fill(~mask, torch.finfo(position_bias.dtype).min), False
    return position_bias + mask, False


def _hide_unchosen(
    module: Any, mask: Tensor | None, arguments: dict[str, Any], key: Tensor
) -> tuple[Tensor | None, dict[str, Any]]:
    """(The mask of the keys that an indexer chose, the arguments without its choice).

    A model with an indexer puts its choice into the mask for the names "eager" and "sdpa" alone; to
    others it passes `indices`, the keys of each query, (B, Nq, k), or `block_indices`, blocks of
    keys, of which its indexer can make the mask. Without a mask both are left as they are.
    """
    if mask is None:
        return mask, arguments
    of_blocks = getattr(getattr(module, "indexer", None), "build_block_mask", None)
    if arguments.get("indices") is not None:
        chosen = arguments["indices"].long()
        hidden = chosen.new_ones(*chosen.shape[:2], key.shape[-2], dtype=torch.bool)
        hidden = hidden.scatter(-1, chosen, False).unsqueeze(1)
        is_bool = mask.dtype == torch.bool
        mask = mask.masked_fill(hidden, False if is_bool else torch.finfo(mask.dtype).min)
    elif arguments.get("block_indices") is not None and of_blocks is not None:
        # The last argument, the queries' positions, is read where there is no mask.
        blocks = arguments["block_indices"]
        mask = of_blocks(blocks, mask, key.shape[-2], key.dtype, key.device, None)
    else:
        return mask, arguments
    more = {n: a for n, a in arguments.items() if n not in ("indices", "block_indices")}
    return mask, more


def _refuse_unread(module: nn.Module, unknown: tuple[str, ...]) -> None:
    """Refuse arguments that the eager function does not name, and would drop: another mask, say."""
    named = inspect.signature(eager_attention(module)).parameters
    unread = [name for name in unknown if name not in named and name not in READ_ELSEWHERE]
    if unread:
        raise GraphAttentionError(
            f"{type(module).__name__} gives its attention {', '.join(unread)}, which its eager "
            f"attention function does not read: what a filter would compute with it is not known. "
            f"Leave it out, if your call of the model passes it; otherwise this model can have no "
            f"filter: unpatch_model(model) takes it out."
        )


def _per_query_head(attend: Callable[[Tensor], Any], key_heads: int, x: Tensor) -> Tensor:
    """A x, (B, H, Nq, D), by attention whose values have the heads of its keys.

    The operands of the query heads that share a key head are put side by side, and the part of each
    head is taken from what comes back.
    """
    packed = x.unflatten(1, (key_heads, -1)).transpose(2, 3)
    out = attend(packed.flatten(3))[0].transpose(1, 2).unflatten(1, (key_heads, -1))
    return (
        out.unflatten(-1, packed.shape[-2:]).diagonal(dim1=2, dim2=4).movedim(-1, 2).flatten(1, 2)
    )


def _plain(inputs: AttentionInputs, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """(A V, A if recorded), for cross-attention and for the layers that were not chosen."""
    record = _recording()
    attend = backends.make("eager" if record else "sdpa", inputs)
    return attend(value), attend.matrix if record else None


def _filtered(
    graph_filter: Any,
    inputs: AttentionInputs,
    new: Tensor,
    value: Tensor,
    layer: OperandLayer | None,
) -> tuple[Tensor, Tensor | None]:
    """(H V, H if recorded).

    A recorded H is what the output is computed from, as in transformers' eager attention. A filter
    of tokens leaves the attention plain.

    Args:
        new: the values of the queries' tokens, (B, H or fewer, Nq, D); with a cache these are the
            new tokens.
        value: the values of all tokens, (B, H or fewer, Nk, D).
    """
    record = _recording()
    name = graph_filter.choose_backend(inputs)
    if record and not backends.has_matrix(name):
        if not torch.compiler.is_compiling():
            _warn_of_eager(name)
        name = "eager"
    attend = backends.make(name, inputs)
    grouped = graph_filter.groups and attend.groups and not record
    query_values = new if grouped else one_per_query_head(new, inputs.query)
    if layer is not None:
        shared = value if attend.groups else one_per_query_head(value, inputs.query)
        attend = CachedAttention(attend, layer, shared)
    if not record:
        acts_later = graph_filter.variant_config.place
        return attend(query_values) if acts_later else graph_filter(attend, query_values), None
    if layer is not None and layer.keeps_rows:
        graph_filter(attend, query_values)  # the cache keeps the operands on the values too
    matrix = graph_filter.matrix(attend, query_values)
    return backends.product(matrix, value), matrix


def before_attention(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Forward pre-hook of every attention module with a filter.

    It checks that the filter will be reached, and passes on the layer of the cache, which
    transformers does not give to attention functions.

    Raises:
        GraphAttentionError: the model's attention implementation was changed after patching; or
            the module turns out to be cross-attention, or to have no layer of the cache.
    """
    implementation = module.config._attn_implementation
    if implementation not in NAMES:
        raise GraphAttentionError(
            f"this model is patched with a graph filter, but its attention implementation was set "
            f"to {implementation!r}, which would drop the filter without a word. Call "
            f"hf_graphattn.unpatch_model(model) first, or choose how the filter is computed with "
            f"patch_model(model, config, backend=...). Attentions need no other implementation: "
            f"set it to {NAME!r} again, and pass output_attentions=True to the model's call."
        )
    others = [name for name in OTHER_TOKENS if kwargs.get(name) is not None]
    if others:
        raise GraphAttentionError(
            f"{type(module).__name__} gets the keys of other tokens, {', '.join(others)}: this "
            f"is cross-attention, which stays plain. Leave such modules out with layers=(...)."
        )
    # The cache is recognised by its class, since GPT-NeoX calls the argument layer_past.
    caches = [value for value in (*kwargs.values(), *args) if isinstance(value, Cache)]
    if not caches:
        return args, kwargs
    graph_filter = getattr(module, FILTER)
    index = kwargs.get("layer_idx", module.layer_idx)
    if index is None:
        raise GraphAttentionError(
            f"{type(module).__name__} has no index of its layer of a cache, since layers share it: "
            f"a graph filter cannot generate with a cache. Pass use_cache=False."
        )
    operands = graph_filter.operands
    layer = operand_layer(caches[0], index, operands, module.training, _recording())
    return args, {**kwargs, "graph_attn_layer": layer}


def _filter_of(module: nn.Module) -> Any:
    try:
        return getattr(module, FILTER)
    except AttributeError:
        raise GraphAttentionError(
            f"{type(module).__name__} has no graph filter, though its model's config says that it "
            f"was patched: the model was loaded without its filters. Load it with "
            f"hf_graphattn.from_pretrained(path). If it was built from a patched model's config, "
            f"hf_graphattn.unpatch_model(model) makes it plain."
        ) from None


def _recording() -> bool:
    """Whether this call of the model collects attentions, by its argument or by the config.

    It is read where transformers' own recording hooks read it, since several models (GPT-2) do not
    pass the argument on to their attention modules.
    """
    collected = _active_collector.get()
    return collected is not None and any(key.endswith("attentions") for key in collected)


@cache  # so that it warns once
def _warn_of_eager(backend: str) -> None:
    logger.warning(
        f"output_attentions=True needs the attention matrix, which backend {backend!r} never "
        f"forms: the calls that ask for it use 'eager'."
    )


# A pickled model imports this module, because its hooks are functions of it.
AttentionInterface.register(NAME, graph_attn)
AttentionMaskInterface.register(NAME, sdpa_mask)
AttentionInterface.register(AS_EAGER, graph_attn)
AttentionMaskInterface.register(AS_EAGER, eager_mask)
