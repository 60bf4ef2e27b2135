"""Save, load, and what a folder must hold; filters alone, and transformers' own loaders."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import tiny_task
import torch
import transformers
from edges import product
from refusals import edit_tensors
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from saved import CONFIGS, patched
from sentence_transformers import SentenceTransformer
from tiny import MODELS, inputs
from transformers import AutoModel, AutoModelForCTC, AutoModelForSequenceClassification, pipeline

import hf_graphattn as ga


@pytest.mark.parametrize(("architecture", "variant"), product(MODELS, CONFIGS))
def test_a_saved_model_comes_back_bit_for_bit(architecture: str, variant: str, tmp_path: Path):
    """And its filters alone, onto the plain model, which is saved as plain."""
    model = patched(architecture, variant)
    batch = inputs(model, "right")
    expected = model(**batch)[0]
    model.save_pretrained(tmp_path / "once")
    loaded = ga.from_pretrained(tmp_path / "once")
    assert type(loaded) is type(model)
    assert not loaded.training
    assert torch.equal(loaded(**batch)[0], expected)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    loaded.save_pretrained(tmp_path / "twice")
    for name in ("config.json", "graph_attn.py"):
        assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
    path = ga.save_filters(model, tmp_path / "filters")
    assert [each.name for each in path.parent.iterdir()] == ["graph_filters.safetensors"]
    assert path.stat().st_size < 8000
    plain = ga.unpatch_model(model)
    assert ga.load_filters(plain, path.parent) is plain
    assert torch.equal(plain(**batch)[0], expected)
    ga.unpatch_model(plain).save_pretrained(tmp_path / "plain")
    assert "graph_attn" not in (tmp_path / "plain" / "config.json").read_text()
    again = type(plain).from_pretrained(tmp_path / "plain")
    assert torch.equal(again(**batch)[0], plain(**batch)[0])


def test_a_folder_holds_safetensors_json_and_the_loading_module(tmp_path: Path):
    patched("BERT").save_pretrained(tmp_path)
    names = {"config.json", "model.safetensors", "graph_attn.py"}
    assert {path.name for path in tmp_path.iterdir()} == names
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "hf_graphattn.from_pretrained(folder)" in saved["attn_implementation"]
    assert "trust_remote_code=True" in saved["attn_implementation"]
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


def test_filters_move_between_heads(tmp_path: Path) -> None:
    model = patched("BERT")
    ga.save_filters(model, tmp_path)
    batch = inputs(model)
    expected = model(**batch, output_hidden_states=True).hidden_states[-1]
    for head in ("Model", "ForMaskedLM"):
        other = MODELS["BERT"](head=head)
        other.load_state_dict(
            {
                k if head != "Model" else k.removeprefix("bert."): v
                for k, v in model.state_dict().items()
                if "graph_filter" not in k
            },
            strict=False,
        )
        ga.load_filters(other, tmp_path)
        got = other(**batch, output_hidden_states=True).hidden_states[-1]
        assert torch.equal(got, expected)


def test_bases_that_do_not_fit_are_refused_and_stay_plain(tmp_path: Path) -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.LaplacianConfig(layers=(-1,)))
    ga.save_filters(model, tmp_path)  # without a tensor: the shape alone tells
    for other in (
        MODELS["BERT"](num_hidden_layers=1),
        MODELS["BERT"](num_hidden_layers=4),
        MODELS["BERT"](num_attention_heads=2),
        MODELS["BERT"](hidden_size=64),
        MODELS["RoBERTa"](),
        MODELS["GPT-2"](),
    ):
        with pytest.raises(ga.GraphAttentionError, match=r"do not fit .*saved from a model with"):
            ga.load_filters(other, tmp_path)
        assert not ga.is_patched(other)
    model = patched("BERT")
    with pytest.raises(ga.GraphAttentionError, match="patched already"):
        ga.load_filters(model, tmp_path)


def test_a_plain_checkpoint_is_patched_on_load(tmp_path: Path) -> None:
    plain = MODELS["BERT"]()
    plain.save_pretrained(tmp_path / "plain")
    config = CONFIGS["gfsa"]
    loaded = ga.from_pretrained(tmp_path / "plain", graph_attn=config)
    assert type(loaded) is type(plain)
    batch = inputs(plain)
    assert torch.equal(loaded(**batch)[0], ga.patch_model(plain, config)(**batch)[0])
    eager = ga.from_pretrained(tmp_path / "plain", graph_attn=config, backend="eager")
    assert {each.backend for each in ga.graph_filters(eager).values()} == {"eager"}
    headed = ga.from_pretrained(
        tmp_path / "plain",
        graph_attn=config,
        auto_class=AutoModelForSequenceClassification,
        dtype=torch.bfloat16,
    )
    assert headed.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for _, p in ga.filter_parameters(headed))
    loaded.save_pretrained(tmp_path / "patched")
    with pytest.raises(ga.GraphAttentionError, match=r"graph_attn is .*patched already"):
        ga.from_pretrained(tmp_path / "patched", graph_attn=config)
    with pytest.raises(ga.GraphAttentionError, match="plain checkpoint"):
        ga.from_pretrained(tmp_path / "plain")


def test_damaged_and_missing_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["BERT"]()
    monkeypatch.chdir(tmp_path)  # where an empty path must write nothing
    with pytest.raises(FileNotFoundError):
        ga.save_filters(patched("BERT"), "")
    with pytest.raises(ga.GraphAttentionError, match=r"has no graph_filters.*save_filters"):
        ga.load_filters(model, tmp_path)
    with pytest.raises(TypeError, match="unexpected arguments: revison"):
        ga.load_filters(model, tmp_path, revison="main")
    path = ga.save_filters(patched("BERT"), tmp_path)
    whole, tensors = path.read_bytes(), load_file(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ga.GraphAttentionError, match="damaged"):
        ga.load_filters(model, tmp_path)
    save_file(tensors, path)  # another safetensors file
    with pytest.raises(ga.GraphAttentionError, match=r"cannot be loaded.*graph_attn"):
        ga.load_filters(model, tmp_path)
    path.write_bytes(whole)
    edit_tensors(path, lambda tensors: tensors.pop(min(tensors)))
    with pytest.raises(ga.GraphAttentionError, match=r"misshapen: bert\.encoder\.layer\.0"):
        ga.load_filters(model, tmp_path)
    assert not ga.is_patched(model)


TEXT = "a cat sees the blue house"


def saved(folder: Path) -> Any:
    """A patched classifier with its tokenizer, saved by itself."""
    tiny_task.save_bert(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    ga.patch_model(model, ga.GFSAConfig(w_K=0.5)).save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", ["AutoModelForCausalLM", "AutoModelForSeq2SeqLM"])
def test_a_saved_folder_loads_with_trust(name: str, tmp_path: Path) -> None:
    model = patched("GPT-2" if name == "AutoModelForCausalLM" else "T5")
    model.save_pretrained(tmp_path)
    loaded = getattr(transformers, name).from_pretrained(tmp_path, trust_remote_code=True)
    batch = inputs(model)
    assert type(loaded) is type(model)
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])


@pytest.mark.parametrize("trust", [None, False])
def test_without_trust_they_refuse_and_name_what_loads_it(trust: bool, tmp_path: Path) -> None:
    saved(tmp_path)
    for load in (
        lambda: AutoModel.from_pretrained(tmp_path, trust_remote_code=trust),
        lambda: transformers.BertModel.from_pretrained(tmp_path),
        lambda: pipeline("text-classification", str(tmp_path), trust_remote_code=trust),
        lambda: SentenceTransformer(str(tmp_path), trust_remote_code=bool(trust)),
    ):
        with pytest.raises(ValueError, match=r"hf_graphattn\.from_pretrained"):
            load()


def test_a_sentence_transformer_there_and_back(tmp_path: Path) -> None:
    tiny_task.save_bert(tmp_path / "base")
    model = SentenceTransformer(str(tmp_path / "base"))
    plain = model.encode([TEXT])
    ga.patch_model(model[0].auto_model, ga.GFSAConfig(w_K=0.5))
    filtered = model.encode([TEXT])
    assert abs(filtered - plain).max() > 1e-4
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True)
    assert (loaded.encode([TEXT]) == filtered).all()
    ga.unpatch_model(loaded[0].auto_model)
    assert (loaded.encode([TEXT]) == plain).all()
    loaded.save_pretrained(str(tmp_path / "back"))
    assert (SentenceTransformer(str(tmp_path / "back")).encode([TEXT]) == plain).all()


def test_a_config_keeps_the_code_that_it_named(tmp_path: Path) -> None:
    """Many checkpoints name code of their own for versions that do not know the architecture."""
    named = {"AutoModel": "modeling_own.OwnModel"}
    model = MODELS["BERT"]()
    model.config.auto_map = named
    ga.patch_model(model, ga.GFSAConfig()).save_pretrained(tmp_path)
    assert model.config.auto_map == named
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True)
    assert ga.is_patched(loaded)
