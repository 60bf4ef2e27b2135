"""The model that a checkpoint's config names, without its weights."""

from __future__ import annotations

import os
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, PreTrainedModel

from hf_graphattn.errors import refusal
from hf_graphattn.model.configs import ENTRY, read_entry
from hf_graphattn.variants import VariantConfig

from .checkpoints import reading


def outline(
    path: str, *, revision: str = "main", trust_remote_code: bool = False
) -> tuple[PreTrainedModel, VariantConfig | None]:
    """(The plain model, on the meta device; the filters that a patched checkpoint has, or None.)

    Only config.json is read. A config that names no class of transformers gets `AutoModel`'s.

    Args:
        path: a folder, or the name of a hub repository.
        revision, trust_remote_code: as in transformers' `from_pretrained`.

    Raises:
        GraphAttentionError: there is no such folder, or the config makes no model.
    """
    if path.startswith((".", os.sep, "~")) and not os.path.isdir(path):
        raise refusal("the model", path, "a folder that exists, or the name of a hub repository")
    with reading(path):
        config = AutoConfig.from_pretrained(
            path, revision=revision, trust_remote_code=trust_remote_code
        )
        entry = getattr(config, ENTRY, None)
        config._attn_implementation = None  # a patched model's names one that nothing has
        own = {} if entry or not trust_remote_code else getattr(config, "auto_map", {})
        with torch.device("meta"):
            model = _remote(config, own, revision) or _local(config)
        return model, None if entry is None else read_entry(entry, path)


def _local(config: Any) -> PreTrainedModel:
    named = [getattr(transformers, str(name), None) for name in config.architectures or ()]
    models = [c for c in named if isinstance(c, type) and issubclass(c, PreTrainedModel)]
    return models[0](config) if models else AutoModel.from_config(config)


def _remote(config: Any, auto_map: dict[str, str], revision: str) -> PreTrainedModel | None:
    """The model of the repository's own code: of the class that the config names, if it has it."""
    names = [name for name in auto_map if name.startswith("AutoModel")]
    if not names:
        return None
    named = config.architectures or ()
    best = max(names, key=lambda n: (auto_map[n].split(".")[-1] in named, n == "AutoModel"))
    cls = getattr(transformers, best)
    return cls.from_config(config, trust_remote_code=True, code_revision=revision)
