"""Which modules of a model are attention, and which of them are known to be exact with a filter.

transformers' attention modules that look their function up in `AttentionInterface` share one
calling convention. So they are found by a rule: no list of architectures is needed to find them,
only to say which were verified. Any other is verified by `check` before it is patched.

Some of the others are reached by the dropout module of A (`own_attention`), and torch's own
`nn.MultiheadAttention` in plain torch models by a class of ours for it (`multihead`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from typing import Any

import torch
from torch import nn

from hf_graphattn.errors import GraphAttentionError

from .own_attention import OwnAttention, forward_owner, row_of, why_unreached


@dataclass(frozen=True)
class Architecture:
    """An architecture for which every feature of docs/compatibility.md is tested.

    Attributes:
        name: as people write it.
        attention: the class of its self-attention; a subclass counts too, unless it defines a
            forward.
        norm: where filters of tokens act, by its name in the module around the attention: the layer
            norm of the sum of the attention's output and the residual.
        branch: the same for filters that act on what the attention returns.
    """

    name: str
    attention: str
    norm: str | None = None
    branch: str | None = None


ARCHITECTURES = (
    Architecture("ALBERT", "AlbertAttention", "attention.LayerNorm", "attention.output_dropout"),
    Architecture("BART", "BartAttention"),
    Architecture("BERT", "BertSelfAttention", "output.LayerNorm", "output.dropout"),
    Architecture("DeiT", "DeiTAttention", "layernorm_after", "attention"),
    Architecture("DistilBERT", "DistilBertSelfAttention", "sa_layer_norm", "attention"),
    Architecture("ELECTRA", "ElectraSelfAttention", "output.LayerNorm", "output.dropout"),
    Architecture("GPT-2", "GPT2Attention", "ln_2", "attn"),
    Architecture("GPT-NeoX", "GPTNeoXAttention"),
    Architecture("Llama", "LlamaAttention"),
    Architecture("Mistral", "MistralAttention"),
    Architecture("ModernBERT", "ModernBertAttention"),
    Architecture("OPT", "OPTAttention"),
    Architecture("PLBART", "PLBartAttention"),
    Architecture("Qwen3", "Qwen3Attention"),
    Architecture("RoBERTa", "RobertaSelfAttention", "output.LayerNorm", "output.dropout"),
    Architecture("T5", "T5Attention"),
    Architecture("ViT", "ViTAttention", "layernorm_after", "attention"),
    Architecture("Whisper", "WhisperAttention"),
)

# Version of transformers -> model type -> the classes of its attention, if `make matrix` found them
# exact: it compares a tiny model of every type with its own attention. What a class computes
# depends on the masks that its model passes, so the classes are listed by type: Grounding DINO
# passes masks to BERT's class that a filter does not know.
VERIFIED = resources.files(__package__) / "verified.json"
INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # what a forward that looks its function up names
# How the parts of the path of a cross-attention module are called; the name alone misses some.
CROSS = ("cross", "encoder_attn", "encdecattention", "encoder_decoder_att", "token_to_image")
MULTIHEAD = nn.MultiheadAttention
HEADS = (
    "num_heads",
    "num_attention_heads",
    "n_heads",
    "n_head",
    "num_query_heads",
    "decoder_self_attention_heads",
)


@dataclass(frozen=True)
class AttentionModule:
    """One attention module of a model.

    Attributes:
        name: its qualified name.
        module: the module.
        num_heads: of its queries; 0 if not known.
        is_self_attention: whether its keys are of the same tokens as its queries.
        row: that of a class that is reached by its dropout module.
        architecture: that of a class in the table.
    """

    name: str
    module: nn.Module
    num_heads: int
    is_self_attention: bool
    row: OwnAttention | None = None
    architecture: Architecture | None = None

    @property
    def is_verified(self) -> bool:
        """Whether its class is in the table, or torch's own."""
        return self.architecture is not None or isinstance(self.module, MULTIHEAD)

    @property
    def through_interface(self) -> bool:
        """Whether it calls the function that is registered with transformers."""
        return self.row is None and not isinstance(self.module, MULTIHEAD)

    @property
    def device(self) -> torch.device:
        """That of its parameters. torch's dynamic quantisation leaves none, and needs the CPU."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))


@dataclass(frozen=True)
class Plan:
    """The attention of a model, read once: patching, the check and the report go by it.

    Attributes:
        model: the model.
        attention: the modules whose attention a filter can take over, in model order.
        self_attention: those that can have a filter, in the order that `layers` counts.
        out_of_reach: (name, module) of the modules that compute attention by themselves.
        why_plain: the class names of these modules, and why a filter does not reach each.
        is_listed: whether all attention classes are listed for the type of the outermost config.
        unverified: the self-attention classes whose masks are not known: those in no row of the
            table, and all of a model of a type that was tried and is not listed.
        needs_check: those of them for which the model needs a check before it is patched.
    """

    model: nn.Module
    attention: tuple[AttentionModule, ...]
    self_attention: tuple[AttentionModule, ...]
    out_of_reach: tuple[tuple[str, nn.Module], ...]
    why_plain: dict[str, str]
    is_listed: bool
    unverified: tuple[str, ...]
    needs_check: tuple[str, ...]


def verified_types(version: str | None = None) -> dict[str, list[str]]:
    """The attention classes that `make matrix` found exact, by model type.

    Args:
        version: of transformers, by default the installed one. A version that was not tried has
            none.
    """
    return _verified().get(version or metadata.version("transformers"), {})


@cache
def _verified() -> dict[str, dict[str, list[str]]]:
    return json.loads(VERIFIED.read_text("utf-8"))


def find(model: nn.Module) -> Plan:
    """Read which modules of a model are attention.

    torch's `nn.MultiheadAttention` counts where the model has no other attention: beside other
    attention, as in the pooling heads of vision models, its queries are not the tokens.
    """
    modules = dict(model.named_modules())
    rows = {name: row_of(module) for name, module in modules.items()}
    names = [name for name, m in modules.items() if rows[name] or _forward(m.__class__)]
    if not names:
        names = [name for name, module in modules.items() if _is_torchs(module)]
    attention = tuple(
        AttentionModule(
            name,
            modules[name],
            _heads(modules[name], rows[name]),
            not _is_cross(name, modules.get(name.rpartition(".")[0])),
            rows[name],
            _architecture(type(modules[name])),
        )
        for name in names
    )
    self_attention = tuple(layer for layer in attention if layer.is_self_attention)
    out_of_reach = _out_of_reach(modules, [layer.module for layer in attention])
    types = verified_types()
    listed = types.get(getattr(getattr(model, "config", None), "model_type", ""), [])
    is_left_out = bool(types) and not listed and _is_transformers(type(model))
    unverified = _class_names(e.module for e in self_attention if is_left_out or not e.is_verified)
    classes = {type(layer.module) for layer in attention}
    is_listed = bool(classes) and all(_is_transformers(c) and c.__name__ in listed for c in classes)
    return Plan(
        model=model,
        attention=attention,
        self_attention=self_attention,
        out_of_reach=out_of_reach,
        why_plain={n: why_unreached(n) for n in _class_names(m for _, m in out_of_reach)},
        is_listed=is_listed,
        unverified=unverified,
        needs_check=() if is_listed else unverified,
    )


def eager_attention(module: Any) -> Callable[..., Any]:
    """The function that an attention module calls where the implementation is "eager".

    Raises:
        GraphAttentionError: its forward names none.
    """
    cls: Any = type(module)
    forward = _forward(cls)
    names = [name for name in forward.__code__.co_names if "eager" in name]
    for name in names:
        if callable(forward.__globals__.get(name)):
            return forward.__globals__[name]
    raise GraphAttentionError(
        f"{type(module).__name__} has no eager attention function to delegate to."
    )


def _out_of_reach(
    modules: dict[str, nn.Module], attention: list[nn.Module]
) -> tuple[tuple[str, nn.Module], ...]:
    """The modules called attention that are no attention modules, nor inside or around one."""
    known = {id(module) for module in attention}
    inside = {id(part) for module in attention for part in module.modules()}
    return tuple(
        (name, module)
        for name, module in modules.items()
        if "attention" in type(module).__name__.lower()
        and id(module) not in inside
        and not any(id(part) in known for part in module.modules())
        and any(True for _ in module.parameters())
    )


def _class_names(modules: Iterable[nn.Module]) -> tuple[str, ...]:
    return tuple(sorted({type(module).__name__ for module in modules}))


def _is_transformers(cls: type) -> bool:
    return cls.__module__.startswith("transformers.")


@cache
def _forward(cls: Any) -> Any:
    """The forward of a class that looks its attention function up; None for other classes."""
    for base in cls.__mro__:
        forward = inspect.unwrap(vars(base).get("forward", None))
        if INTERFACE in getattr(getattr(forward, "__code__", None), "co_names", ()):
            return forward
    return None


def _architecture(cls: type) -> Architecture | None:
    """The row of the class whose forward it has: a subclass may have one of its own."""
    owner = forward_owner(cls)
    if not _is_transformers(owner):
        return None
    return next((row for row in ARCHITECTURES if row.attention == owner.__name__), None)


def _is_torchs(module: nn.Module) -> bool:
    """Whether it is torch's MultiheadAttention, or ours: other subclasses may do more."""
    is_ours = isinstance(module, MULTIHEAD) and "graph_filter" in module._modules
    return type(module) is MULTIHEAD or is_ours


def _is_cross(name: str, parent: nn.Module | None) -> bool:
    """Whether its path has a name of cross-attention; torch's decoder layers have another one."""
    if isinstance(parent, nn.TransformerDecoderLayer):
        return name.rpartition(".")[2] == "multihead_attn"
    return any(word in part for part in name.lower().split(".") for word in CROSS)


def _heads(module: Any, row: OwnAttention | None) -> int:
    """The number of its query heads; 0 if no attribute holds it."""
    names = HEADS if row is None or row.num_heads is None else (row.num_heads,)
    for owner in (module, getattr(module, "config", None)):
        for name in names:
            if isinstance(getattr(owner, name, None), int):
                return getattr(owner, name)
    return 0
