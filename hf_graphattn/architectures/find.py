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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata, resources
from typing import Any

import torch
from torch import nn

from hf_graphattn.errors import GraphAttentionError

from .own_attention import OwnAttention, forward_owner, row_of, why_unreached


@dataclass(frozen=True)
class Architecture:
    """An architecture of which every cell of docs/compatibility.md is tested.

    name: as people write it. attention: the class of its self-attention (a subclass
    counts too, unless its forward is its own). norm, branch: where filters of tokens act, by names
    in the module around the attention: the layer norm of the sum of its output and the residual,
    and the module that returns its output.
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
    """One attention module of a model: its qualified name, and what is known of it.

    num_heads: of its queries. row: of a class that is reached by its dropout module. architecture:
    of a class in the table.
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

    attention: the modules whose attention a filter can take over, in model order. out_of_reach:
    (name, module) of those that compute attention by themselves.
    """

    model: nn.Module
    attention: tuple[AttentionModule, ...]
    out_of_reach: tuple[tuple[str, nn.Module], ...]

    @cached_property
    def self_attention(self) -> list[AttentionModule]:
        """The modules that can have a filter, in the order that `layers` counts."""
        return [layer for layer in self.attention if layer.is_self_attention]

    @cached_property
    def is_known(self) -> bool:
        """Whether the masks of every self-attention class are known: all are in the table, and the
        list of model types does not leave out the model's type."""
        return not self._is_unlisted and all(layer.is_verified for layer in self.self_attention)

    @cached_property
    def needs_check(self) -> list[str]:
        """The self-attention classes for which the model needs a check before it is patched.

        Those that are in no row of the table, unless they are listed; and all of a model of a type
        that was tried and is not listed, since its masks may be others.
        """
        if self.is_listed():
            return []
        unverified = [e for e in self.self_attention if self._is_unlisted or not e.is_verified]
        return sorted({type(layer.module).__name__ for layer in unverified})

    def is_listed(self, version: str | None = None) -> bool:
        """Whether all attention classes are listed for the type of the model's outermost config.

        version: of transformers; by default the installed one.
        """
        model_type = getattr(getattr(self.model, "config", None), "model_type", "")
        names = verified_types(version).get(model_type, [])
        classes = {type(layer.module) for layer in self.attention}
        return bool(classes) and all(
            cls.__module__.startswith("transformers.") and cls.__name__ in names for cls in classes
        )

    @cached_property
    def _is_unlisted(self) -> bool:
        model: Any = self.model
        of_transformers = type(model).__module__.startswith("transformers.")
        types = verified_types()
        return of_transformers and bool(types) and model.config.model_type not in types

    @cached_property
    def why_plain(self) -> dict[str, str]:
        """The names of the classes out of reach, and why each is."""
        names = sorted({type(module).__name__ for _, module in self.out_of_reach})
        return {name: why_unreached(name) for name in names}


def verified_types(version: str | None = None) -> dict[str, list[str]]:
    """Model type -> its attention classes, for a version of transformers; of another: none.

    version: by default the installed one.
    """
    return _verified().get(version or metadata.version("transformers"), {})


@cache
def _verified() -> dict[str, dict[str, list[str]]]:
    return json.loads(VERIFIED.read_text("utf-8"))


def find(model: nn.Module) -> Plan:
    """The attention of a model.

    torch's `nn.MultiheadAttention` counts where the model has no other attention: beside other
    attention, as in the pooling heads of vision models, its queries are not the tokens.
    """
    modules = dict(model.named_modules())
    names = [name for name, m in modules.items() if _forward(m.__class__) or row_of(m)]
    if not names:
        names = [name for name, module in modules.items() if _is_torchs(module)]
    attention = tuple(
        AttentionModule(
            name,
            modules[name],
            _heads(modules[name]),
            not _is_cross(name, modules.get(name.rpartition(".")[0])),
            row_of(modules[name]),
            _architecture(type(modules[name])),
        )
        for name in names
    )
    apart = {id(module) for module in _apart(model, {id(e.module) for e in attention})}
    out_of_reach = [(n, m) for n, m in modules.items() if id(m) in apart and _is_named(m)]
    return Plan(model, attention, tuple(out_of_reach))


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


def _apart(module: nn.Module, attention: set[int]) -> Iterator[nn.Module]:
    """The modules that are not attention modules, nor inside one, nor around one."""
    if id(module) in attention:
        return
    if not any(id(inner) in attention for inner in module.modules()):
        yield module
    for child in module.children():
        yield from _apart(child, attention)


def _is_named(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower() and any(True for _ in module.parameters())


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
    if not owner.__module__.startswith("transformers."):
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


def _heads(module: Any) -> int:
    """The number of its query heads; 0 if no attribute has it."""
    row = row_of(module)
    names = HEADS if row is None or row.num_heads is None else (row.num_heads,)
    for owner in (module, getattr(module, "config", None)):
        for name in names:
            if isinstance(getattr(owner, name, None), int):
                return getattr(owner, name)
    return 0
