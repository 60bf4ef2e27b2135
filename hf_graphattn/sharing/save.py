"""`save_pretrained` of a patched model: transformers' own, with a config that it can write.

config.json     says what was patched, and names the loading module under `auto_map`
graph_attn.py   two lines, so that `trust_remote_code=True` loads the filters
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto import modeling_auto

from hf_graphattn.model.adapters import is_adapted
from hf_graphattn.model.configs import ENTRY

from .checksum import checksum_entry

# The key of the entry "graph_attn" that says that the config asks for attentions: transformers
# writes no config that does, unless its attention implementation is "eager".
ASKS = "output_attentions"
MODULE = "graph_attn"
_PUSHED = {"repo_id", "commit_message", "create_pr", "private", "token"}


def save_pretrained(
    model: Any,
    save_directory: str | os.PathLike[str],
    is_main_process: bool = True,
    state_dict: dict[str, Any] | None = None,
    push_to_hub: bool = False,
    *args: Any,
    **kwargs: Any,
) -> None:
    """`save_pretrained` of a patched model. Its arguments are those of transformers."""
    folder = Path(save_directory)
    pushed = {name: kwargs.pop(name) for name in _PUSHED & kwargs.keys()} if push_to_hub else {}
    names = auto_classes(model)
    with _as_written(model.config, names, checksum_entry(model, state_dict)):
        type(model).save_pretrained(
            model, save_directory, is_main_process, state_dict, False, *args, **kwargs
        )
    if is_main_process and not is_adapted(model):
        (folder / f"{MODULE}.py").write_text(_module_text(names), "utf-8")
    if push_to_hub and is_main_process:
        model.push_to_hub(pushed.pop("repo_id", folder.resolve().name), **pushed)


def loads_alone(model: Any) -> bool:
    """Whether transformers has its class by name, so that a folder of it can be loaded."""
    cls = type(model)
    return not cls.__module__.startswith("transformers.") or hasattr(transformers, cls.__name__)


def auto_classes(model: Any) -> list[str]:
    """The Auto classes of transformers that know this model's config."""
    return sorted(
        name
        for name, cls in vars(modeling_auto).items()
        if name.startswith("AutoModel")
        and type(model.config) in (getattr(cls, "_model_mapping", None) or ())
    )


def _module_text(names: list[str]) -> str:
    listed = "".join(f"    {name},\n" for name in names)
    return (
        '"""Loads this checkpoint with its graph filters. Needs: pip install hf_graphattn"""\n\n'
        f"from hf_graphattn.remote import (\n{listed})\n"
    )


@contextmanager
def _as_written(config: Any, names: list[str], more: dict[str, Any]) -> Iterator[None]:
    """In this context the config is what config.json is to say, with more in its entry."""
    asks, implementation = config.output_attentions, config._attn_implementation
    if asks:
        config.output_attentions = False
        more = more | {ASKS: True}
    attributes, auto_map = vars(config), {name: f"{MODULE}.{name}" for name in names}
    written = {ENTRY: attributes[ENTRY] | more, "auto_map": auto_map}
    before = {name: attributes.pop(name) for name in written.keys() & attributes.keys()}
    attributes |= written
    try:
        yield
    finally:
        for name in written:
            del attributes[name]
        attributes |= before
        if asks:
            ask_for_attentions(config, implementation)


def ask_for_attentions(config: Any, implementation: str) -> None:
    """Set `config.output_attentions`, which transformers allows beside "eager" alone."""
    config._attn_implementation = "eager"
    config.output_attentions = True
    config._attn_implementation = implementation
