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
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from hf_graphattn.errors import refusal
from hf_graphattn.interface.graph_attn import NAMES
from hf_graphattn.variants import VariantConfig, variant_from_dict, variant_to_dict
from hf_graphattn.version import __version__

# The value of `attn_implementation` in config.json. No function has this name, so transformers by
# itself refuses to load the folder, with an error that shows the name, and so how to load it.
# 0.2.0 wrote the function's name alone, which is read too.
SAVED = (
    "hf_graphattn.from_pretrained(folder), or trust_remote_code=True; any other way loses its "
    "graph filters"
)
IMPLEMENTATION, ENTRY = "attn_implementation", "graph_attn"
FORMAT = 1  # of the entry
# The attribute of a patched model that holds its `ConfigCopy`s.
UNDO = "_graph_attn_undo"
_MARKS = (IMPLEMENTATION, ENTRY)
_CHOSEN = "_attn_implementation_internal"  # where transformers keeps `_attn_implementation`
_NOT_RETURNED = {*_MARKS, _CHOSEN}  # what patching writes to a copy


@dataclass
class ConfigCopy:
    """One config of a patched model.

    patched: the copy that its modules hold. plain: what they hold after the filters are taken out.
    before: the copy's attributes when it was made.
    """

    patched: PreTrainedConfig
    plain: PreTrainedConfig
    before: dict[str, Any] = field(default_factory=dict)


def mark(model: Any, entry: dict[str, Any], implementation: str) -> None:
    """Give the modules of a model copies of their configs, which say what it is patched with.

    Args:
        model: a transformers model.
        entry: what the outermost copy has as "graph_attn".
        implementation: the name of the attention function, one of `interface.NAMES`.
    """
    originals = _with_nested(model_configs(model))
    copies = [ConfigCopy(copy.copy(config), _plain(config)) for config in originals]
    patched = {id(config): made.patched for config, made in zip(originals, copies, strict=True)}
    plain = {id(config): made.plain for config, made in zip(originals, copies, strict=True)}
    for made in copies:
        _replace(made.patched, patched)
        _replace(made.plain, plain)
        made.before = dict(vars(made.patched))
        made.patched._attn_implementation = implementation
    vars(patched[id(model.config)]).update({IMPLEMENTATION: SAVED, ENTRY: entry})
    for module in model.modules():
        _replace(module, patched)
    vars(model)[UNDO] = copies


def unmark(model: nn.Module) -> None:
    """Give the modules of a model their configs back, with what was assigned meanwhile.

    A copy that someone still holds becomes plain too: a model that was built from it, for one. A
    model that was built so gets plain copies.
    """
    for module in model.modules():
        copies = vars(module).pop(UNDO, [])
        plain = {id(made.patched): made.plain for made in copies}
        for made in copies:
            _return_changes(made, plain)
        for part in model.modules() if copies else ():
            _replace(part, plain)
        for made in copies:
            for name in _MARKS:
                vars(made.patched).pop(name, None)
            made.patched._attn_implementation = made.plain._attn_implementation
    if is_marked(model):
        plain = {id(config): _plain(config) for config in model_configs(model)}
        for module in model.modules():
            _replace(module, plain)


def model_configs(model: nn.Module) -> list[PreTrainedConfig]:
    """The distinct configs of a model and its parts, outermost first (T5's halves have copies)."""
    configs = (config for module in model.modules() for config in _configs_in(module))
    return list({id(config): config for config in configs}.values())


def is_marked(model: nn.Module) -> bool:
    """Whether a config of the model is that of a patched model."""
    return any(_is_marked(config) for config in model_configs(model))


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
        inside = _with_nested(_configs_in(config))
        by_id |= {id(c): c for c in inside if id(c) not in by_id}
    return list(by_id.values())


def _configs_in(holder: nn.Module | PreTrainedConfig) -> list[PreTrainedConfig]:
    """The configs that are attributes of a module or of a config."""
    return [value for value in vars(holder).values() if isinstance(value, PreTrainedConfig)]


def _replace(holder: nn.Module | PreTrainedConfig, new: dict[int, PreTrainedConfig]) -> None:
    """Replace configs that are attributes of a module or of a config, by their `id`."""
    for name, value in vars(holder).items():
        if isinstance(value, PreTrainedConfig):
            vars(holder)[name] = new.get(id(value), value)
