"""Save, load, and what a folder must hold: bit-equal logits, strict filters, nothing pickled."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest
import torch
from edges import product
from safetensors import safe_open
from saved import CONFIGS, patched
from tiny import MODELS, inputs
from transformers import AutoModel, AutoModelForCTC, AutoModelForSequenceClassification

import hf_graphattn as ga


@pytest.mark.parametrize(("architecture", "variant"), product(MODELS, CONFIGS))
def test_a_saved_model_comes_back_bit_for_bit(architecture: str, variant: str, tmp_path: Path):
    model = patched(architecture, variant)
    batch = inputs(model, "right")
    model.save_pretrained(tmp_path)
    loaded = ga.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert not loaded.training
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert loaded.config.graph_attn == model.config.graph_attn


def test_a_folder_holds_safetensors_json_and_the_loading_module(tmp_path: Path):
    patched("BERT").save_pretrained(tmp_path)
    names = {"config.json", "model.safetensors", "graph_attn.py"}
    assert {path.name for path in tmp_path.iterdir()} == names
    saved = json.loads((tmp_path / "config.json").read_text())
    said = "hf_graphattn.from_pretrained(folder); any other loses its graph filters"
    assert saved["attn_implementation"] == said
    assert saved["graph_attn"].pop("digest").startswith("sha256:")
    assert saved["graph_attn"] == {
        "format": 1,
        "hf_graphattn": ga.__version__,
        "variant": "gfsa",
        "settings": CONFIGS["gfsa"].to_dict(),
    }
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        name = "bert.encoder.layer.0.attention.self.graph_filter.w_K"
        assert file.get_tensor(name).shape == (4,)


def test_loading_says_nothing_of_the_filters_but_keeps_the_other_reports(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    patched("BERT", head="Model").save_pretrained(tmp_path)
    caplog.set_level("WARNING", logger="transformers")
    import transformers

    transformers.logging.enable_propagation()
    try:
        ga.from_pretrained(tmp_path)
        assert "graph_filter" not in caplog.text
        ga.from_pretrained(tmp_path, auto_class=AutoModelForSequenceClassification)
    finally:
        transformers.logging.disable_propagation()
    assert "classifier.weight" in caplog.text  # a new head is still reported
    assert "graph_filter" not in caplog.text


def test_base_and_head_load_each_others_filters(tmp_path: Path):
    headed = patched("BERT")
    headed.save_pretrained(tmp_path / "headed")
    base = ga.from_pretrained(tmp_path / "headed", auto_class=AutoModel)
    batch = inputs(headed, "left")
    expected = headed(**batch, output_hidden_states=True).hidden_states[-1]
    assert torch.equal(base(**batch).last_hidden_state, expected)

    base.save_pretrained(tmp_path / "base")
    again = ga.from_pretrained(
        tmp_path / "base", auto_class=AutoModelForSequenceClassification, num_labels=5
    )
    assert again.config.num_labels == 5
    hidden = again(**batch, output_hidden_states=True).hidden_states[-1]
    assert torch.equal(hidden, expected)


def test_half_precision_keeps_the_scalars_exactly(tmp_path: Path):
    model = patched("BERT").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    loaded = ga.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    for (name, saved), (_, read) in zip(
        ga.filter_parameters(model), ga.filter_parameters(loaded), strict=True
    ):
        assert read.dtype == torch.float32, name
        assert torch.equal(saved, read), name


def test_the_loaded_model_trains_saves_and_unpatches(tmp_path: Path):
    model = patched("T5")
    model.save_pretrained(tmp_path / "once")
    loaded = ga.from_pretrained(tmp_path / "once", backend="eager")
    loaded.save_pretrained(tmp_path / "twice")
    once, twice = (
        json.loads((tmp_path / n / "config.json").read_text()) for n in ("once", "twice")
    )
    assert once == twice
    batch = inputs(model)
    assert torch.allclose(loaded(**batch)[0], model(**batch)[0], atol=1e-5)
    plain, original = ga.unpatch_model(loaded), MODELS["T5"]()
    original.load_state_dict(plain.state_dict())
    assert torch.equal(plain(**batch)[0], original(**batch)[0])
    assert not hasattr(plain.config, "graph_attn")


@pytest.mark.parametrize("architecture", MODELS)
def test_unpatching_restores_the_original_bit_for_bit(architecture: str):
    for implementation in ("sdpa", "eager"):
        model = MODELS[architecture](attn_implementation=implementation)
        batch = inputs(model, "left")
        logits = model(**batch)[0]
        config = model.config.to_dict()
        names = [name for name, _ in model.named_modules()]
        ga.patch_model(model, CONFIGS["gfsa"])
        assert model.config.to_dict() != config
        assert ga.unpatch_model(model) is model
        assert torch.equal(model(**batch)[0], logits)
        assert model.config.to_dict() == config
        assert model.config._attn_implementation == implementation
        assert [name for name, _ in model.named_modules()] == names
        assert not any(module._forward_pre_hooks for module in model.modules())


def test_arguments_of_transformers_loading(tmp_path: Path):
    model = patched("BERT")
    model.save_pretrained(tmp_path / "fp16", variant="fp16")
    batch = inputs(model)
    expected = model(**batch)[0]
    config = model.config.__class__.from_pretrained(tmp_path / "fp16")
    for _ in range(2):  # the caller's config stays as it was
        loaded = ga.from_pretrained(tmp_path / "fp16", variant="fp16", config=config)
        assert torch.equal(loaded(**batch)[0], expected)
    loaded, found = ga.from_pretrained(
        tmp_path / "fp16",
        variant="fp16",
        dtype="auto",
        config=str(tmp_path / "fp16"),
        output_loading_info=True,
    )
    assert loaded.dtype == torch.float32
    assert not found["missing_keys"]
    assert torch.equal(loaded(**batch)[0], expected)
    with pytest.raises(ga.GraphAttentionError, match=r"auto_class is .*BertConfig"):
        ga.from_pretrained(tmp_path / "fp16", variant="fp16", auto_class=AutoModelForCTC)


def test_a_patched_model_is_freed_at_once():
    model = weakref.ref(patched("BERT"))
    assert model() is None


def test_the_hub_id_of_the_base_is_remembered(tmp_path: Path):
    model = MODELS["BERT"]()
    model.config.name_or_path = "google-bert/bert-base-uncased"
    ga.patch_model(model, CONFIGS["gfsa"]).save_pretrained(tmp_path)
    for card in (ga.model_card(model, "u/x"), ga.model_card(ga.from_pretrained(tmp_path), "u/x")):
        assert card.data.base_model == "google-bert/bert-base-uncased"
    local = ga.patch_model(MODELS["BERT"](), CONFIGS["gfsa"])
    local.save_pretrained(tmp_path / "local")
    config = local.config.__class__.from_pretrained(tmp_path / "local")
    config.name_or_path = "user/itself"  # as when it is loaded from its own repository
    again = ga.from_pretrained(tmp_path / "local", config=config)
    assert ga.model_card(again, "user/itself").data.base_model is None
    folder = ga.patch_model(MODELS["BERT"](), CONFIGS["gfsa"])
    assert ga.model_card(folder, "u/x", datasets="nyu-mll/glue").data.base_model is None
