"""The hard kinds of the zoo, each built and run; and what becomes of a check that goes wrong."""

from __future__ import annotations

import os
import time

import pytest
import torch
from transformers import CONFIG_MAPPING

from zoo.batches import LENGTH, inputs
from zoo.easier import REASONS, easier
from zoo.models import NotBuilt, build, model_class, run, tensors
from zoo.runs import each
from zoo.settings import SECOND
from zoo.sizes import SPECIAL, tiny

HARD = (
    "deepseek_v3",  # values of another width than keys, experts
    "detr",  # a backbone, and a nested config that is None unless it is said
    "gemma3",  # image tokens among the text, two kinds of layers
    "gemma4_text",  # layers of different widths
    "jamba",  # layers without attention
    "qwen2_5_vl",  # grids of patches, rotary sections
    "swin",  # a hierarchy of windows
    "whisper",
)


@pytest.mark.parametrize("model_type", HARD)
def test_a_hard_kind_is_built_and_runs_with_every_padding(model_type: str) -> None:
    assert run(model_type) == "ok"


def test_a_model_and_its_inputs_are_the_same_each_time() -> None:
    outputs = []
    for _ in range(2):
        model = build("t5")
        outputs.append(tensors(model(**inputs(model, "left")))[0][1])
        torch.rand(1)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt_oss", "qwen3_next"])
def test_each_kind_of_layer_is_kept(model_type: str) -> None:
    full, small = CONFIG_MAPPING[model_type](), tiny(model_type)
    assert set(small.layer_types) == set(full.layer_types)
    assert len(small.layer_types) == small.num_hidden_layers < full.num_hidden_layers


def test_a_generating_head_comes_first() -> None:
    names = {
        each: model_class(each).__name__ for each in ("llama", "bert", "vit", "siglip_text_model")
    }
    assert names == {
        "llama": "LlamaForCausalLM",
        "bert": "BertForMaskedLM",
        "vit": "ViTForImageClassification",
        "siglip_text_model": "SiglipTextModel",
    }


@pytest.mark.parametrize("model_type", ["blip_2_vision_model", "mimi", "neomme"])
def test_nothing_begins_at_zero_and_no_projection_narrow(model_type: str) -> None:
    model = build(model_type)
    wide = {n: t for n, t in model.state_dict().items() if t.dim() > 1 and t.is_floating_point()}
    assert all(tensor.any() for tensor in wide.values())
    projections = [t for n, t in wide.items() if t.dim() == 2 and "embed" not in n]
    assert min(tensor.std() for tensor in projections) > 0.059


@pytest.mark.parametrize("model_type", ["t5", "qwen2_5_vl"])
def test_what_is_generated_has_no_special_token(model_type: str) -> None:
    model = build(model_type)
    batch = {n: each for n, each in inputs(model).items() if not n.startswith("decoder")}
    found = model.generate(**batch, do_sample=False, min_new_tokens=3, max_new_tokens=3)
    assert found[:, -3:].min() >= SPECIAL


def test_a_type_without_a_model_is_refused_with_the_reason() -> None:
    with pytest.raises(NotBuilt, match="no model class"):
        build("nougat")


@pytest.mark.parametrize("name", [f"{name}, {each}" for name in SECOND for each in SECOND[name]])
def test_a_second_model_of_a_type_is_another_one_that_runs(name: str) -> None:
    model_type, _, second = name.partition(", ")
    first, config = tiny(model_type), tiny(name)
    for setting, value in SECOND[model_type][second].items():
        assert getattr(config, setting) == value
    assert config.to_dict() != first.to_dict()
    assert run(name) == "ok"


@pytest.mark.parametrize("model_type", ["gpt_neo", "dots3_note_text", "mistral", "canine"])
def test_windows_are_shorter_than_the_batch(model_type: str) -> None:
    config = tiny(model_type)
    names = ("window_size", "sliding_window", "local_transformer_stride")
    assert [each for each in names if 0 < (getattr(config, each, 0) or 0) < LENGTH]
    assert not dict(easier(model_type))


def test_what_a_tiny_config_switches_off_is_found_and_has_a_reason() -> None:
    found = {name: dict(easier(name)) for name in ("omdet-turbo", "deepseek_v3", "qwen3_asr")}
    assert found == {
        "omdet-turbo": {"apply_layernorm_after_vision_backbone": "True -> False"},
        "deepseek_v3": {"num_nextn_predict_layers": "1 -> 0"},
        "qwen3_asr": {"n_window": "50 -> 50", "n_window_infer": "800 -> 100"},
    }
    assert {name for each in found.values() for name in each} < set(REASONS)


def _go_wrong(model_type: str) -> str:
    if model_type == "hangs":
        time.sleep(60)
    if model_type == "crashes":
        os._exit(3)
    if model_type == "raises":
        raise ValueError("one\n  two")
    return "ok"


def test_no_check_takes_the_others_with_it() -> None:
    types = ("hangs", "crashes", "raises", "works")
    assert dict(each(_go_wrong, types, seconds=1)) == {
        "hangs": "over 1 s",
        "crashes": "the process ended with 3",
        "raises": "ValueError: one two",
        "works": "ok",
    }
