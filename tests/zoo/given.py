"""Inputs that the rules of `batches` do not find, one row a model type."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

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


_POSITIONS = partial(torch.cartesian_prod, torch.arange(6), torch.arange(6))


def _places() -> torch.Tensor:
    """Row and column of each of 36 patches, of two images."""
    return _POSITIONS().expand(2, -1, -1)


def _between(first: int, last: int) -> torch.Tensor:
    """Which of a text's tokens stand for an image."""
    return torch.arange(11).expand(2, -1).ge(first) & torch.arange(11).expand(2, -1).lt(last)


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
        "states": _floats(2, 5, 32),
        "actions": _floats(2, 5, 4),
        "rewards": _floats(2, 5, 1),
        "returns_to_go": _floats(2, 5, 1),
        "timesteps": partial(torch.arange, 5),
        "attention_mask": _ones(2, 5),
    },
    "blt_global_transformer": {"attention_mask": None},
    "blt_local_encoder": {"attention_mask": None},
    "blt": {"use_cache": bool},
    "bridgetower_vision_model": {"image": _floats(2, 3, 32, 32)},
    "chameleon": {"pixel_values": None},
    "emu3": {"pixel_values": None, "image_sizes": None},
    "csm": {"input_values": None},
    "colqwen2": {"pixel_values": _floats(2, 16, 384)},
    "deepseek_vl_hybrid": {"high_res_pixel_values": _floats(2, 3, 32, 32)},
    "florence_vision": {"hidden_states": _floats(2, 3, 32, 32)},
    "gemma3n_audio": {
        "audio_mel": _floats(2, 64, 16),
        "audio_mel_mask": partial(torch.zeros, 2, 64, dtype=torch.bool),
    },
    "idefics": {"pixel_values": _floats(2, 1, 3, 32, 32), "image_attention_mask": _ones(2, 11, 1)},
    "instructblipvideo": {"pixel_values": _floats(2, 4, 3, 32, 32)},
    "inkling_vision": {"pixel_values": _floats(2, 2, 3, 32, 32)},
    "kimi_k25": {"pixel_values": _floats(32, 3, 8, 8)},
    "kimi_k25_vision": {"pixel_values": _floats(32, 3, 8, 8)},
    "mllama": {
        "pixel_values": _floats(2, 1, 4, 3, 32, 32),
        "aspect_ratio_ids": _ones(2, 1),
        "aspect_ratio_mask": _ones(2, 1, 4),
        "cross_attention_mask": _ones(2, 11, 1, 4),
    },
    "mllama_vision_model": {
        "pixel_values": _floats(2, 1, 4, 3, 32, 32),
        "aspect_ratio_ids": _ones(2, 1),
        "aspect_ratio_mask": _ones(2, 1, 4),
    },
    "musicgen_decoder": {"input_ids": _ids((8, 11))},
    "musicgen_melody_decoder": {"input_ids": _ids((8, 11))},
    "paddleocr_vl": {"pixel_values": _floats(32, 3, 8, 8)},
    "paddleocr_vl_vision": {"pixel_values": _floats(1, 32, 3, 8, 8)},
    "pi0": {
        "pixel_values": _floats(2, 3, 32, 32),
        "pixel_attention_mask": _ones(2, 1),
        "state": _floats(2, 32),
        "actions": _floats(2, 32, 32),
    },
    "granite_speech5_encoder": {"input_features": _floats(2, 128, 64)},
    "granite_speech5_ctc": {"input_features": _floats(2, 128, 64)},
    "gemma4_vision": {"pixel_values": _floats(2, 36, 192), "pixel_position_ids": _places},
    "gemma4": {
        "pixel_values": _floats(2, 36, 192),
        "image_position_ids": _places,
        "input_features": None,
    },
    "embedding_gemma2": {
        "pixel_values": _floats(2, 36, 192),
        "image_position_ids": _places,
        "input_features": None,
    },
    "fun_asr_nano_encoder": {
        "input_features": _floats(2, 20, 112),
        "input_features_mask": _ones(2, 20),
    },
    "kyutai_speech_to_text": {"input_ids": _ids((2, 11, 33))},
    "dia": {"decoder_input_ids": _ids((2, 7, 9))},
    "dia_decoder": {"input_ids": _ids((2, 11, 9)), "encoder_hidden_states": _floats(2, 5, 32)},
    "blip_2_qformer": {"encoder_hidden_states": _floats(2, 5, 32)},
    "t5gemma2_decoder": {"encoder_hidden_states": _floats(2, 5, 32)},
    "qwen2_5_omni_audio_encoder": {
        "input_features": _floats(16, 128),
        "feature_lens": partial(torch.tensor, [64, 64]),
        "aftercnn_lens": partial(torch.tensor, [32, 32]),
    },
    "qwen3_omni_moe_audio_encoder": {
        "input_features": _floats(16, 128),
        "feature_lens": partial(torch.tensor, [64, 64]),
    },
    "audio-spectrogram-transformer": {"input_values": _floats(2, 128, 16)},
    "musicgen": {"decoder_input_ids": _ids((8, 7))},
    "musicgen_melody": {"input_features": _floats(2, 20, 12), "decoder_input_ids": _ids((8, 7))},
    "kosmos-2": {"image_embeds_position_mask": partial(_between, 1, 5)},
    "perceiver": {"input_ids": None, "inputs": _ids((2, 11))},
    "evolla": {"protein_input_ids": _ids((2, 9)), "protein_attention_mask": _ones(2, 9)},
    "qwen3_omni_moe_thinker": {"input_features": None, "feature_attention_mask": None},
    "qwen2_5_omni_thinker": {"input_features": None, "feature_attention_mask": None},
    "gemma4_unified": {
        "pixel_values": _floats(2, 36, 1728),
        "image_position_ids": _places,
        "input_features": None,
    },
    "glm_image": {"pixel_values": None, "image_grid_thw": None},
    "granite_docling": {
        "pixel_values": _floats(2, 3, 32, 32),
        "pixel_attention_mask": _ones(2, 32, 32),
    },
    **{
        codec: {"input_values": _floats(2, 1, 1920)}
        for codec in (
            "dac",
            "neucodec",
            "xcodec2",
            "pe_audio",
            "pe_audio_encoder",
            "xcodec",
        )
    },
    "molmo2_vision": {"pixel_values": _floats(2, 16, 192)},
    "fuyu": {"image_patches": None, "pixel_values": None},
    **{
        packed: {
            "pixel_values": _floats(1, 3, 8, 256),
            "target_sizes": partial(torch.tensor, [[4, 4], [4, 4]]),
        }
        for packed in (
            "minicpm_ocr",
            "minicpm_ocr_vision",
            "minicpmv4_6",
            "minicpmv4_6_vision",
            "minicpmv4_7",
            "minicpmv4_7_vision",
        )
    },
    "voxtral_realtime": {"input_ids": _ids((2, 16)), "attention_mask": _ones(2, 16)},
    "moshi_depth": {"input_ids": _ids((2, 7)), "last_hidden_state": _floats(2, 7, 32)},
    "vibevoice_acoustic_tokenizer": {"input_values": _floats(2, 1, 6400)},
    "vibevoice_acoustic_tokenizer_encoder": {"hidden_states": _floats(2, 1, 6400)},
    "vibevoice_acoustic_tokenizer_decoder": {"hidden_states": _floats(2, 32, 5)},
    "neomme": {"pixel_values": None, "image_grid_thw": None},
    "kosmos_2_5_vision_model": {"attention_mask": None},
    "granite_speech_encoder": {"hidden_states": _floats(2, 11, 16)},
    "granite_speech_plus_encoder": {"hidden_states": _floats(2, 11, 16)},
    "omdet-turbo": {
        "classes_input_ids": _ids((4, 5)),
        "classes_attention_mask": _ones(4, 5),
        "classes_structure": partial(torch.tensor, [2, 2]),
        "tasks_input_ids": _ids((2, 5)),
        "tasks_attention_mask": _ones(2, 5),
    },
    **{
        model_type: {"input_features": _floats(2, 16, 128), "input_features_mask": _ones(2, 128)}
        for model_type in ("qwen3_asr", "qwen3_asr_encoder")
    },
    "nemotron3_diarization_audio": {"attention_mask": None},
    "nemotron3_5_transcribe_asr_audio": {"attention_mask": None},
    "oneformer": {"task_inputs": _ids((2, 77))},
    "seggpt": {
        "pixel_values": _floats(2, 3, 32, 32),
        "prompt_pixel_values": _floats(2, 3, 32, 32),
        "prompt_masks": _floats(2, 3, 32, 32),
    },
    "speech_to_text": {"input_features": _floats(2, 64, 16)},
    "tvp": {"pixel_values": _floats(2, 48, 3, 32, 32)},
    "video_llama_3": {"image_merge_sizes": _ones(2)},
    "video_llama_3_vision": {"merge_sizes": _ones(2)},
    "xclip": {"pixel_values": _floats(2, 8, 3, 32, 32)},
    "xclip_vision_model": {"pixel_values": _floats(16, 3, 32, 32)},
    "unlimited_ocr_vision_encoder": {"patch_embeds": _floats(2, 32, 4, 4)},
    "mimi_decoder": {"latents": _floats(2, 32, 6)},
    "pocket_tts_audio_tokenizer_decoder": {"latents": _floats(2, 32, 6)},
    "speecht5_hifigan": {"spectrogram": _floats(2, 12, 32)},
    "fastspeech2_conformer_hifigan": {"spectrogram": _floats(2, 12, 32)},
}

# Tokens of an image or a sound in each text, where the model does not tell.
PLACEHOLDERS: dict[str, int] = {"llama4": 4, "musicflamingo": 64}
