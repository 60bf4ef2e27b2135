"""A config's fields made tiny by their names: widths, heads, layers, vocabularies, ids, lists.

One width everywhere keeps what must be equal equal, and a list keeps its length, so that the
stages of a hierarchy stay.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from zoo.settings import SECOND, SETTINGS, SHAPE

VOCABULARY = 64
SPECIAL = 32  # ids below it are kept for special tokens
HEADS = 4
WIDTH = 32
INNER = 4 * WIDTH
IMAGE = 32
LAYERS = 2
FRAMES = 128  # of speech, and so the most positions that are needed

# The first rule whose pattern is found in a field's name holds: what is larger becomes the size.
# None: the default is kept. A third entry: what is larger than that becomes the size, which is so
# for what must be equal or divide; one and three are a channel's and a colour's.
_RULES: tuple[tuple[Any, ...], ...] = (
    (r"^index_topk$", 4),  # fewer keys than the batch has, so that what is chosen matters
    (r"^index_(kpool|block_size|topk_blocks)$", 2),
    (
        r"patch_sizes|ignore|dropout|_prob$|loss|cost|kernel|stride|dilation|rates?$|ratio|factor|bias",
        None,
    ),
    (r"temporal_patch|merge|num_channels|in_chans|^channels$|audio_channels|input_channels", None),
    (r"chunk_size_feed|pretraining_tp|^num_labels|block_size$|time_step|temperature", None),
    (r"pos_emb_|num_encoder_blocks|window_size_per_stage|resnet_head", None),
    (r"^hidden_size|d_latents|dim_per_stage", WIDTH, 4),
    (r"heads_per_stage", HEADS, 1),
    (r"blocks_per_stage|attends_per_block", LAYERS),
    (r"type_vocab|modality_type", 2),
    (
        r"vocab|codebook_size|num_embeddings$|num_embeds$|num_codevectors|n_codes|entity_emb|(bpe|wordpiece)_labels",
        VOCABULARY,
        1,
    ),
    (r"(image|crop|spec|resolution|train|img)_?size(s)?$|^resolution$", IMAGE),
    (r"(^|_)patch_size$", 8),
    (r"sliding_window|local_attention$|attention_window|attention_chunk_size", 6),
    (r"^window_size", IMAGE // 2),  # in pixels, of which windows then are several
    (r"window", 4),
    (r"rotary_dim$", WIDTH // HEADS // 2),
    (r"upsample_groups", WIDTH),
    (
        r"max_.*position|n_positions|max_seq|position_embedding_size|n_ctx|_positions$|max_len",
        FRAMES,
    ),
    (r"num_position_embeddings|num_patches", (IMAGE // 8) ** 2),
    (r"experts_per_tok|moe_topk|moe_k$|top_k_experts|experts_top_k", 2),
    (r"shared_experts", 1),
    (r"(num|n)_.*experts$|num_experts", 4),
    (r"^(n|topk|num_expert)_group$", 1),
    (r"first_k_dense|max_window_layers|moe_layer_start", 1),
    (r"kv_shared_layers|num_mtp|nextn", 0),
    (r"(key_value|kv|key|global_key_value|query_groups).*heads$|multi_query_group_num", HEADS // 2),
    (r"heads?$", HEADS, 1),
    (r"head_dim|d_kv$|kv_channels|head_size|dim_head|dim_per_head", WIDTH // HEADS),
    (r"^(depths?|layers|n_layers?)$|_layers?$|num_blocks$|_depth$", LAYERS),
    (r"rank$", 16),
    (r"num_filters", 4),
    (r"num_pos_feats", WIDTH // 2),
    (r"quer(y_tokens|ies|y_num)$|num_latents|n_latents|num_proposals|resampler_n", 6),
    (r"intermediate|ffn|mlp_dim|feed_?forward|d_ff$|d_inner|dff$|linear_units|dim_ff", INNER),
    (r"n_mels|mel_bins|^input_dim$|projection_input_dim|input_feat|^feature_size$", 16),
    (
        r"(size|dims?|channels?|d_model|n_embd|width|filters|features|units|dimension)s?$|planes$",
        WIDTH,
        4,
    ),
)
# Floats that would leave nothing of what the attention computes, and what they are instead.
_FLOATS = ((r"initializer_range$", 0.02), (r"layer_?scale_(init_value|initial_scale|value)$", 1.0))
_ID = re.compile(r"(token|_start|_end|_bos|_eos|_pad|patch|codec)_?(id|index|ids)$|_id$")
_NEEDED = re.compile(
    r"(^|_)head_dim$|vocab_size$|experts|(image|audio|video)_token_(id|index)$"
)  # where None is no answer
_TAKEN = ("out_features", "out_indices")  # what a backbone gives to the model around it
_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers")


def tiny(name: str) -> PreTrainedConfig:
    """The config of a model type, tiny; or that of one of its second models, by its row's name."""
    model_type, _, second = name.partition(", ")
    row = SECOND[model_type][second] if second else {}
    return _tiny(CONFIG_MAPPING[model_type], {}, row, {})


def _tiny(
    config_class: type[PreTrainedConfig],
    given: dict[str, Any],
    row: dict[str, Any],
    ids: dict[str, int],
) -> PreTrainedConfig:
    """given: settings at full size that a config above it says. row: settings that hold as they
    are. ids: the special tokens that have an id already, by their fields' names."""
    row = {**SETTINGS.get(config_class.model_type, {}), **row}
    nested = config_class.sub_configs_defaults
    full = _full(config_class, given)
    own = [f for f in fields(config_class) if f.name not in nested]
    settings = {f.name: _shrunk(f.name, _value(f, given, full), ids) for f in own}
    settings |= {name: given[name] for name in _TAKEN if name in given}
    settings |= _stages(settings) | _layers(full, settings, ids)
    settings |= _exact(config_class, full, settings)
    for name, spec in nested.items():
        inner = row.get(name, {})
        if isinstance(inner, dict):
            within, values = _within(spec, full.get(name), inner)
            settings[name] = _tiny(within, values, inner, ids)
    settings |= {name: row[name] for name in row if name not in nested or row[name] is None}
    settings.pop("model_type", None)
    return config_class(**{n: value for n, value in settings.items() if value is not MISSING})


def _full(config_class: type[PreTrainedConfig], given: dict[str, Any]) -> dict[str, Any]:
    """All that the config says at full size, where it can be made without more settings."""
    try:
        return vars(config_class(**given))
    except Exception:
        return {}


def _within(
    spec: SubConfigSpec, full: PreTrainedConfig | None, row: dict[str, Any]
) -> tuple[type[PreTrainedConfig], dict[str, Any]]:
    """The class of a nested config, and what it says other than the class's defaults."""
    if "model_type" in row:
        return CONFIG_MAPPING[row["model_type"]], {}
    if isinstance(full, PreTrainedConfig) and not full.model_type.startswith("timm"):
        defaults = _full(type(full), {})
        names = {f.name for f in fields(full)} - set(full.sub_configs_defaults)
        said = {n: value for n, value in vars(full).items() if n in names}
        said = {n: v for n, v in said.items() if n in defaults and v != defaults[n]}
        taken = [n for n in _TAKEN if getattr(full, n, None) != defaults.get(f"_{n}")]
        return type(full), said | {n: list(getattr(full, n)) for n in taken}
    if issubclass(spec.config_class, PreTrainedConfig):
        return spec.config_class, spec.init_kwargs
    return CONFIG_MAPPING[spec.model_type], spec.init_kwargs


def _value(field: Field[Any], given: dict[str, Any], full: dict[str, Any]) -> Any:
    """At full size: a list that only the finished config knows is taken from there."""
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    value = given.get(field.name, default)
    made = full.get(field.name)
    if value is not None:
        return value
    if isinstance(made, (list, tuple)) and all(isinstance(each, int) for each in made):
        return made
    return MISSING if made is None and _NEEDED.search(field.name) else None


def _shrunk(name: str, value: Any, ids: dict[str, int]) -> Any:
    """A field's tiny value."""
    if name == "image_grid_pinpoints":
        return [[IMAGE, 2 * IMAGE], [2 * IMAGE, IMAGE]]
    if name == "global_attn_indexes":
        return [LAYERS - 1]
    if isinstance(value, (list, tuple)):
        return [_shrunk(name, each, ids) for each in value]
    if isinstance(value, float):
        floats = [size for pattern, size in _FLOATS if re.search(pattern, name)]
        return floats[0] if floats and 0 < value < floats[0] else value
    if isinstance(value, bool) or not (isinstance(value, int) or value is MISSING):
        return value
    if _ID.search(name):
        small = value is not MISSING and value < SPECIAL
        return value if small else ids.setdefault(name, 3 + len(ids))
    for pattern, size, *least in _RULES:
        if re.search(pattern, name):
            bound = size if value is MISSING else (*least, size)[0]
            return value if size is None or (value is not MISSING and value <= bound) else size
    return value


def _stages(settings: dict[str, Any]) -> dict[str, Any]:
    """Of a backbone without a hierarchy, a layer for each of the features that are taken out."""
    taken = settings.get("out_features") or settings.get("out_indices")
    if not taken or not isinstance(settings.get("num_hidden_layers"), int):
        return {}
    count = max(LAYERS, len(taken))
    if "out_features" not in settings:
        return {"num_hidden_layers": count, "out_indices": list(range(len(taken)))}
    stages = [f"stage{i + 1}" for i in range(count)]
    return {"num_hidden_layers": count, "out_features": stages[-len(taken) :], "out_indices": None}


def _layers(full: dict[str, Any], settings: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """One layer of each kind that the full-size config has: its lists that speak of every layer
    are cut to them."""
    count = next((n for n in _COUNTS if n in settings and isinstance(full.get(n), int)), None)
    lists = {
        name: list(each)
        for name, each in full.items()
        if name in settings
        and isinstance(each, (list, tuple))
        and len(each) == full.get(count or "")
        if name not in SHAPE
    }
    if count is None or not lists or "depths" in settings:
        return {}
    named = [v for v in lists.values() if not any(type(each) is int for each in v)]
    kinds = [repr(kind) for kind in zip(*(named or lists.values()), strict=True)]
    kept = sorted({kinds.index(kind) for kind in kinds} | {0, len(kinds) - 1})
    cut = {name: _shrunk(name, [v[i] for i in kept], ids) for name, v in lists.items()}
    return cut | {count: len(kept)}


def _exact(
    config_class: type[PreTrainedConfig], full: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """What more than one field decides together."""
    exact: dict[str, Any] = {}
    if "kv_lora_rank" in settings and "num_key_value_heads" in settings:
        exact["num_key_value_heads"] = HEADS
    if "depths" in settings and "window_size" in settings:
        image = "spec_size" if "spec_size" in settings else "image_size"
        exact |= {image: 4 * IMAGE, "window_size": 4}  # a window fits into the last stage
    if "mrope_section" in getattr(config_class, "ignore_keys_at_rope_validation", ()):
        rope = full.get("rope_parameters") or {}
        head = settings.get("head_dim") or WIDTH // HEADS
        exact["rope_parameters"] = (
            {kind: _sections(each, head) for kind, each in rope.items()}
            if any(isinstance(each, dict) for each in rope.values())
            else _sections(rope, head)
        )
    return exact


def _sections(rope: dict[str, Any], head: int) -> dict[str, Any]:
    """Rotary settings whose sections, of time, height and width, share a head of that width."""
    rope = {"rope_theta": 1e4, "rope_type": "default", **rope}
    pairs = int(head * rope.get("partial_rotary_factor", 1)) // 2
    third = (pairs + 1) // 3
    return {**rope, "mrope_section": [third, third, pairs - 2 * third]}
