"""A batch of two for any model, from the signature of its forward and its config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from zoo.given import INPUTS, PLACEHOLDERS
from zoo.sizes import FRAMES, SPECIAL, VOCABULARY

BATCH = 2
LENGTH = 11
_GRID = (1, 4, 4)  # patches of one image: time, height, width


class Facts:
    """What the makers read: a model, its config, and the names that its forward takes."""

    def __init__(self, model: PreTrainedModel, padding: str) -> None:
        self.model, self.padding = model, padding
        parameters = inspect.signature(model.forward).parameters.values()
        self.names = [each.name for each in parameters]
        self.required = {each.name for each in parameters if each.default is each.empty}
        self.configs = list(_nested(model.config))

    def field(self, *names: str, default: Any = None) -> Any:
        """The first of these settings that the config or one within it has."""
        for config in self.configs:
            for name in names:
                if getattr(config, name, None) is not None:
                    return getattr(config, name)
        return default

    def number(self, *names: str, default: int = 1) -> int:
        value = self.field(*names, default=default)
        return value[0] if isinstance(value, (list, tuple)) else value


def _nested(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A config and those within it, what sees and hears before what reads."""
    yield config
    for name in sorted(config.sub_configs, key=lambda name: ("text" in name, "audio" in name)):
        if getattr(config, name, None) is not None:
            yield from _nested(getattr(config, name))


def inputs(model: PreTrainedModel, padding: str = "none") -> dict[str, Any]:
    """The same each time. `padding` is none, left or right, of the first row of text."""
    facts = Facts(model, padding)
    given = INPUTS.get(model.config.model_type, {})
    makers = _MAKERS | {n: make for n, make in _REQUIRED.items() if n in facts.required}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        batch = {
            n: make(facts) for n, make in makers.items() if n in facts.names and n not in given
        }
        batch |= {name: _given(each) for name, each in given.items()}
    return _with_placeholders(facts, {n: value for n, value in batch.items() if value is not None})


def _given(each: Any) -> Any:
    """What a value of a row of `given` stands for."""
    if isinstance(each, tuple):
        return torch.randn(each)
    if isinstance(each, list):
        return torch.tensor(each)
    return each() if callable(each) else each


def _with_placeholders(facts: Facts, batch: dict[str, Any]) -> dict[str, Any]:
    """The text with as many image or audio tokens in it as the model makes of what it is given."""
    if "input_ids" not in batch:
        return batch
    for kind, names in _PLACEHOLDERS.items():
        token = facts.field(*names)
        if token is None or not _MODALITY[kind] & set(batch):
            continue
        said = PLACEHOLDERS.get(facts.model.config.model_type)
        count = _features(facts.model, kind, batch) // BATCH if said is None else said
        for name, fill in {"input_ids": token, **_BESIDE}.items():
            if count and name in batch:
                kept = batch[name]
                more = torch.full((BATCH, count), fill, dtype=kept.dtype)
                # After the first columns, which padding may take.
                batch[name] = torch.cat([kept[:, :4], more, kept[:, 4:]], 1)
    return batch


_PLACEHOLDERS = {
    "image": (
        "image_token_id",
        "image_token_index",
        "image_patch_id",
        "media_placeholder_token_id",
    ),
    "audio": ("audio_token_id", "audio_token_index", "speech_token_id"),
}
_MODALITY = {"image": {"pixel_values"}, "audio": {"input_features", "input_values"}}
_BESIDE = {"attention_mask": 1, "token_type_ids": 0, "mm_token_type_ids": 1}


def _features(model: PreTrainedModel, kind: str, batch: dict[str, Any]) -> int:
    """How many vectors of the text's width the model makes of the batch's images or sounds."""
    name = f"get_{kind}_features"
    # The innermost says its parameters, those around it pass on what they are given.
    method = next(
        (getattr(m, name) for m in reversed(list(model.modules())) if hasattr(m, name)), None
    )
    names = inspect.signature(method).parameters if method else {}
    given = {
        name: value for name, value in batch.items() if name in names and name != "attention_mask"
    }
    if method is None or not given:
        return 0
    with torch.no_grad():
        made = method(**given)
    made = getattr(made, "pooler_output", made)
    width = model.get_input_embeddings().weight.shape[1]
    return sum(each.numel() for each in _tensors(made)) // width


def _tensors(made: Any) -> list[Tensor]:
    if isinstance(made, Tensor):
        return [made]
    return [tensor for each in made or () for tensor in _tensors(each)]


def _ids(facts: Facts) -> Tensor:
    return torch.randint(SPECIAL, VOCABULARY, (BATCH, LENGTH))


def _mask(facts: Facts) -> Tensor | None:
    reads_text = "input_ids" in facts.names or facts.model.main_input_name == "inputs_embeds"
    if not reads_text and "attention_mask" not in facts.required:
        return None
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    if facts.padding != "none":
        mask[0, slice(3) if facts.padding == "left" else slice(-3, None)] = 0
    return mask


def _channels(facts: Facts) -> int:
    return facts.number("num_channels", "in_channels", "in_chans", default=3)


def _size(facts: Facts) -> tuple[int, int]:
    size = facts.field("image_size", "img_size", "pretrain_image_size", default=32)
    if isinstance(size, dict):
        return size["height"], size["width"]
    return tuple(size)[-2:] if isinstance(size, (list, tuple)) else (size, size)


def _flat_patch(facts: Facts) -> int:
    patch = facts.number("patch_size")
    return _channels(facts) * facts.number("temporal_patch_size", "patch_temporal") * patch * patch


def _pixels(facts: Facts) -> Tensor:
    if {"image_grid_thw", "grid_thw"} & set(facts.names):
        return torch.randn(BATCH * _GRID[0] * _GRID[1] * _GRID[2], _flat_patch(facts))
    images = (_channels(facts), *_size(facts))
    if "spatial_shapes" in facts.names:
        patch = facts.number("patch_size")
        return torch.randn(BATCH, _GRID[1] * _GRID[2], images[0] * patch * patch)
    if facts.field("image_grid_pinpoints") and "image_sizes" in facts.names:
        return torch.randn(BATCH, 3, *images)  # the whole, and two tiles
    if "pixel_attention_mask" in facts.names and "spatial_shapes" not in facts.names:
        return torch.randn(BATCH, 1, *images)
    if facts.field("num_frames") and facts.model.main_input_name == "pixel_values":
        return torch.randn(BATCH, facts.number("num_frames"), *images)
    return torch.randn(BATCH, *images)


def _videos(facts: Facts) -> Tensor | None:
    if "pixel_values_videos" not in {facts.model.main_input_name, *facts.required}:
        return None
    return torch.randn(
        BATCH,
        facts.number("num_frames", "frames_per_clip", default=4),
        _channels(facts),
        *_size(facts),
    )


def _grid(facts: Facts) -> Tensor:
    return torch.tensor([_GRID] * BATCH)


def _mels(facts: Facts) -> Tensor:
    """(batch, bins, frames) for a model that begins with a convolution over bins, else
    (batch, frames, bins)."""
    bins = facts.number(*_BINS, default=16)
    frames = 2 * facts.number("max_source_positions", default=FRAMES // 2)
    first = next((m for m in facts.model.modules() if isinstance(m, torch.nn.Conv1d)), None)
    channels_first = first is not None and first.in_channels == bins
    return torch.randn(BATCH, *((bins, frames) if channels_first else (frames, bins)))


_BINS = (
    "num_mel_bins",
    "n_mels",
    "mel_bins",
    "feature_size",
    "input_feat_per_channel",
    "input_feat_size",
    "input_dim",
    "feature_projection_input_dim",
)


def _mel_mask(facts: Facts) -> Tensor:
    return torch.ones(BATCH, max(_mels(facts).shape[1:]), dtype=torch.long)


def _wave(facts: Facts) -> Tensor:
    if facts.field("audio_channels") is not None:
        return torch.randn(BATCH, facts.number("audio_channels"), 7680)
    return torch.randn(BATCH, 1920)


def _decoder_ids(facts: Facts) -> Tensor | None:
    return torch.randint(SPECIAL, VOCABULARY, (BATCH, LENGTH - 4))


def _boxes(facts: Facts) -> Tensor:
    corners = torch.randint(0, 14, (BATCH, LENGTH, 2))
    return torch.cat([corners, corners + 1], -1)


def _zeros(facts: Facts) -> Tensor:
    return torch.zeros(BATCH, LENGTH, dtype=torch.long)


def _sizes(facts: Facts) -> Tensor | None:
    """Of images in tiles, or for a tower that takes any size."""
    if facts.field("image_grid_pinpoints"):
        return torch.tensor([[32, 60]] * BATCH)
    pixtral = any(config.model_type == "pixtral" for config in facts.configs)
    return torch.tensor([_size(facts)] * BATCH) if pixtral else None


def _states(facts: Facts) -> Tensor:
    if "grid_thw" in facts.names:
        return _pixels(facts)
    width = facts.number("hidden_size", "d_model", "embed_dim", "hidden_dim")
    return torch.randn(BATCH, LENGTH, width)


def _patches_mask(facts: Facts) -> Tensor | None:
    if "spatial_shapes" in facts.names:
        return torch.ones(BATCH, _GRID[1] * _GRID[2], dtype=torch.long)
    return None


def _series(facts: Facts) -> Tensor:
    length, channels = facts.number("context_length", default=32), facts.field("num_input_channels")
    return torch.randn(BATCH, length, *([channels] if channels else []))


def _flattened(facts: Facts) -> Tensor:
    """Patches, each behind its row and column, which count from one."""
    width = facts.number("patch_embed_hidden_size", "hidden_size")
    places = torch.cartesian_prod(torch.arange(1, 4), torch.arange(1, 4)).expand(BATCH, -1, -1)
    return torch.cat([places, torch.randn(BATCH, 9, width)], -1)


# Only for a forward that cannot do without.
_REQUIRED = dict.fromkeys(
    ("hidden_states", "inputs_embeds", "query_embeds", "context", "patch_embeds"), _states
)
_MAKERS: dict[str, Callable[[Facts], Any]] = {
    "input_ids": _ids,
    "attention_mask": _mask,
    "mm_token_type_ids": _zeros,
    "decoder_input_ids": _decoder_ids,
    "pixel_values": _pixels,
    "pixel_values_videos": _videos,
    "image_grid_thw": _grid,
    "grid_thw": _grid,
    "input_features": _mels,
    "input_features_mask": _mel_mask,
    "feature_attention_mask": _mel_mask,
    "input_values": _wave,
    "bbox": _boxes,
    "image_sizes": _sizes,
    "spatial_shapes": lambda facts: torch.tensor([_GRID[1:]] * BATCH),
    "pixel_attention_mask": _patches_mask,
    "qformer_input_ids": _ids,
    "past_values": _series,
    "flattened_patches": _flattened,
}
