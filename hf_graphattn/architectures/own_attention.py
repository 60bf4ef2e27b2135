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

    attention: its name, with as much of its module's name as makes it unique.
    dropout: its attribute that is the dropout module. num_heads: that of the number of its query
    heads, if it is no usual one. settings: attributes, and the values that they have while it is
    patched. without: attributes by which it does more to A; a module that has one is not reached.
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

# Why other classes are out of reach, where the cause is known.
_FUNCTION = "it drops A out by a function, so that no module of its own can be given H"
_SPARSE = "it forms no N x N matrix A"
_BOTH = "the same class serves cross-attention, and its name does not tell which"
WHY_UNREACHED = {
    "BigBirdBlockSparseAttention": f"{_SPARSE}; with attention_type='original_full' it has one",
    "BigBirdPegasusBlockSparseAttention": _SPARSE,
    "CvtSelfAttention": "its keys are fewer than its queries, so that A has no square",
    "Data2VecVisionSdpaSelfAttention": "it never forms A; with attn_implementation='eager' it does",
    "FalconAttention": "its two branches share no dropout of A",
    "FlaubertAttention": _FUNCTION,
    "FunnelRelMultiheadAttention": "its queries are pooled, so that A has no square",
    "InformerProbSparseAttention": _SPARSE,
    "LEDEncoderSelfAttention": _SPARSE,
    "LSHSelfAttention": _SPARSE,
    "LiltSelfAttention": "one dropout module serves two matrices A",
    "LocalSelfAttention": _SPARSE,
    "LongformerSelfAttention": _SPARSE,
    "LxmertAttention": _BOTH,
    "MptAttention": _FUNCTION,
    "MraSelfAttention": _SPARSE,
    "MultiHeadAttention": _FUNCTION,
    "MvpAttention": _FUNCTION,
    "NystromformerSelfAttention": "it approximates A by landmarks",
    "PerceiverSelfAttention": _BOTH,
    "SpeechT5Attention": _FUNCTION,
    "SuperGlueSelfAttention": _BOTH,
    "TrOCRAttention": _FUNCTION,
    "WavLMAttention": "it calls torch's multi_head_attention_forward, which keeps A to itself",
    "XGLMAttention": _FUNCTION,
    "XLNetRelativeAttention": "one dropout module serves A and the output",
    "YosoSelfAttention": _SPARSE,
}


def why_unreached(attention: str) -> str:
    """Why no filter reaches this class."""
    return WHY_UNREACHED.get(attention, "it computes attention by itself")


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
        attention: the class of its self-attention modules. A subclass with a forward of its own is
            another class.
        dropout: the attribute that is the dropout module through which it puts A, (B, H, N, N),
            and nothing else, before it multiplies the values by it.
        num_heads: the attribute that holds the number of its query heads.
        settings: attributes that must have other values for that (timm's `fused_attn=False`); they
            have them while the model is patched.

    Raises:
        GraphAttentionError: it is no class of modules, or has no forward of its own.
    """
    if not isinstance(attention, type) or not issubclass(attention, nn.Module):
        raise refusal("attention", attention, "a class of modules, a subclass of torch.nn.Module")
    if "forward" not in vars(attention):
        raise refusal("attention", attention.__name__, "a class with a forward of its own")
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
    """The class whose forward it has: what is known of a class holds for that of its forward."""
    return next(base for base in cls.__mro__ if "forward" in vars(base))


@cache
def _in_table(owner: type) -> OwnAttention | None:
    if owner.__module__.partition(".")[0] not in PACKAGES:
        return None
    name = f".{owner.__module__}.{owner.__qualname__}"
    return next((row for row in ROWS if name.endswith(f".{row.attention}")), None)
