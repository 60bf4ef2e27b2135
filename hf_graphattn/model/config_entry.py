"""The entry "graph_attn" of a patched model's `config.json`: which variant, with which settings.

{"format": 1, "hf_graphattn": "0.2.0", "variant": "gfsa", "settings": {"order": 4, ...}}
"""

from __future__ import annotations

from typing import Any

from hf_graphattn.errors import refusal
from hf_graphattn.variants import VariantConfig, variant_from_dict, variant_to_dict
from hf_graphattn.version import __version__

FORMAT = 1


def make_entry(config: VariantConfig) -> dict[str, Any]:
    """The entry that describes `config`, in JSON values."""
    return {"format": FORMAT, "hf_graphattn": __version__, **variant_to_dict(config)}


def read_entry(entry: object, path: str) -> VariantConfig:
    """The config that an entry, read from `path`, describes.

    Raises:
        GraphAttentionError: this version cannot read the entry.
    """
    number = entry.get("format") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or type(number) is not int or number < 1:
        raise refusal(
            f"'graph_attn' in {path!r}",
            entry,
            f"an object with 'format': {FORMAT}",
            "It was edited, or damaged: save the patched model again.",
        )
    if entry["format"] > FORMAT:
        raise refusal(
            f"the format of 'graph_attn' in {path!r}",
            entry["format"],
            f"at most {FORMAT}",
            f"It was saved by hf_graphattn {entry.get('hf_graphattn')}: upgrade hf_graphattn.",
        )
    config = variant_from_dict(entry)
    missing = sorted(config.to_dict().keys() - entry.get("settings", {}).keys())
    if missing:
        raise refusal(
            f"'settings' of 'graph_attn' in {path!r}",
            entry.get("settings"),
            f"an object with every setting of variant {config.variant!r}, and {missing} is missing",
            "It was edited, or damaged: save the patched model again.",
        )
    return config
