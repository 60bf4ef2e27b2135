"""Settings of configs that the rules of `sizes` do not find, one row a model type."""

from __future__ import annotations

from typing import Any

# Lists that may be as long as there are layers, but speak of something else.
SHAPE = ("image_size", "patch_size")

_SERIES = {
    "prediction_length": 4,
    "num_time_features": 1,
    "context_length": 12,
    "lags_sequence": [1, 2],
}
# Settings of a config, wherever it occurs; a dict under the name of a nested config is that one's.
SETTINGS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "bridgetower_text_model": {"num_attention_heads": 4},
    "bridgetower_vision_model": {"hidden_size": 128},
    "bros": {"hidden_size": 128, "num_attention_heads": 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 1]],
        "num_layers": 2,
        "window_size": 4,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
        "intermediate_size": [128] * 4,
    },
    "gemma3": {"mm_tokens_per_image": 4},
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6, "mm_tokens_per_image": 4},
    "t5gemma2_encoder": {"mm_tokens_per_image": 4},
    "time_series_transformer": _SERIES,
    "autoformer": {**_SERIES, "moving_average": 5},
    "informer": _SERIES,
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16]},
    "cvt": {"depth": [1, 2, 3]},
    "univnet": {"kernel_predictor_hidden_channels": 32, "model_hidden_channels": 8},
    "dbrx": {
        "attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0, "kv_n_heads": 2},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "esm": {"pad_token_id": 1, "mask_token_id": 5},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "superpoint": {"keypoint_decoder_dim": 65},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "step3p5": {"sliding_window": 6},
    "paddleocr_vl_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    },
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "canine": {"local_transformer_stride": 4},
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
    "mllama_text_model": {"cross_attention_layers": [1]},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 96},
    "patchtsmixer": {"self_attn": True, "self_attn_heads": 4},
    "neomme": {"head_dim": 16},
    "align_vision_model": {"hidden_dim": 2560},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 20, "vision_end_token_id": 21},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "mask2former": {"feature_size": 32},
    "qwen3_asr_encoder": {"n_window": 50, "n_window_infer": 100},
    "qwen3_omni_moe_audio_encoder": {"n_window": 50, "n_window_infer": 100},
    # In maps of one pixel a group norm turns the rounding of a convolution into other outputs.
    "deformable_detr": {"image_size": 128},
    "lw_detr": {"projector_scale_factors": [1.0]},
    "muse_glimmer": {"out_hidden_size": 128},
    "muse_spark": {"out_hidden_size": 128},
    "muse_spark_audio": {"num_hidden_layers": 4},
    "neucodec": {"encoder_hidden_size": 4, "quantization_dim": 64, "num_key_value_heads": 4},
    "xcodec2": {"encoder_hidden_size": 4, "quantization_dim": 64, "num_key_value_heads": 4},
    "pp_doclayout_v2": {
        "class_thresholds": [0.5, 0.5],
        "class_order": [0, 1],
        "reading_order_config": {"max_2d_position_embeddings": 1024},
    },
    "seamless_m4t_v2": {"speech_encoder_chunk_size": 4, "speech_encoder_left_chunk_num": 1},
    "sam3_vit_model": {"window_size": 2},
    "gemma4_audio": {"subsampling_conv_channels": [16, 32]},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "tvp": {"visual_prompt_size": 4, "max_img_size": 64},
    "chameleon": {"vocabulary_map": {"<image>": 8}},
    "emu3": {"vocabulary_map": {"<image>": 8}},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "xmod": {"default_language": "en_XX"},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "nemotron": {"num_key_value_heads": 2},
    "align": {"projection_dim": 64},
    "clap_audio_model": {"hidden_size": 256, "num_mel_bins": 32},
    "clap": {"audio_config": {"projection_dim": 32}},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
    },
    "depth_pro": {
        "patch_size": 16,
        "intermediate_hook_ids": [1, 0],
        **{f"{part}_model_config": {"image_size": 16} for part in ("image", "patch", "fov")},
    },
    "efficientloftr": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 2.0,
        },
        "fine_matching_slice_dim": 8,
        "coarse_matching_threshold": 0.0,
        "initializer_range": 0.3,
    },
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 8}},
    "granite4_vision": {
        "vision_config": {"hidden_size": 64},
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "2/4",
        "spatial_target_layers": [0, 0, 1, 1],
    },
    "unlimited_ocr_text": {"num_key_value_heads": 4},  # its eager attention knows no groups
    "timesfm2_5": {"context_length": 256},
    "bert-generation": {"is_decoder": True},
    "swin2sr": {"image_size": 32, "depths": [2, 2], "num_heads": [4, 4]},
    "nemotron_h_omni": {"audio_config": None},
    "omdet-turbo": {
        "apply_layernorm_after_vision_backbone": False,
        "class_embed_dim": 64,
        "text_projection_in_dim": 64,
        "text_projection_out_dim": 64,
        "text_config": {"hidden_size": 64},
        "encoder_in_channels": [64, 128, 256],
    },
    "sapiens2": {
        "head_config": {
            "upsample_out_channels": [32],
            "upsample_kernel_sizes": [4],
            "conv_out_channels": [32],
            "conv_kernel_sizes": [1],
        }
    },
    "perception_lm": {
        "vision_config": {"model_type": "siglip_vision_model", "model_args": {"embed_dim": 32}}
    },
    "fast_vlm": {"vision_config": {"model_type": "resnet", "hidden_size": 32}},
    "vibevoice_asr": {"acoustic_tokenizer_chunk_size": 6400},
    "dots3_note_text": {
        "sliding_window": 6,
        "per_layer_config": {
            2: {
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "q_lora_rank": 16,
                "kv_lora_rank": 16,
                "head_dim": 32,
                "qk_nope_head_dim": 24,
                "qk_rope_head_dim": 8,
                "v_head_dim": 8,
            }
        },
    },
    "pp_lcnet_v3": {"stem_channels": 16},
    "pp_lcnet_v4": {"stem_channels": [3, 48, 96]},
    "janus_vqgan": {"num_patches": 2},
    "sam3_tracker": {"vision_config": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}},
    "pe_video_encoder": {"vision_config": {"model_type": "vit"}},
}

# Second models of a type, with settings that real checkpoints have and its config's defaults have
# not: the row's name is the type's, and theirs.
SECOND: dict[str, dict[str, dict[str, Any]]] = {
    "gemma4_text": {
        "shared keys": {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
        }
    },
    "glm_moe_dsa": {"shared indexers": {"indexer_types": ["full", "shared", "full"]}},
    "mistral_large4_text": {"shared indexers": {"indexer_types": ["full", "shared", "full"]}},
    "minimax_m3_vl_text": {"full attention": {"layer_types": ["full_attention"] * 2}},
    "qwen2": {
        "windows": {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2},
    },
}
