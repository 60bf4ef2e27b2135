"""What a tiny config switches off that its class's defaults have, and windows that hold all.

docs/architectures.md lists each with its reason of `REASONS`; `make matrix` fails for one that has
none. What real checkpoints have and the defaults have not are the second models of `settings`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from zoo.batches import LENGTH
from zoo.sizes import tiny

# Settings by which an attention leaves keys out, where these are fewer than the batch has.
_WINDOWS = re.compile(
    r"window(_size)?$|n_window|attention_chunk|attn_chunk|local_radius|index_topk|budget$"
    r"|local_transformer_stride|left_c(hunk|ontext)|chunk_left_context|encoder_chunk_size"
)

_ITSELF = "its part computes attention in its own code"
REASONS = {
    "apply_layernorm_after_vision_backbone": "the outputs of all stages need one width",
    "chunk_left_context": "only streaming reads it",
    "coarse_matching_threshold": "random features match badly, so the model would return nothing",
    "left_chunk": "only a model with a chunk_size reads it, and the default has none",
    "local_attn_chunk_length": _ITSELF,
    "local_radius": _ITSELF,
    "lsh_attn_chunk_length": _ITSELF,
    "n_window": "it counts frames, and the batch has 200 frames",
    "n_window_infer": "it counts frames, and the batch has 200 frames",
    "num_nextn_predict_layers": "transformers does not build these layers",
    "window_size": "it counts pixels or frames, and the batch has several windows; SAM's part "
    "computes attention in its own code",
}


def easier(model_type: str) -> Iterator[tuple[str, str]]:
    """(setting, what it is at full size and what here) of a type's config and those within it."""
    try:
        full: Any = CONFIG_MAPPING[model_type]()
    except Exception:  # some need more settings than their defaults
        full = None
    yield from _easier(tiny(model_type), full)


def _easier(small: PreTrainedConfig, full: Any) -> Iterator[tuple[str, str]]:
    if type(full) is not type(small):
        try:
            full = type(small)()
        except Exception:
            full = small
    ours, theirs = vars(small), vars(full)
    for name in small.sub_configs:
        if isinstance(ours.get(name), PreTrainedConfig):
            yield from _easier(ours[name], theirs.get(name))
    for name in ours.keys() & theirs.keys() - set(small.sub_configs):
        now, was = ours[name], theirs[name]
        is_off = not now and not isinstance(now, (list, dict, tuple)) and bool(was)
        if isinstance(was, list) and isinstance(now, list) and all(type(x) is str for x in was):
            is_off = name != "stage_names" and not set(was) <= set(now)
        is_wide = type(now) is int and now >= LENGTH and _WINDOWS.search(name) is not None
        if (is_off or is_wide) and not name.startswith("_"):
            yield name, f"{'...' if isinstance(was, (list, dict)) else was} -> {now}"


def table(model_types: Iterable[str]) -> dict[str, list[str]]:
    """Setting -> the types whose tiny config is easier by it."""
    found = defaultdict(list)
    for model_type in model_types:
        for name in {name for name, _ in easier(model_type)}:
            found[name].append(model_type)
    return dict(sorted(found.items()))
