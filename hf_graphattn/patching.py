"""Putting filters into a model, and taking them out again.

`patch_model` checks everything and builds every filter before it touches the model: after an
error the model is as it was. The model keeps its class, its modules and its parameters. Each
self-attention module gains a submodule `graph_filter` and a forward pre-hook. The modules get
copies of their configs, which say the name of the attention function and what was patched, in one
JSON object, `config.graph_attn`.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, TypeVar

import transformers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from . import backends
from .architectures import AttentionModule, attention_modules, supported, unknown_attention
from .attention import FILTER, before_attention
from .card import hub_id
from .config_entry import make_entry
from .configs import (
    ENTRY,
    IMPLEMENTATION,
    SAVED,
    copies_of,
    give_back,
    is_marked,
    make_plain,
    own_configs,
    replace_configs,
)
from .errors import GraphAttentionError, refusal
from .filters import is_patched, refuse_no_model
from .parallel import heads_mesh, refuse_spread, share_heads
from .repository import PushToHub
from .running import refuse_running
from .saving import SavePretrained
from .variants import GraphFilter, VariantConfig, variant_configs

# The attribute of a patched model that holds its `OwnConfig`s.
UNDO = "_graph_attn_undo"
# The methods that a patched model has of its own.
METHODS = {"push_to_hub": PushToHub, "save_pretrained": SavePretrained}

# Patching and unpatching are one at a time: of two threads that patch a model, one is refused.
_LOCK = threading.RLock()

Model = TypeVar("Model", bound=nn.Module)

logger = logging.getLogger("hf_graphattn")


def patch_model(model: Model, config: VariantConfig, *, backend: str = "auto") -> Model:
    """Turn the self-attention of `model` into the graph filter of `config`, in place.

    Args:
        model: a transformers model of a supported architecture, with or without a head. It must
            be the outermost model, since a part's filters are not saved with the whole.
        config: `GFSAConfig(...)`, `PLaTConfig(...)`, `LaplacianConfig(...)` ...
        backend: how the attention is computed. "auto" chooses at each call; "eager" keeps A;
            "sdpa" makes fused passes, as do "flash_attention_2" (the flash_attn package) and
            "flex_attention" where they can run; p-LaT has "blockwise" (any device) and "triton"
            (CUDA).

    Returns:
        The model itself.

    Raises:
        GraphAttentionError: an argument is bad; or the model is patched already, has no
            attention, is of an architecture that is not supported, is running, or is spread over
            processes otherwise than by tensor parallelism. The model is as it was.
    """
    with _LOCK:
        _check_arguments(model, config)
        refuse_running(model, "patching")
        _patch(model, config, backend)
        try:
            refuse_running(model, "patching")  # a forward may have begun meanwhile
        except GraphAttentionError:
            _take_out(model)
            raise
    return model


def _patch(model: nn.Module, config: VariantConfig, backend: str) -> None:
    modules = attention_modules(model)
    chosen = _choose_layers(_self_attention(model, modules), config)
    filters = [_build(config, layer, heads_mesh(model, layer)) for layer in chosen]
    for graph_filter in filters:
        graph_filter.backend = backends.check(backend, graph_filter.backends)
    _attach(model, config, modules, dict(zip((m.name for m in chosen), filters, strict=True)))


def unpatch_model(model: Model) -> Model:
    """Take the filters out again: the original model, bit for bit. Returns the model.

    A model without filters whose config is that of a patched model (it was built from that config,
    or loaded by transformers itself) becomes plain too.

    Raises:
        GraphAttentionError: the model is not patched, or is running.
    """
    refuse_no_model(model)
    with _LOCK:
        if not is_patched(model) and not is_marked(model):
            raise GraphAttentionError(
                f"{type(model).__name__} is not patched, so there is nothing to take out. "
                f"is_patched(model) tells whether a model is."
            )
        refuse_running(model, "unpatching")
        _take_out(model)
    return model


def _take_out(model: nn.Module) -> None:
    owners: list[Any] = [m for m in model.modules() if UNDO in m.__dict__]
    for attention in attention_modules(model):
        _detach(attention.module)
    for owner in owners:
        give_back(model, owner.__dict__.pop(UNDO))
        for key, hook in list(owner._state_dict_hooks.items()):
            if hook is tell_if_a_part:
                del owner._state_dict_hooks[key]
        for name in METHODS:
            del owner.__dict__[name]
    make_plain(model)


def _check_arguments(model: object, config: object) -> None:
    if type(config) not in variant_configs().values():
        allowed = ", ".join(f"{cls.__name__}(...)" for cls in variant_configs().values())
        raise refusal("config", config, allowed, "A class of your own needs @register(name).")
    if not isinstance(model, nn.Module):
        remedy = "Load it with from_pretrained first."
        raise refusal("model", type(model).__name__, "a transformers model", remedy)
    if is_patched(model):
        raise GraphAttentionError(
            f"{type(model).__name__} is patched already. Call unpatch_model(model) first."
        )
    if not isinstance(model, PreTrainedModel):
        remedy = f"This one cannot be patched: {_why_unsupported(model)}"
        if attention_modules(model):
            remedy = "Patch the transformers model before it is wrapped."
        raise refusal("model", type(model).__name__, "a transformers PreTrainedModel", remedy)
    cls = type(model)
    if cls.__module__.startswith("transformers.") and not hasattr(transformers, cls.__name__):
        raise refusal(
            "model",
            cls.__name__,
            "a model that can be saved and loaded by itself",
            "Its config would not be saved with the whole model's: patch the whole model, and "
            "choose with layers=(...) which layers are filtered.",
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise GraphAttentionError(
            f"{type(model).__name__} has parameters on the meta device, without values. Load the "
            f"weights first, then patch."
        )
    refuse_spread(model)


def _self_attention(model: nn.Module, modules: list[AttentionModule]) -> list[AttentionModule]:
    layers = [module for module in modules if module.is_self_attention]
    if not layers:
        raise GraphAttentionError(
            f"{type(model).__name__} cannot be patched: {_why_unsupported(model)} Supported "
            f"architectures: {supported()}."
        )
    return layers


def _why_unsupported(model: nn.Module) -> str:
    unknown = unknown_attention(model)
    if not unknown:
        return "it has no attention modules."
    return f"its attention ({', '.join(unknown)}) is in no row of the architecture table."


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


def _build(config: VariantConfig, layer: AttentionModule, mesh: DeviceMesh | None) -> GraphFilter:
    graph_filter = config.build(layer.num_heads)
    graph_filter.to(layer.device).train(layer.module.training)
    if mesh is not None:
        share_heads(graph_filter, mesh)
    return graph_filter


def _attach(
    model: Any,
    config: VariantConfig,
    modules: list[AttentionModule],
    filters: dict[str, GraphFilter],
) -> None:
    made = own_configs(model)
    copies = copies_of(model, made)
    own: Any = copies[id(model.config)]
    setattr(own, IMPLEMENTATION, SAVED)
    setattr(own, ENTRY, make_entry(config) | _base_model(model))
    for attention in modules:
        # None marks a module as plain on purpose; a module without the mark was never patched.
        setattr(attention.module, FILTER, filters.get(attention.name))
        if attention.name in filters:
            attention.module.register_forward_pre_hook(before_attention, with_kwargs=True)
    replace_configs(model, copies)
    model.__dict__[UNDO] = made
    model.register_state_dict_post_hook(tell_if_a_part)
    methods = {name: method(model) for name, method in METHODS.items()}
    model.__dict__.update(methods)


def tell_if_a_part(model: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Warn where a patched base model is saved inside another: that one's config lacks the filters.

    A hook of `model.state_dict()`, which saving calls; DDP's and PEFT's prefixes are other ones.
    """
    if prefix and prefix == f"{model.base_model_prefix}.":
        logger.warning(
            f"{type(model).__name__} was patched as a part of another model, whose config.json "
            f"will not say so: plain transformers would load it without the filters. Unpatch the "
            f"part, and patch the outermost model."
        )


def _base_model(model: PreTrainedModel) -> dict[str, str]:
    """The hub id that the model came from, for the card; nothing if it came from a folder."""
    name = hub_id(model.config.name_or_path)
    return {"base_model": name} if name else {}


def _detach(module: nn.Module) -> None:
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is before_attention:
            del module._forward_pre_hooks[key], module._forward_pre_hooks_with_kwargs[key]
    if hasattr(module, FILTER):
        delattr(module, FILTER)
