"""Putting filters into a model's attention modules, and taking them out again.

Each module gains a submodule `graph_filter`, and a way for it to act: a forward pre-hook where
transformers' interface calls it, a hook of the dropout module of A (`after_dropout`), or a class of
ours for torch's own (`multihead`). The modules of a transformers model get copies of their
configs, which say the name of the attention function and what was patched, in one JSON object,
`config.graph_attn`. Whether a model may be patched is `patching`'s question.
"""

from __future__ import annotations

import logging
from typing import Any

import transformers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from hf_graphattn import backends
from hf_graphattn.architectures.find import (
    MULTIHEAD,
    AttentionModule,
    attention_modules,
    own_attention,
)
from hf_graphattn.architectures.verified import is_unlisted
from hf_graphattn.errors import refusal
from hf_graphattn.interface import dropout as after_dropout
from hf_graphattn.interface import multihead
from hf_graphattn.interface import token_filters as after_attention
from hf_graphattn.interface.first_layer import begin_forward, name_stacks, takes_more
from hf_graphattn.interface.graph_attn import AS_EAGER, FILTER, NAME, before_attention
from hf_graphattn.interface.multihead import MultiheadAttention, refuse_other_keys
from hf_graphattn.model.config_entry import make_entry
from hf_graphattn.model.configs import (
    ENTRY,
    IMPLEMENTATION,
    SAVED,
    copies_of,
    give_back,
    make_plain,
    own_configs,
    replace_configs,
)
from hf_graphattn.model.parallel import heads_mesh, share_heads
from hf_graphattn.sharing.checkpoints import hub_id
from hf_graphattn.sharing.push import PushToHub
from hf_graphattn.sharing.save import ModelMethod, SavePart, SavePretrained, loads_alone
from hf_graphattn.variants import GraphFilter, VariantConfig

# The attribute of a patched model that holds its `OwnConfig`s.
UNDO = "_graph_attn_undo"
# The key of a patched model's entry that says with what it was checked.
CHECKED = "checked"
# What `place` makes of modules, beside the hooks of dropout modules.
HOOKS = (before_attention, begin_forward, after_attention.before_norm, after_attention.after_branch)
# The methods that a patched model has of its own.
METHODS = {"push_to_hub": PushToHub, "save_pretrained": SavePretrained}

logger = logging.getLogger("hf_graphattn")


def place(model: nn.Module, config: VariantConfig, backend: str) -> None:
    """Put the filters of `config` into a model; after an error the model is as it was.

    Where an attention class is not verified, or the architecture's own attention computes, that one
    is given the masks that it is written for.

    Raises:
        GraphAttentionError: nothing says how many heads a layer has, or where a filter of tokens
            acts; or the settings do not fit.
    """
    modules = attention_modules(model)
    layers = [each for each in modules if each.is_self_attention]
    chosen = _choose_layers(layers, config)
    places = [after_attention.place_of(model, each, config) for each in chosen if config.place]
    filters = {each.name: _build(config, each, backend, heads_mesh(model, each)) for each in chosen}
    name_stacks(model, {n: each for n, each in filters.items() if each.reads_first}, layers)
    if isinstance(model, PreTrainedModel):
        unverified = is_unlisted(model) or not all(each.is_verified for each in layers)
        as_eager = unverified or bool(own_attention(model)) or backend == backends.DELEGATE
        checked = {CHECKED: passed(backend)} if unverified else {}
        _mark(model, config, AS_EAGER if as_eager else NAME, checked)
    for each in modules:
        _put_in(each, filters.get(each.name))
    for module in places:
        after_attention.put_at(module, config)
    if any(each.reads_first for each in filters.values()):
        for module in _models(model):
            module.register_forward_pre_hook(begin_forward, with_kwargs=True)
    for module in torch_encoders(model):
        after_dropout.set_meanwhile(module, {"use_nested_tensor": False})


def passed(backend: str) -> dict[str, str]:
    """What the entry of a checked model says of the check: it holds for these alone."""
    return {"transformers": transformers.__version__, "backend": backend}


def take_out(model: nn.Module) -> None:
    """Take the filters out of a model, and give its modules their configs back."""
    owners: list[Any] = [m for m in model.modules() if UNDO in m.__dict__]
    for attention in attention_modules(model):
        _take_out(attention)
    for module in model.modules():
        for hook in HOOKS:
            _remove(module, hook)
        for name, each in list(vars(module).items()):
            if isinstance(each, (ModelMethod, SavePart)):
                del vars(module)[name]
    for module in torch_encoders(model):
        after_dropout.set_back(module)
    for owner in owners:
        give_back(model, owner.__dict__.pop(UNDO))
        for key, hook in list(owner._state_dict_hooks.items()):
            if hook is tell_if_a_part:
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
            else "one of the attributes by which attention modules of transformers say it",
            "Leave this layer out with layers=(...).",
        )
    module: Any = layer.module
    graph_filter = config.build(module.config.hidden_size if config.place else layer.num_heads)
    allowed = graph_filter.backends
    if layer.row is not None:
        allowed = after_dropout.backends_of(graph_filter, layer.module)
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
    """Have the configs of a transformers model say what it is patched with, and it save them."""
    made = own_configs(model, implementation)
    copies = copies_of(model, made)
    own: Any = copies[id(model.config)]
    setattr(own, IMPLEMENTATION, SAVED)
    setattr(own, ENTRY, make_entry(config) | _base_model(model) | checked)
    replace_configs(model, copies)
    model.__dict__[UNDO] = made
    model.register_state_dict_post_hook(tell_if_a_part)
    methods = {name: method(model) for name, method in METHODS.items()}
    model.__dict__.update(methods)
    for part in model.modules():
        is_whole = hasattr(getattr(part, "config", None), ENTRY) and loads_alone(part)
        if isinstance(part, PreTrainedModel) and part is not model and not is_whole:
            part.__dict__["save_pretrained"] = SavePart(type(part).__name__)


def _put_in(attention: AttentionModule, graph_filter: GraphFilter | None) -> None:
    module = attention.module
    if graph_filter is None:
        # None marks a module as plain on purpose; a module without the mark was never patched.
        setattr(module, FILTER, None)
    elif attention.row is not None:
        after_dropout.put_in(module, graph_filter)
    elif isinstance(module, MULTIHEAD):
        multihead.put_in(module, graph_filter)
    else:
        setattr(module, FILTER, graph_filter)
        module.register_forward_pre_hook(before_attention, with_kwargs=True)


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


def torch_encoders(model: nn.Module) -> list[Any]:
    """Those of torch, which give their layers nested tensors if the first layer's weights fit."""
    return [each for each in model.modules() if isinstance(each, nn.TransformerEncoder)]


def _take_out(attention: AttentionModule) -> None:
    module = attention.module
    if isinstance(module, MultiheadAttention):
        multihead.take_out(module)
        return
    if attention.row is not None:
        after_dropout.take_out(module)
    if hasattr(module, FILTER):
        delattr(module, FILTER)


def _remove(module: nn.Module, hook: Any) -> None:
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, each in hooks.items() if each is hook]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)


def _models(model: nn.Module) -> list[nn.Module]:
    """The transformers models in a model, itself too, that pass on arguments of their calls."""
    return [
        each for each in model.modules() if isinstance(each, PreTrainedModel) and takes_more(each)
    ]
