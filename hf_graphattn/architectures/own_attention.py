"""Attention classes that compute attention by themselves: which a filter reaches, and how.

Such a class can be reached where it puts A, and nothing else, through a dropout module before it
multiplies the values by it: H replaces what the module returns. No rule can find such classes
(XLNet's dropout serves its output too), so each class is a row. A row of `register_architecture` is
checked before a model is patched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import nn

from hf_graphattn.errors import refusal


@dataclass(frozen=True)
class OwnAttention:
    """One class.

    Attributes:
        attention: its name, with as much of its module's name as makes it unique.
        dropout: the attribute that holds the dropout module.
        num_heads: the attribute that holds the number of query heads, if it is no usual one.
        settings: attributes, and the values that they have while the module is patched.
        without: attributes by which it does more to A; a module that has one is not reached.
    """

    attention: str
    dropout: str
    num_heads: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def _rows(dropout: str, *names: str, **settings: Any) -> list[OwnAttention]:
    return [OwnAttention(name, dropout, settings=settings) for name in names]


ROWS = (
    OwnAttention(
        "modeling_deberta.DisentangledSelfAttention", "dropout", without=("talking_head",)
    ),
    *_rows(
        "dropout",
        "BigBirdSelfAttention",
        "BlipAttention",
        "BlipTextSelfAttention",
        "BrosSelfAttention",
        "CanineSelfAttention",
        "ClapAudioSelfAttention",
        "ConvBertSelfAttention",
        "CpmAntAttention",
        "Data2VecVisionSelfAttention",
        "DonutSwinSelfAttention",
        "FlavaSelfAttention",
        "GitSelfAttention",
        "IBertSelfAttention",
        "LayoutLMv2SelfAttention",
        "LayoutLMv3SelfAttention",
        "LukeSelfAttention",
        "MPNetSelfAttention",
        "MaskFormerSwinSelfAttention",
        "MegatronBertSelfAttention",
        "MobileViTSelfAttention",
        "PvtEfficientSelfAttention",
        "RemBertSelfAttention",
        "RoFormerSelfAttention",
        "SqueezeBertSelfAttention",
        "Swin2SRSelfAttention",
        "Swinv2SelfAttention",
        "TapasSelfAttention",
        "ViltSelfAttention",
        "VisualBertSelfAttention",
        "modeling_deberta_v2.DisentangledSelfAttention",
        "modeling_sew_d.DisentangledSelfAttention",
    ),
    *_rows("attention_dropout", "BloomAttention", "GPTNeoXJapaneseAttention"),
    *_rows("attn_drop", "MgpstrAttention", "PvtV2SelfAttention", "TimesformerSelfAttention"),
    *_rows(
        "attn_dropout",
        "CodeGenAttention",
        "GPTJAttention",
        "GPTNeoSelfAttention",
        "ImageGPTAttention",
        "TvpAttention",
        "modeling_openai.Attention",
    ),
    *_rows(
        "attn_drop",
        "timm.layers.attention.Attention",
        "timm.layers.attention.AttentionRope",
        "timm.models.beit.Attention",
        "timm.models.eva.EvaAttention",
        "timm.models.swin_transformer.WindowAttention",
        "timm.models.vision_transformer.Attention",
        fused_attn=False,
    ),
    *_rows(
        "attn_drop",
        "timm.models.cait.TalkingHeadAttn",
        "timm.models.swin_transformer_v2.WindowAttention",
    ),
)
PACKAGES = ("timm", "transformers")  # where the classes of the rows are

# What the user can do about classes that are out of reach.
REMEDIES = {
    "BigBirdBlockSparseAttention": "; with attention_type='original_full' it does not",
    "Data2VecVisionSdpaSelfAttention": "; with attn_implementation='eager' it does not",
}


def why_unreached(attention: str) -> str:
    """Why no filter reaches this class."""
    return f"it computes attention by itself{REMEDIES.get(attention, '')}"


_registered: dict[type, OwnAttention] = {}


def register_architecture(
    attention: type[nn.Module],
    *,
    dropout: str,
    num_heads: str = "num_heads",
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Make an attention class of your own, or of another package, known to `patch_model`.

    A model with it is patched after a check: `patch_model(model, config, check=batch)`. Filters
    that are linear in the values can be put there; H is formed, which takes a product of two N x N
    matrices for each pass of attention after the first.

    Args:
        attention: the class of its self-attention modules. A subclass that defines a forward is
            another class.
        dropout: the attribute that is the dropout module through which it puts A, (B, H, N, N),
            and nothing else, before it multiplies the values by it.
        num_heads: the attribute that holds the number of its query heads.
        settings: attributes that must have other values for that (timm's `fused_attn=False`); they
            have them while the model is patched.

    Raises:
        GraphAttentionError: it is no class of modules, or defines no forward.
    """
    is_class = isinstance(attention, type) and issubclass(attention, nn.Module)
    if not is_class or "forward" not in vars(attention):
        raise refusal("attention", attention, "a subclass of torch.nn.Module that defines forward")
    _registered[attention] = OwnAttention(
        attention.__qualname__, dropout, num_heads, dict(settings or {})
    )


def row_of(module: Any) -> OwnAttention | None:
    """The row of a module's class; None where no filter reaches it by its dropout."""
    owner = forward_owner(module.__class__)
    row = _registered.get(owner) or _in_table(owner)
    is_more = row is not None and any(getattr(module, name, False) for name in row.without)
    return None if is_more else row


def is_registered(module: nn.Module) -> bool:
    """Whether its row is one of `register_architecture`, which no list has as exact."""
    return row_of(module) in _registered.values()


@cache
def forward_owner(cls: Any) -> type:
    """The class that defines the forward: what is known of it holds for its subclasses."""
    return next(base for base in cls.__mro__ if "forward" in vars(base))


@cache
def _in_table(owner: type) -> OwnAttention | None:
    if owner.__module__.partition(".")[0] not in PACKAGES:
        return None
    name = f".{owner.__module__}.{owner.__qualname__}"
    return next((row for row in ROWS if name.endswith(f".{row.attention}")), None)
