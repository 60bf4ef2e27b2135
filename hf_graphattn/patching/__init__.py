"""Putting filters into a model's attention modules, and taking them out again.

Each module gains a submodule `graph_filter`, and a way for it to act: a forward pre-hook where
transformers' interface calls it, a hook of the dropout module of A (`interface.dropout`), or a
class of ours for torch's (`interface.functional`). The modules of a transformers model get
copies of their configs, with the name of the attention function and what was patched, in one JSON
object, `config.graph_attn`. `patch` decides whether a model may be patched.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import transformers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from hf_graphattn import backends
from hf_graphattn.architectures import HEADS, MULTIHEAD, AttentionModule, Plan, find
from hf_graphattn.errors import refusal
from hf_graphattn.interface import dropout, functional, token_filters
from hf_graphattn.interface.first_layer import begin_forward, name_stacks, takes_more
from hf_graphattn.interface.graph_attn import AS_EAGER, FILTER, NAME, before_attention
from hf_graphattn.model.configs import make_entry, mark, unmark
from hf_graphattn.model.parallel import heads_mesh, share_heads
from hf_graphattn.variants import GraphFilter, VariantConfig

# The key of a patched model's entry for the versions with which it was checked.
CHECKED = "checked"
logger = logging.getLogger("hf_graphattn")


def insert_filters(plan: Plan, config: VariantConfig, backend: str) -> None:
    """Put the filters of `config` into a model; after an error the model is as it was.

    Where an attention class is not verified, or the architecture's eager function computes, that
    one is given the masks that it is written for.

    Raises:
        GraphAttentionError: it is not known how many heads a layer has, or where a filter of tokens
            acts; or the settings do not fit.
    """
    model, layers = plan.model, plan.self_attention
    chosen = _choose_layers(layers, config)
    targets = [token_filters.module_of(model, layer, config) for layer in chosen if config.place]
    filters = {
        layer.name: _build(config, layer, backend, heads_mesh(model, layer)) for layer in chosen
    }
    reads_first = any(graph_filter.reads_first for graph_filter in filters.values())
    if reads_first:
        name_stacks(model, filters, layers)
    if isinstance(model, PreTrainedModel):
        as_eager = plan.unverified or plan.out_of_reach or backend == backends.DELEGATE
        checked = {CHECKED: passed(backend)} if plan.unverified else {}
        mark(model, make_entry(config) | checked, AS_EAGER if as_eager else NAME)
        model.register_state_dict_post_hook(warn_if_a_part)
    for attention in plan.attention:
        _put_in(attention, filters.get(attention.name))
    for module in targets:
        token_filters.put_at(module, config)
    for module in model.modules():
        if reads_first and isinstance(module, PreTrainedModel) and takes_more(module):
            module.register_forward_pre_hook(begin_forward, with_kwargs=True)
        if isinstance(module, nn.TransformerEncoder):
            # It gives its layers nested tensors if the first layer's weights fit.
            dropout.set_meanwhile(module, {"use_nested_tensor": False})


def passed(backend: str) -> dict[str, str]:
    """What a check depends on: the entry of a checked model has it."""
    return {"transformers": transformers.__version__, "backend": backend}


def remove_filters(model: nn.Module) -> None:
    """Take the filters out of a model, and give its modules their configs back."""
    for attention in find(model).attention:
        if isinstance(attention.module, functional.MultiheadAttention):
            functional.take_out(attention.module)
        elif hasattr(attention.module, FILTER):
            delattr(attention.module, FILTER)
    for module in model.modules():
        _remove_hooks(module)
        dropout.set_back(module)
    unmark(model)


def _choose_layers(
    layers: Sequence[AttentionModule], config: VariantConfig
) -> Sequence[AttentionModule]:
    if config.layers is None:
        return layers
    count = len(layers)
    for index in config.layers:
        if not -count <= index < count:
            raise refusal(
                "layers",
                config.layers,
                f"indices from {-count} to {count - 1}: the model has {count} self-attention "
                f"module(s), since layers that share one (ALBERT) share its filter",
            )
    wanted = {index % count for index in config.layers}
    return [layer for i, layer in enumerate(layers) if i in wanted]


def _build(
    config: VariantConfig, layer: AttentionModule, backend: str, mesh: DeviceMesh | None
) -> GraphFilter:
    if not layer.num_heads:
        raise refusal(
            f"the number of heads of {layer.name}",
            "not known",
            f"a positive integer in one of {', '.join(HEADS)}, or in the attribute registered",
            "Leave this layer out with layers=(...).",
        )
    module: Any = layer.module
    graph_filter = config.build(module.config.hidden_size if config.place else layer.num_heads)
    allowed = graph_filter.backends
    if layer.row is not None:
        allowed = dropout.backends_of(graph_filter, layer.module)
    elif isinstance(layer.module, MULTIHEAD):
        functional.refuse_other_keys(layer.module)
        if graph_filter.reads_first:
            allowed_here = "a filter that reads one layer alone, in torch's nn.MultiheadAttention"
            raise refusal("config", config, allowed_here)
        allowed = tuple(name for name in allowed if name != backends.DELEGATE)
    graph_filter.backend = backends.check(backend, allowed)
    graph_filter.to(layer.device).train(layer.module.training)
    if mesh is not None:
        share_heads(graph_filter, mesh)
    return graph_filter


def _put_in(attention: AttentionModule, graph_filter: GraphFilter | None) -> None:
    module = attention.module
    if graph_filter is None:
        # None marks a module as plain on purpose; a module without the mark was never patched.
        setattr(module, FILTER, None)
    elif attention.row is not None:
        dropout.put_in(module, graph_filter)
    elif isinstance(module, MULTIHEAD):
        functional.put_in(module, graph_filter)
    else:
        setattr(module, FILTER, graph_filter)
        module.register_forward_pre_hook(before_attention, with_kwargs=True)


def warn_if_a_part(model: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Warn where a patched base model is saved inside another: that one's config lacks the filters.

    A hook of `model.state_dict()`, which saving calls; DDP's and PEFT's prefixes are other ones.
    """
    if prefix and prefix == f"{model.base_model_prefix}.":
        logger.warning(
            f"{type(model).__name__} was patched as a part of another model, whose config.json "
            f"will not say so: plain transformers would load it without the filters. Unpatch the "
            f"part, and patch the outermost model."
        )


def _remove_hooks(module: nn.Module) -> None:
    """Remove the hooks of filters, by their functions: a copied model has copies of the hooks."""
    ours = (before_attention, begin_forward, warn_if_a_part, *token_filters.HOOKS)
    for hooks in (module._forward_pre_hooks, module._forward_hooks, module._state_dict_hooks):
        for key, hook in list(hooks.items()):
            if hook in ours or isinstance(hook, dropout.AfterDropout):
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
