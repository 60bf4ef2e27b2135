"""What the rules of `sizes` and `batches` do not say, one row a model type."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

# Lists that may be as long as there are layers, but speak of something else.
SHAPE = ("image_size", "patch_size")

# Settings of a config, wherever it occurs; a dict under the name of a nested config is that one's.
SETTINGS: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 4, "num_time_features": 1, "context_length": 12, "lags_sequence": [1, 2], "moving_average": 5},
    "bamba": {"attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "bridgetower_text_model": {"num_attention_heads": 4},
    "bridgetower_vision_model": {"hidden_size": 128},
    "bros": {"hidden_size": 128, "num_attention_heads": 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "informer": {"prediction_length": 4, "num_time_features": 1, "context_length": 12, "lags_sequence": [1, 2]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16]},
    "gemma3": {"mm_tokens_per_image": 4},
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "t5gemma2_encoder": {"mm_tokens_per_image": 4},
    "time_series_transformer": {"prediction_length": 4, "num_time_features": 1, "context_length": 12, "lags_sequence": [1, 2]},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0, "kv_n_heads": 2}, "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}},
    "clvp_encoder": {"hidden_size": 128},
    "clvp_decoder": {"hidden_size": 128},
    "esm": {"pad_token_id": 1, "mask_token_id": 5},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "lilt": {"hidden_size": 96},
    "superpoint": {"keypoint_decoder_dim": 65},
    "mobilevitv2": {"image_size": 128},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "vitmatte": {"backbone_config": {"num_channels": 4, "patch_size": 16, "image_size": 64}},
    "step3p5": {"sliding_window": 6},
    "paddleocr_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "cvt": {"depth": [1, 2, 3]},
    "evolla": {
        "protein_encoder_config": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
        }
    },
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "chmv2": {"backbone_config": {"return_class_token": True}},
    "nemotron_h": {"n_groups": 2},
    "diffusion_gemma_text": {"moe_intermediate_size": 64, "top_k_experts": 2},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 20, "vision_end_token_id": 21},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 128},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 96},
    "neomme": {"head_dim": 16},
    "efficientnet": {"hidden_dim": 2560},
    "align_vision_model": {"hidden_dim": 2560},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 20, "vision_end_token_id": 21},
    "sam2_hiera_det_model": {"image_size": [64, 64], "window_size_per_stage": [4, 4, 2, 2], "global_attention_blocks": [5]},
    "sam2_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "sam2": {"image_size": 64},
    "hiera": {"image_size": [128, 128], "num_heads": [1, 2, 4, 8]},
    "levit": {"patch_size": 16, "image_size": 64},
    "gemma4_audio": {"subsampling_conv_channels": [16, 32]},
    "kosmos-2": {"latent_query_num": 4},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "tvp": {"visual_prompt_size": 4},
    "chameleon": {"vocabulary_map": {"<image>": 8}},
    "emu3": {"vocabulary_map": {"<image>": 8}},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
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
    "gemma3n_audio": {"audio_mel": _floats(2, 64, 16), "audio_mel_mask": partial(torch.zeros, 2, 64, dtype=torch.bool)},
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
    "pi0": {"pixel_values": _floats(2, 3, 32, 32), "pixel_attention_mask": _ones(2, 1), "state": _floats(2, 32), "actions": _floats(2, 32, 32)},
    "granite_speech5_encoder": {"input_features": _floats(2, 128, 64)},
    "granite_speech5_ctc": {"input_features": _floats(2, 128, 64)},
    "gemma4_vision": {"pixel_values": _floats(2, 36, 192), "pixel_position_ids": _places},
    "gemma4": {"pixel_values": _floats(2, 36, 192), "image_position_ids": _places, "input_features": None},
    "embedding_gemma2": {"pixel_values": _floats(2, 36, 192), "image_position_ids": _places, "input_features": None},
    "fun_asr_nano_encoder": {"input_features": _floats(2, 20, 112), "input_features_mask": _ones(2, 20)},
    "kyutai_speech_to_text": {"input_ids": _ids((2, 11, 33))},
    "dia": {"decoder_input_ids": _ids((2, 7, 9))},
    "dia_decoder": {"input_ids": _ids((2, 11, 9)), "encoder_hidden_states": _floats(2, 5, 32)},
    "moshi_depth": {"input_ids": _ids((2, 7))},
    "blip_2_qformer": {"encoder_hidden_states": _floats(2, 5, 32)},
    "t5gemma2_decoder": {"encoder_hidden_states": _floats(2, 5, 32)},
    "minicpm_ocr_vision": {"target_sizes": partial(torch.tensor, [[4, 4], [4, 4]])},
    "qwen2_5_omni_audio_encoder": {
        "input_features": _floats(16, 128),
        "feature_lens": partial(torch.tensor, [64, 64]),
        "aftercnn_lens": partial(torch.tensor, [32, 32]),
    },
    "qwen3_omni_moe_audio_encoder": {"input_features": _floats(16, 128), "feature_lens": partial(torch.tensor, [64, 64])},
    "audio-spectrogram-transformer": {"input_values": _floats(2, 128, 16)},
    "musicgen": {"decoder_input_ids": _ids((8, 7))},
    "musicgen_melody": {"input_features": _floats(2, 20, 12), "decoder_input_ids": _ids((8, 7))},
    "kosmos-2": {"image_embeds_position_mask": partial(_between, 1, 5)},
    "perceiver": {"input_ids": None, "inputs": _ids((2, 11))},
    "evolla": {"protein_input_ids": _ids((2, 9)), "protein_attention_mask": _ones(2, 9)},
    "qwen3_omni_moe_thinker": {"input_features": None, "feature_attention_mask": None},
    "qwen2_5_omni_thinker": {"input_features": None, "feature_attention_mask": None},
    "gemma4_unified": {"pixel_values": _floats(2, 36, 1728), "image_position_ids": _places, "input_features": None},
    "glm_image": {"pixel_values": None, "image_grid_thw": None},
    "granite_docling": {"pixel_values": _floats(2, 3, 32, 32), "pixel_attention_mask": _ones(2, 32, 32)},
    **{
        codec: {"input_values": _floats(2, 1, 1920)}
        for codec in (
            "dac",
            "pe_audio",
            "pe_audio_encoder",
            "vibevoice_acoustic_tokenizer",
            "vibevoice_acoustic_tokenizer_encoder",
            "xcodec",
        )
    },
    "neomme": {"pixel_values": None, "image_grid_thw": None},
    "kosmos_2_5_vision_model": {"attention_mask": None},
    "seggpt": {"prompt_pixel_values": _floats(2, 3, 32, 32), "prompt_masks": _floats(2, 3, 32, 32)},
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
PLACEHOLDERS: dict[str, int] = {"llama4": 4, "voxtral": 32, "musicflamingo": 64, "granite_speech": 1, "granite_speech_plus": 1}
