"""What a model was patched with is the model's own: configs that models share, in any order."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from pathlib import Path

import pytest
import torch
from saved import CONFIGS, patched
from tiny import MODELS, inputs
from transformers import PreTrainedModel

import hf_graphattn as ga

ARCHITECTURES = ("BERT", "GPT-2", "T5")
NAMES = ("gfsa", "laplacian", "plain")


def shared(architecture: str, after: bool) -> dict[str, PreTrainedModel]:
    """Two patched models and a plain one of one config, made before or after patching began."""
    first = MODELS[architecture]()
    models = {"gfsa": first}
    if after:
        ga.patch_model(first, CONFIGS["gfsa"])
    for name in NAMES[1:]:
        models[name] = type(first)(first.config).eval()
        models[name].load_state_dict(first.state_dict(), strict=False)
    if not after:
        ga.patch_model(first, CONFIGS["gfsa"])
    ga.patch_model(models["laplacian"], CONFIGS["laplacian"])
    return models


@pytest.mark.parametrize("order", [*itertools.permutations(NAMES[:2])])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_of_one_config_are_saved_loaded_and_unpatched_in_any_order(
    architecture: str, after: bool, order: tuple[str, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    expected = MODELS[architecture]()
    torch.manual_seed(0)
    models = shared(architecture, after)
    batch = inputs(expected)
    plain = expected.eval()(**batch)[0]
    if not after:
        models["plain"].save_pretrained(tmp_path)
        assert "graph_attn" not in (tmp_path / "config.json").read_text()
    for name in order:
        models[name].save_pretrained(tmp_path / name)
        loaded = ga.from_pretrained(tmp_path / name)
        assert next(iter(ga.graph_filters(loaded).values())).variant_config == CONFIGS[name]
        assert torch.equal(loaded(**batch)[0], models[name](**batch)[0])
        ga.unpatch_model(models[name])
        torch.testing.assert_close(models[name](**batch)[0], plain)
        assert "graph_attn" not in json.dumps(models[name].config.to_dict())
    if after and architecture == "T5":  # its halves have copies of the config that it was given
        with pytest.raises(ga.GraphAttentionError, match=r"unpatch_model\(model\) makes it plain"):
            models["plain"](**batch)
        ga.unpatch_model(models["plain"])
    torch.testing.assert_close(models["plain"](**batch)[0], plain)
    assert "graph_attn" not in json.dumps(models["plain"].config.to_dict())


@pytest.mark.parametrize("architecture", MODELS)
def test_configs_are_the_same_objects_again(architecture: str) -> None:
    model = MODELS[architecture]()
    before = [(m, m.config) for m in model.modules() if hasattr(m, "config")]
    ga.patch_model(model, CONFIGS["gfsa"])
    assert model.config is not before[0][1]
    assert model.config is model.base_model.config
    assert not hasattr(before[0][1], "graph_attn")
    ga.unpatch_model(model)
    assert all(module.config is config for module, config in before)


def test_what_is_assigned_to_a_patched_config_stays() -> None:
    model = patched("T5")
    config = ga.unpatch_model(model).config
    ga.patch_model(model, CONFIGS["gfsa"])
    model.config.problem_type = "regression"
    model.config.use_cache = False
    model.resize_token_embeddings(70)
    ga.unpatch_model(model)
    assert model.config is config
    assert (config.problem_type, config.use_cache, config.vocab_size) == ("regression", False, 70)


def test_copies_and_pickles_of_a_model_unpatch_by_themselves() -> None:
    model = patched("T5")
    batch = inputs(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(**batch)[0], model(**batch)[0])
        assert copied.save_pretrained.model() is copied
        ga.unpatch_model(copied)
        assert ga.is_patched(model)
        assert hasattr(model.config, "graph_attn")
        assert not hasattr(copied.config, "graph_attn")
    expected = ga.unpatch_model(model)(**batch)[0]
    assert torch.equal(copied(**batch)[0], expected)


def asking(architecture: str) -> PreTrainedModel:
    """A model whose config asks for attentions, as transformers makes it."""
    model = MODELS[architecture](attn_implementation="eager", output_attentions=True)
    assert model.config.output_attentions
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_config_that_asks_for_attentions(architecture: str, tmp_path: Path) -> None:
    model = asking(architecture)
    batch = inputs(model)
    plain = model(**batch)
    ga.patch_model(model, ga.GFSAConfig(w_K=0.3))
    found = model(**batch)
    key = "attentions" if "attentions" in found else "decoder_attentions"
    assert len(found[key]) == len(plain[key]) > 0
    found[0].sum().backward()

    model.save_pretrained(tmp_path / "patched")
    assert model.config.output_attentions
    loaded = ga.from_pretrained(tmp_path / "patched")
    again = loaded(**batch)
    assert torch.equal(again[0], found[0])
    assert torch.equal(again[key][0], found[key][0])
    silent = ga.from_pretrained(tmp_path / "patched", output_attentions=False)
    assert key not in silent(**batch)
    silent.save_pretrained(tmp_path / "silent")
    assert key in ga.from_pretrained(tmp_path / "silent", output_attentions=True)(**batch)

    for each in (model, loaded):
        ga.unpatch_model(each)
        after = each(**batch)
        assert torch.equal(after[0], plain[0])
        assert torch.equal(after[key][0], plain[key][0])
        each.save_pretrained(tmp_path / "plain")
        assert key in type(each).from_pretrained(tmp_path / "plain")(**batch)
    filtered = ga.from_pretrained(tmp_path / "plain", graph_attn=ga.GFSAConfig(w_K=0.3))
    assert torch.equal(filtered(**batch)[key][0], found[key][0])


def test_a_part_that_is_saved_with_the_whole_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = MODELS["BERT"]()
    assert model.base_model is not model
    ga.patch_model(model.base_model, ga.GFSAConfig(w_K=0.2))
    model.save_pretrained(tmp_path)
    assert "patched as a part of another model" in caplog.text
    caplog.clear()
    ga.unpatch_model(model.base_model)
    model.save_pretrained(tmp_path)
    ga.patch_model(model, ga.GFSAConfig(w_K=0.2)).save_pretrained(tmp_path)
    model.state_dict(prefix="module.")
    assert "patched as a part" not in caplog.text
