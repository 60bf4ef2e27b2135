"""Putting filters into a model's attention modules, and taking them out again.

Each module gains a submodule `graph_filter`, and a way for it to act: a forward pre-hook where
transformers' interface calls it, a hook of the dropout module of A (`interface.dropout`), or a
class of ours for torch's own (`interface.multihead`). The modules of a transformers model get
copies of their configs, with the name of the attention function and what was patched, in one JSON
object, `config.graph_attn`. `patch` decides whether a model may be patched.
"""

from __future__ import annotations

import logging
from typing import Any

import transformers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from hf_graphattn import backends
from hf_graphattn.architectures.find import MULTIHEAD, AttentionModule, Plan, find
from hf_graphattn.errors import refusal
from hf_graphattn.interface import dropout, multihead, token_filters
from hf_graphattn.interface.first_layer import begin_forward, name_stacks, takes_more
from hf_graphattn.interface.graph_attn import AS_EAGER, FILTER, NAME, before_attention
from hf_graphattn.interface.multihead import MultiheadAttention, refuse_other_keys
from hf_graphattn.model.configs import (
    ENTRY,
    IMPLEMENTATION,
    SAVED,
    copies_of,
    copy_configs,
    give_back,
    make_entry,
    make_plain,
    replace_configs,
)
from hf_graphattn.model.parallel import heads_mesh, share_heads
from hf_graphattn.variants import GraphFilter, VariantConfig

# The attribute of a patched model that holds its `ConfigCopy`s.
UNDO = "_graph_attn_undo"
# The key of a patched model's entry for the versions with which it was checked.
CHECKED = "checked"
# The hooks of modules, beside those of dropout modules.
HOOKS = (before_attention, begin_forward, token_filters.before_norm, token_filters.after_branch)

logger = logging.getLogger("hf_graphattn")


def insert_filters(plan: Plan, config: VariantConfig, backend: str) -> None:
    """Put the filters of `config` into a model; after an error the model is as it was.

    Where an attention class is not verified, or the architecture's own attention computes, that one
    is given the masks that it is written for.

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
    name_stacks(model, {name: f for name, f in filters.items() if f.reads_first}, layers)
    if isinstance(model, PreTrainedModel):
        as_eager = not plan.is_known or plan.out_of_reach or backend == backends.DELEGATE
        checked = {} if plan.is_known else {CHECKED: passed(backend)}
        _mark(model, config, AS_EAGER if as_eager else NAME, checked)
    for attention in plan.attention:
        _put_in(attention, filters.get(attention.name))
    for module in targets:
        token_filters.put_at(module, config)
    if any(f.reads_first for f in filters.values()):
        for module in _models(model):
            module.register_forward_pre_hook(begin_forward, with_kwargs=True)
    for module in torch_encoders(model):
        dropout.set_meanwhile(module, {"use_nested_tensor": False})


def passed(backend: str) -> dict[str, str]:
    """What a check depends on: the entry of a checked model has it."""
    return {"transformers": transformers.__version__, "backend": backend}


def remove_filters(model: nn.Module) -> None:
    """Take the filters out of a model, and give its modules their configs back."""
    owners: list[Any] = [m for m in model.modules() if UNDO in m.__dict__]
    for attention in find(model).attention:
        _take_out(attention)
    for module in model.modules():
        for hook in HOOKS:
            _remove(module, hook)
    for module in torch_encoders(model):
        dropout.set_back(module)
    for owner in owners:
        give_back(model, owner.__dict__.pop(UNDO))
        for key, hook in list(owner._state_dict_hooks.items()):
            if hook is warn_if_a_part:
                del owner._state_dict_hooks[key]
    make_plain(model)


def _choose_layers(layers: list[AttentionModule], config: VariantConfig) -> list[AttentionModule]:
    if config.layers is None:
        return layers
    count = len(layers)
    for index in config.layers:
        if not -count <= index < count:
            raise refusal(
                "layers",
                config.layers,
                f"indices from {-count} to {count - 1}: the model has {count} self-attention "
                f"module(s) of its own",
                "Leave layers out: layers that share a module (ALBERT) share its filter."
                if count == 1
                else "",
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
            f"a positive integer, in {layer.row.num_heads!r} as registered"
            if layer.row is not None and layer.row.num_heads
            else "in one of the usual attributes of transformers' attention modules",
            "Leave this layer out with layers=(...).",
        )
    module: Any = layer.module
    graph_filter = config.build(module.config.hidden_size if config.place else layer.num_heads)
    allowed = graph_filter.backends
    if layer.row is not None:
        allowed = dropout.backends_of(graph_filter, layer.module)
    elif isinstance(layer.module, MULTIHEAD):
        refuse_other_keys(layer.module)
        if graph_filter.reads_first:
            allowed_here = "a filter that reads one layer alone, in torch's nn.MultiheadAttention"
            raise refusal("config", config, allowed_here)
        allowed = tuple(name for name in allowed if name != backends.DELEGATE)
    graph_filter.backend = backends.check(backend, allowed)
    graph_filter.to(layer.device).train(layer.module.training)
    if mesh is not None:
        share_heads(graph_filter, mesh)
    return graph_filter


def _mark(model: Any, config: VariantConfig, implementation: str, checked: dict[str, Any]) -> None:
    """Write into the configs of a transformers model what it is patched with."""
    copies = copy_configs(model, implementation)
    by_original = copies_of(model, copies)
    outermost: Any = by_original[id(model.config)]
    setattr(outermost, IMPLEMENTATION, SAVED)
    setattr(outermost, ENTRY, make_entry(config) | checked)
    replace_configs(model, by_original)
    model.__dict__[UNDO] = copies
    model.register_state_dict_post_hook(warn_if_a_part)


def _put_in(attention: AttentionModule, graph_filter: GraphFilter | None) -> None:
    module = attention.module
    if graph_filter is None:
        # None marks a module as plain on purpose; a module without the mark was never patched.
        setattr(module, FILTER, None)
    elif attention.row is not None:
        dropout.put_in(module, graph_filter)
    elif isinstance(module, MULTIHEAD):
        multihead.put_in(module, graph_filter)
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


def torch_encoders(model: nn.Module) -> list[Any]:
    """Those of torch, which give their layers nested tensors if the first layer's weights fit."""
    return [module for module in model.modules() if isinstance(module, nn.TransformerEncoder)]


def _take_out(attention: AttentionModule) -> None:
    module = attention.module
    if isinstance(module, MultiheadAttention):
        multihead.take_out(module)
        return
    if attention.row is not None:
        dropout.take_out(module)
    if hasattr(module, FILTER):
        delattr(module, FILTER)


def _remove(module: nn.Module, hook: Any) -> None:
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, registered in hooks.items() if registered is hook]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)


def _models(model: nn.Module) -> list[nn.Module]:
    """The transformers models in a model, itself too, that pass on arguments of their calls."""
    return [m for m in model.modules() if isinstance(m, PreTrainedModel) and takes_more(m)]
