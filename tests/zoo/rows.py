"""What the rules of `sizes` and `batches` do not say, one row a model type."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

# Lists that may be as long as there are layers, but speak of something else.
SHAPE = ("image_size", "patch_size")

# Settings of a config, wherever it occurs; a dict under the name of a nested config is that one's.
SETTINGS: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2], "moving_average": 5},
    "bamba": {"attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "bridgetower_text_model": {"num_attention_heads": 4},
    "bridgetower_vision_model": {"hidden_size": 128},
    "bros": {"dim_bbox": 8},
    "dbrx": {},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "informer": {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16]},
    "gemma3": {"mm_tokens_per_image": 4},
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "t5gemma2_encoder": {"mm_tokens_per_image": 4},
    "time_series_transformer": {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2]},
    "xmod": {"default_language": "en_XX"},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "nemotron": {"num_key_value_heads": 2},
}

_floats = partial(partial, torch.randn)
_ones = partial(partial, torch.ones, dtype=torch.long)
_ids = partial(partial, torch.randint, 32, 64)


def _past(length: int) -> dict[str, Any]:
    """Of the transformers for series, whose past holds the longest lag too."""
    return {
        "past_values": _floats(2, length),
        "past_time_features": _floats(2, length, 1),
        "past_observed_mask": _ones(2, length),
        "future_values": _floats(2, 4),
        "future_time_features": _floats(2, 4, 1),
    }


# Inputs that the rules do not make, or None for those that are not given.
INPUTS: dict[str, dict[str, Any]] = {
    "autoformer": _past(14),
    "informer": _past(14),
    "time_series_transformer": _past(14),
    "colmodernvbert": {"pixel_values": _floats(2, 1, 3, 32, 32)},
    "lightglue": {"pixel_values": _floats(2, 2, 3, 32, 32)},
    "superglue": {"pixel_values": _floats(2, 2, 3, 32, 32)},
    "efficientloftr": {"pixel_values": _floats(2, 2, 3, 32, 32)},
    "pop2piano": {"input_features": None},
    "lxmert": {"visual_feats": _floats(2, 5, 32), "visual_pos": _floats(2, 5, 4)},
    "speech-encoder-decoder": {"input_features": None},
    "decision_transformer": {
        "states": _floats(2, 5, 17),
        "actions": _floats(2, 5, 4),
        "rewards": _floats(2, 5, 1),
        "returns_to_go": _floats(2, 5, 1),
        "timesteps": partial(torch.arange, 5),
        "attention_mask": _ones(2, 5),
    },
    "mimi_decoder": {"latents": _floats(2, 32, 6)},
    "pocket_tts_audio_tokenizer_decoder": {"latents": _floats(2, 32, 6)},
    "speecht5_hifigan": {"spectrogram": _floats(2, 12, 16)},
    "fastspeech2_conformer_hifigan": {"spectrogram": _floats(2, 12, 32)},
}
