"""Inputs that the rules of `batches` do not find, one row for the model types that it names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor


def _ones(*shape: int) -> Callable[[], Tensor]:
    return partial(torch.ones, shape, dtype=torch.long)


def _ids(*shape: int) -> Callable[[], Tensor]:
    return partial(torch.randint, 32, 64, shape)


def _places() -> Tensor:
    """Row and column of each of 36 patches, of two images."""
    return torch.cartesian_prod(torch.arange(6), torch.arange(6)).expand(2, -1, -1)


def _pooled() -> Tensor:
    """The four patches of each of eight tokens."""
    return torch.arange(32).view(8, 4)


def _between(first: int, last: int) -> Tensor:
    """Which of a text's tokens stand for an image."""
    return torch.arange(11).expand(2, -1).ge(first) & torch.arange(11).expand(2, -1).lt(last)


# Inputs that the rules do not make: a tuple is the shape of random floats, a list is a tensor, a
# function makes it, and None is not given.
_ROWS: dict[str, dict[str, Any]] = {
    "time_series_transformer": {
        "past_values": (2, 14),  # which holds the longest lag too
        "past_time_features": (2, 14, 1),
        "past_observed_mask": _ones(2, 14),
        "future_values": (2, 4),
        "future_time_features": (2, 4, 1),
    },
    "colmodernvbert perception_lm": {"pixel_values": (2, 1, 3, 32, 32)},
    "lightglue": {"pixel_values": (2, 2, 3, 32, 32)},
    "efficientloftr": {"pixel_values": (2, 2, 3, 128, 128)},
    "pop2piano speech-encoder-decoder": {"input_features": None},
    "decision_transformer": {
        "states": (2, 5, 32),
        "actions": (2, 5, 4),
        "rewards": (2, 5, 1),
        "returns_to_go": (2, 5, 1),
        "timesteps": partial(torch.arange, 5),
        "attention_mask": _ones(2, 5),
    },
    "nemotron3_diarization_audio nemotron3_5_transcribe_asr_audio": {"attention_mask": None},
    "blt": {"use_cache": False},
    "chameleon": {"pixel_values": None},
    "emu3": {"pixel_values": None, "image_sizes": None},
    "csm": {"input_values": None},
    "colqwen2": {"pixel_values": (2, 16, 384)},
    "deepseek_vl_hybrid": {"high_res_pixel_values": (2, 3, 32, 32)},
    "idefics": {"pixel_values": (2, 1, 3, 32, 32), "image_attention_mask": _ones(2, 11, 1)},
    "instructblipvideo": {"pixel_values": (2, 4, 3, 32, 32)},
    "inkling_mm_model": {"pixel_values": (8, 2, 8, 8, 3)},
    "clap clap_audio_model": {"input_features": (2, 1, 256, 32)},
    "kimi_k25 kimi_k25_vision paddleocr_vl": {"pixel_values": (32, 3, 8, 8)},
    "mllama": {
        "pixel_values": (2, 1, 4, 3, 32, 32),
        "aspect_ratio_ids": _ones(2, 1),
        "aspect_ratio_mask": _ones(2, 1, 4),
        "cross_attention_mask": _ones(2, 11, 1, 4),
    },
    "mllama_vision_model": {
        "pixel_values": (2, 1, 4, 3, 32, 32),
        "aspect_ratio_ids": _ones(2, 1),
        "aspect_ratio_mask": _ones(2, 1, 4),
    },
    "musicgen_decoder musicgen_melody_decoder": {"input_ids": _ids(8, 11)},
    "paddleocr_vl_vision": {"pixel_values": (1, 32, 3, 8, 8)},
    "pi0": {
        "pixel_values": (2, 1, 3, 32, 32),
        "pixel_attention_mask": _ones(2, 1),
        "state": (2, 32),
        "actions": (2, 32, 32),
    },
    "granite_speech5_encoder granite_speech5_ctc": {"input_features": (2, 128, 64)},
    "gemma4_vision": {"pixel_values": (2, 36, 192), "pixel_position_ids": _places},
    "gemma4 embedding_gemma2": {
        "pixel_values": (2, 36, 192),
        "image_position_ids": _places,
        "input_features": None,
    },
    "fun_asr_nano fun_asr_nano_encoder": {
        "input_features": (2, 20, 112),
        "input_features_mask": _ones(2, 20),
    },
    "dots3_note_audio_encoder dots3_note": {
        "input_features": (2, 16, 128),
        "chunk_sample_lengths": [20480] * 2,
    },
    "jev": {
        "input_ids": _ids(1, 11),
        "marks": [[4, 9]],
        "num_options": [[2, 2]],
        "question_type_ids": [[0, 0]],
    },
    "phi4_multimodal_audio": {
        "hidden_states": (2, 64, 32),
        "mask": partial(torch.ones, 2, 64, dtype=torch.bool),
    },
    "nemotron_h_omni": {
        "pixel_values": (32, 192),
        "image_grid_hw": [[4, 4]] * 2,
        "input_features": None,
    },
    "pp_ocrv6_small_rec": {"pixel_values": (2, 3, 48, 320)},
    "pp_ocrv5_mobile_rec": {"pixel_values": lambda: torch.randn(2, 3, 96, 320) / 100},
    "pp_ocrv5_server_rec": {"pixel_values": (2, 3, 48, 96)},
    "pe_audio_video_encoder": {
        "input_values": (2, 1, 1920),
        "pixel_values_videos": (2, 4, 3, 32, 32),
    },
    "depth_pro": {"pixel_values": (2, 3, 64, 64)},
    "granite_speech granite_speech_plus": {"input_features_mask": None},
    "kyutai_speech_to_text": {"input_ids": _ids(2, 11, 33)},
    "dia": {"decoder_input_ids": _ids(2, 7, 9)},
    "blip_2_qformer": {"encoder_hidden_states": (2, 5, 32)},
    "qwen3_omni_moe_audio_encoder": {"input_features": (16, 400), "feature_lens": [200, 200]},
    "audio-spectrogram-transformer": {"input_values": (2, 128, 16)},
    "musicgen": {"decoder_input_ids": _ids(8, 7)},
    "musicgen_melody": {"input_features": (2, 20, 12), "decoder_input_ids": _ids(8, 7)},
    "kosmos-2": {"image_embeds_position_mask": partial(_between, 1, 7)},
    "evolla": {"protein_input_ids": _ids(2, 9), "protein_attention_mask": _ones(2, 9)},
    "qwen3_omni_moe_thinker qwen2_5_omni_thinker": {
        "input_features": None,
        "feature_attention_mask": None,
    },
    "gemma4_unified": {
        "pixel_values": (2, 36, 1728),
        "image_position_ids": _places,
        "input_features": None,
    },
    "glm_image neomme": {"pixel_values": None, "image_grid_thw": None},
    "granite_docling": {
        "pixel_values": (2, 1, 3, 32, 32),
        "pixel_attention_mask": partial(torch.ones, 2, 1, dtype=torch.bool),
    },
    "pe_audio pe_audio_encoder pe_audio_video xcodec": {"input_values": (2, 1, 1920)},
    "neucodec": {"input_values": lambda: 100 * torch.randn(2, 1, 1920)},  # loud enough for codes
    "xcodec2": {
        "input_values": lambda: 100 * torch.randn(2, 1, 1920),
        "input_features": (2, 6, 16),
        "input_features_mask": _ones(2, 6),
    },
    "inkling2 inkling2_vision": {"pixel_values": (32, 16, 16, 3)},
    "molmo2": {
        "pixel_values": (2, 16, 192),
        "image_token_pooling": _pooled,
        "image_grids": [[2, 2, 0, 0]] * 2,
        "image_num_crops": _ones(2),
    },
    "molmo2_adapter": {"image_features": (2, 16, 64), "pooled_patches_idx": _pooled},
    "molmo2_vision": {"pixel_values": (2, 16, 192)},
    "qwen2_5_omni_talker": {"thinker_reply_part": (2, 2, 32)},
    "qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_talker_text": {
        "input_ids": None,
        "inputs_embeds": (2, 11, 32),
    },
    "vibevoice vibevoice_asr": {
        "input_values": (2, 1, 6400),
        "padding_mask": _ones(2, 6400),
        "sample": False,
    },
    "moss_transcribe_diarize": {"padding_mask": _ones(2, 1280)},
    "fuyu": {"image_patches": None, "pixel_values": None},
    "minicpm_ocr minicpm_ocr_vision minicpmv4_6 minicpmv4_6_vision "
    "minicpmv4_7 minicpmv4_7_vision": {
        "pixel_values": (1, 3, 8, 256),
        "target_sizes": [[4, 4], [4, 4]],
    },
    "voxtral_realtime": {"input_ids": _ids(2, 16), "attention_mask": _ones(2, 16)},
    "omdet-turbo": {
        "classes_input_ids": _ids(4, 5),
        "classes_attention_mask": _ones(4, 5),
        "classes_structure": [2, 2],
        "tasks_input_ids": _ids(2, 5),
        "tasks_attention_mask": _ones(2, 5),
    },
    "qwen3_asr qwen3_asr_encoder": {
        "input_features": (2, 16, 200),
        "input_features_mask": _ones(2, 200),
    },
    "oneformer": {"task_inputs": _ids(2, 77)},
    "speech_to_text": {"input_features": (2, 64, 16)},
    "tvp": {  # its places are of one video
        "pixel_values": (1, 48, 3, 64, 64),
        "input_ids": _ids(1, 11),
        "attention_mask": _ones(1, 11),
    },
    "video_llama_3": {"image_merge_sizes": _ones(2)},
    "video_llama_3_vision": {"merge_sizes": _ones(2)},
    "xclip": {"pixel_values": (2, 8, 3, 32, 32)},
    "xclip_vision_model": {"pixel_values": (16, 3, 32, 32)},
    "mimi_decoder pocket_tts_audio_tokenizer_decoder": {"latents": (2, 32, 6)},
}
INPUTS = {model_type: row for types, row in _ROWS.items() for model_type in types.split()}

# Tokens of an image or a sound in each text, where the model does not tell.
PLACEHOLDERS: dict[str, int] = {
    "llama4": 4,
    "musicflamingo": 64,
    "qwen2_audio": 64,
    "granite4_vision": 14,
    "pi0": 16,
}
