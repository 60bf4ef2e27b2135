"""Filters of tokens act after attention: at the layer norm, or on what attention returned.

The attention of a layer leaves its filter and its mask in its thread, and a hook of the module that
follows in the same layer takes them. So forwards that run at the same time do
not mix, nor does what gradient checkpointing computes again, which runs a layer whole.
"""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor, nn

from hf_graphattn import backends
from hf_graphattn.architectures import ARCHITECTURES, AttentionModule
from hf_graphattn.backends import AttentionInputs
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.variants import VariantConfig
from hf_graphattn.variants.shaped import HIDES


class _Left(threading.local):
    """(Filter, mask, causal) of the attention that ran last in this thread; None once taken."""

    call: tuple[nn.Module, Tensor | None, bool] | None = None


_left = _Left()


def module_of(model: nn.Module, layer: AttentionModule, config: VariantConfig) -> nn.Module:
    """The module of the model at which the filter of this layer acts.

    Args:
        model: the model.
        layer: the attention of the layer.
        config: that of a filter of tokens.

    Raises:
        GraphAttentionError: the table of architectures does not have this module.
    """
    around = model.get_submodule(layer.name.rpartition(".")[0])
    path: Any = getattr(layer.architecture, config.place, None)
    target = dict(around.named_modules()).get(path)
    is_crossed = getattr(getattr(layer.module, "config", None), "add_cross_attention", False)
    if target is None or is_crossed:
        known = ", ".join(row.name for row in ARCHITECTURES if getattr(row, config.place))
        raise GraphAttentionError(
            f"variant {config.variant!r} acts at the {config.place} of a layer, which is not "
            f"known for {type(layer.module).__name__}{' beside cross-attention' * is_crossed}. It "
            f"is known for {known}. Choose one of these, or a filter of attention itself."
        )
    return target


def put_at(module: nn.Module, config: VariantConfig) -> None:
    """Have the filter act at this module."""
    if config.place == "norm":
        module.register_forward_pre_hook(before_norm)
    else:
        module.register_forward_hook(after_branch)


def leave(module: nn.Module, graph_filter: Any, inputs: AttentionInputs) -> None:
    """Leave the filter and the mask of an attention for the module that follows.

    Args:
        module: the attention module, for messages.
        graph_filter: its filter.
        inputs: those of its call.

    Raises:
        GraphAttentionError: there are keys from a cache; or the mask differs between heads.
    """
    variant = graph_filter.variant_config.variant
    queries, keys, mask = inputs.query.shape[-2], inputs.key.shape[-2], inputs.mask
    if queries != keys:
        raise GraphAttentionError(
            f"{type(module).__name__} has {queries} queries and {keys} keys: variant "
            f"{variant!r} filters all tokens at once, and a cache does not keep them. Pass "
            f"use_cache=False."
        )
    if mask is not None and mask.shape[1] != 1:
        raise refusal(
            "the mask",
            tuple(mask.shape),
            f"one for all heads, (B, 1, N, N), since variant {variant!r} filters tokens",
        )
    if mask is not None and mask.is_floating_point():
        mask = mask > HIDES
    _left.call = graph_filter, mask, inputs.causal


def before_norm(norm: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Forward pre-hook of the layer norm after attention."""
    return (_filtered(norm, args[0]), *args[1:])


def after_branch(module: nn.Module, args: Any, output: Any) -> Any:
    """Forward hook of an attention module, or of the last module of its output."""
    if isinstance(output, tuple):
        return (_filtered(module, output[0]), *output[1:])
    return _filtered(module, output)


HOOKS = (before_norm, after_branch)


def _filtered(module: nn.Module, tokens: Tensor) -> Tensor:
    """The tokens, (B, N, C), filtered by what their attention left.

    Raises:
        GraphAttentionError: it left nothing.
    """
    if _left.call is None:
        raise GraphAttentionError(
            f"the filter of tokens at {type(module).__name__} was not reached by the attention "
            f"before it. Call the layer whole; or unpatch_model(model) first."
        )
    (graph_filter, mask, causal), _left.call = _left.call, None
    x = tokens.unsqueeze(1)
    attend = backends.make("sdpa", AttentionInputs(x, x, mask, causal, scaling=1.0, dropout=0.0))
    return graph_filter(attend, x).squeeze(1)
