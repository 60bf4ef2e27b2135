"""A patched model's own configs: what it was patched with lives with the model alone.

Several models may hold one config object, and people build models from another one's config. So
patching gives the modules of a model copies of the configs that they hold, and only the copies mark
the model as patched. Taking the filters out gives the modules their configs back.

A copy is shallow: what is changed inside a value (`config.id2label[0] = ...`) is seen by all that
share it, as in transformers. What is assigned while the model is patched goes back with it.

The outermost copy has the entry "graph_attn", which config.json keeps:

{"format": 1, "hf_graphattn": "0.2.0", "variant": "gfsa", "settings": {"order": 4, ...}}
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from hf_graphattn.errors import refusal
from hf_graphattn.interface.graph_attn import NAMES
from hf_graphattn.variants import VariantConfig, variant_from_dict, variant_to_dict
from hf_graphattn.version import __version__

# What patching writes to a copy: it never goes back to the config that was copied.
IMPLEMENTATION = "attn_implementation"
# The value in config.json. No function has this name, so transformers by itself refuses to load the
# folder, with an error that shows the name, and so how to load it. 0.2.0 wrote the function's name
# alone, which is read too.
SAVED = "hf_graphattn.from_pretrained(folder); any other loses its graph filters"
ENTRY = "graph_attn"
FORMAT = 1  # of the entry
_MARKS = (IMPLEMENTATION, ENTRY)
_CHOSEN = "_attn_implementation_internal"  # where transformers keeps `_attn_implementation`
_NOT_RETURNED = {*_MARKS, _CHOSEN}


@dataclass
class ConfigCopy:
    """One config of a patched model.

    patched: the copy that its modules hold. plain: what they hold after the filters are taken out.
    before: the copy's attributes when it was made.
    """

    patched: PreTrainedConfig
    plain: PreTrainedConfig
    before: dict[str, Any]


def model_configs(model: nn.Module) -> list[PreTrainedConfig]:
    """The distinct configs of a model and its parts, outermost first (T5's halves have copies)."""
    return list({id(config): config for _, _, config in _attributes(model)}.values())


def copy_configs(model: nn.Module, implementation: str) -> list[ConfigCopy]:
    """Copies of all configs of a model, each marked as that of a patched model.

    implementation: the name of the attention function, one of `interface.NAMES`.
    """
    originals = _with_nested(model_configs(model))
    copies = [ConfigCopy(copy.copy(config), _plain(config), {}) for config in originals]
    patched = {id(config): made.patched for config, made in zip(originals, copies, strict=True)}
    plain = {id(config): made.plain for config, made in zip(originals, copies, strict=True)}
    for made in copies:
        _replace_nested(made.patched, patched)
        _replace_nested(made.plain, plain)
        made.before = dict(vars(made.patched))
        made.patched._attn_implementation = implementation
    return copies


def copies_of(model: nn.Module, copies: list[ConfigCopy]) -> dict[int, PreTrainedConfig]:
    """The copies, by the `id` of the config that each was made of, which the modules still hold."""
    originals = _with_nested(model_configs(model))
    return {id(config): made.patched for config, made in zip(originals, copies, strict=True)}


def replace_configs(model: nn.Module, new: dict[int, PreTrainedConfig]) -> None:
    """Give the modules of a model other configs, by the `id` of those that they hold."""
    for attributes, name, config in _attributes(model):
        attributes[name] = new.get(id(config), config)


def give_back(model: nn.Module, copies: list[ConfigCopy]) -> None:
    """Give the modules of a model their configs back, with what was assigned meanwhile.

    A copy that someone still holds becomes plain too: a model that was built from it, for one.
    """
    plain = {id(made.patched): made.plain for made in copies}
    for made in copies:
        _return_changes(made, plain)
    replace_configs(model, plain)
    for made in copies:
        for name in _MARKS:
            vars(made.patched).pop(name, None)
        made.patched._attn_implementation = made.plain._attn_implementation


def is_marked(model: nn.Module) -> bool:
    """Whether a config of the model is that of a patched model."""
    return any(_is_marked(config) for config in model_configs(model))


def make_plain(model: nn.Module) -> None:
    """Give the modules plain copies in place of configs that are those of a patched model."""
    replace_configs(model, {id(config): _plain(config) for config in model_configs(model)})


def make_entry(config: VariantConfig) -> dict[str, Any]:
    """The entry that describes `config`, in JSON values."""
    return {"format": FORMAT, "hf_graphattn": __version__, **variant_to_dict(config)}


def read_entry(entry: object, path: str) -> VariantConfig:
    """The config that an entry, read from `path`, describes.

    Raises:
        GraphAttentionError: this version cannot read the entry.
    """
    again = "It was edited, or damaged: save the patched model again."
    if not isinstance(entry, dict) or type(entry.get("format")) is not int or entry["format"] < 1:
        raise refusal(
            f"'graph_attn' in {path!r}", entry, f"an object with 'format': {FORMAT}", again
        )
    if entry["format"] > FORMAT:
        remedy = f"It was saved by hf_graphattn {entry.get('hf_graphattn')}: upgrade hf_graphattn."
        what = f"the format of 'graph_attn' in {path!r}"
        raise refusal(what, entry["format"], f"at most {FORMAT}", remedy)
    config = variant_from_dict(entry)
    needed = variant_to_dict(config)["settings"].keys()
    missing = sorted(needed - entry.get("settings", {}).keys())
    if missing:
        what = f"'settings' of 'graph_attn' in {path!r}"
        allowed = f"every setting of variant {config.variant!r}, and {missing} is missing"
        raise refusal(what, entry.get("settings"), allowed, again)
    return config


def _return_changes(made: ConfigCopy, plain: dict[int, PreTrainedConfig]) -> None:
    now, target = vars(made.patched), vars(made.plain)
    for name in made.before.keys() - now.keys() - _NOT_RETURNED:
        target.pop(name, None)
    for name in now.keys() - _NOT_RETURNED:
        if name not in made.before or now[name] is not made.before[name]:
            target[name] = plain.get(id(now[name]), now[name])


def _plain(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config itself; of a patched model's, a plain copy."""
    if not _is_marked(config):
        return config
    plain = copy.copy(config)
    for name in _MARKS:
        vars(plain).pop(name, None)
    vars(plain)[_CHOSEN] = "sdpa"  # what it was before is not known; all of the table have it
    return plain


def _is_marked(config: PreTrainedConfig) -> bool:
    return config._attn_implementation in NAMES or hasattr(config, ENTRY)


def _with_nested(configs: list[PreTrainedConfig]) -> list[PreTrainedConfig]:
    """The configs, and those inside them."""
    by_id = {id(config): config for config in configs}
    for config in configs:
        nested = [v for v in vars(config).values() if isinstance(v, PreTrainedConfig)]
        by_id |= {id(c): c for c in _with_nested(nested) if id(c) not in by_id}
    return list(by_id.values())


def _attributes(model: nn.Module) -> list[tuple[dict[str, Any], str, PreTrainedConfig]]:
    """The attributes of a model's modules that hold configs: (all attributes, name, config)."""
    return [
        (vars(module), name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, PreTrainedConfig)
    ]


def _replace_nested(config: PreTrainedConfig, new: dict[int, PreTrainedConfig]) -> None:
    """Replace the configs that are inside a config (a patched part of a larger model's)."""
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            setattr(config, name, new[id(value)])
