"""Bad input: the error's class and words, and a model that is as it was."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import ARGUMENTS, FILTER, FOLDERS, refused, untouched
from tiny import LAYERS, MODELS, inputs
from transformers import AutoModelForSequenceClassification

import hf_graphattn as ga

CONFIG = ga.GFSAConfig(w_K=0.2)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_arguments_are_refused_and_the_model_is_untouched(name: str) -> None:
    model, row = MODELS["BERT"](), ARGUMENTS[name]
    with untouched(model), refused(*row.words):
        row.call(model)
    assert not ga.is_patched(model)
    ga.patch_model(model, ga.GFSAConfig())


@pytest.mark.parametrize("name", FOLDERS)
def test_bad_folders_are_refused(name: str, patched_folder: Path, tmp_path: Path) -> None:
    for file in patched_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert ga.is_patched(ga.from_pretrained(tmp_path))
    FOLDERS[name].edit(tmp_path)
    with refused(*FOLDERS[name].words):
        ga.from_pretrained(tmp_path)


def test_the_loader_has_its_own_attention_implementation(patched_folder: Path) -> None:
    with refused("attn_implementation", "'sdpa'", "backend"):
        ga.from_pretrained(patched_folder, attn_implementation="sdpa")


@pytest.mark.parametrize("architecture", MODELS)
def test_patching_twice(architecture: str) -> None:
    model = ga.patch_model(MODELS[architecture](), ga.GFSAConfig(w_K=0.2))
    with untouched(model), refused("patched already", "unpatch_model"):
        ga.patch_model(model, ga.LaplacianConfig())
    ga.patch_model(ga.unpatch_model(model), ga.LaplacianConfig())  # the remedy it names


def test_a_patched_part_counts_as_patched() -> None:
    model = MODELS["BERT"]()
    ga.patch_model(model.bert, ga.GFSAConfig(w_K=0.2))
    with untouched(model), refused("patched already"):
        ga.patch_model(model, ga.GFSAConfig())
    ga.unpatch_model(model)
    assert not ga.is_patched(model)


@pytest.mark.parametrize("architecture", ["BERT", "BART"])
def test_a_part_is_not_unpatched_alone(architecture: str) -> None:
    model = ga.patch_model(MODELS[architecture](), ga.GFSAConfig(w_K=0.2))
    with untouched(model), refused("a part of a model", "the whole model"):
        ga.unpatch_model(getattr(model, model.base_model_prefix))
    assert not hasattr(ga.unpatch_model(model).config, "graph_attn")


@pytest.mark.parametrize("architecture", ["BART", "T5"])
def test_a_part_that_nothing_would_load_is_not_saved(architecture: str, tmp_path: Path) -> None:
    model = ga.patch_model(MODELS[architecture](), ga.GFSAConfig(w_K=0.2))
    for part in (model.get_encoder(), copy.deepcopy(model.get_encoder())):
        with refused("a part of a patched model", "Save the whole"):
            part.save_pretrained(tmp_path)
    assert not any(tmp_path.iterdir())
    model.save_pretrained(tmp_path)
    ids = {"input_ids": inputs(model)["input_ids"]}
    loaded = ga.from_pretrained(tmp_path).get_encoder()(**ids)[0]
    assert loaded.equal(model.eval().get_encoder()(**ids)[0])
    ga.unpatch_model(model).get_encoder().save_pretrained(tmp_path / "plain")


def test_a_traced_model_is_refused() -> None:
    model = MODELS["BERT"]()
    ids = inputs(model)["input_ids"]
    traced = torch.jit.trace(model, ids, strict=False, check_trace=False)
    for call in (ga.is_patched, ga.unpatch_model, lambda each: ga.patch_model(each, CONFIG)):
        with refused("model is 'TopLevelTracedModule'", "Trace it after"):
            call(traced)


def test_a_scalar_that_is_no_field_is_refused() -> None:
    own = type("OwnConfig", (ga.VariantConfig,), {"scalars": ("w",)})
    with refused("'scalars' of variant 'own_scalars'", "('w',)", "trainable, layers"):
        ga.register("own_scalars")(dataclasses.dataclass(frozen=True)(own))
    assert "own_scalars" not in ga.variant_configs()


def test_what_says_eager_for_attentions_is_answered() -> None:
    model = ga.patch_model(MODELS["BERT"](), CONFIG)
    batch = inputs(model)
    with pytest.raises(ValueError, match="set it to 'eager'"):  # transformers' own
        model.config.output_attentions = True
    model.set_attn_implementation("eager")
    with refused("set it to 'hf_graphattn' again", "output_attentions=True"):
        model(**batch)
    model.set_attn_implementation("hf_graphattn")
    assert len(model(**batch, output_attentions=True).attentions) == LAYERS


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_labels": 7}, "ignore_mismatched_sizes"),
        ({"use_kernels": True}, "Kernels are not available"),
    ],
)
def test_what_transformers_refuses_is_told_in_its_words(
    given: dict[str, Any], says: str, patched_folder: Path
) -> None:
    with pytest.raises(ga.GraphAttentionError, match=says) as error:
        ga.from_pretrained(patched_folder, **given)
    assert str(patched_folder) in str(error.value)
    assert "damaged" not in str(error.value)


def test_transformers_alone_says_who_loads_a_patched_folder(patched_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"from_pretrained\(folder\); any other loses its graph"):
        AutoModelForSequenceClassification.from_pretrained(patched_folder)


def test_a_layer_of_transformers_alone_is_refused() -> None:
    layer = MODELS["BERT"]().bert.encoder.layer[0]
    states, before = torch.randn(1, 5, 32), set(layer.state_dict())
    with refused("model is 'BertLayer'", "as a part", "the whole model"):
        ga.patch_model(layer, ga.GFSAConfig())
    assert before == set(layer.state_dict())
    layer(states)


@pytest.mark.parametrize(
    ("p", "eps"), [(-10, 1e-2), (-8, 1e-3), (1.5, 1.2e-38), (2.5, 1.2e-38), (10, 1e-3), (10, 1.0)]
)
@pytest.mark.parametrize("backend", ["eager", "blockwise"])
def test_every_exponent_that_is_allowed_gives_finite_logits(
    p: float, eps: float, backend: str
) -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.PLaTConfig(p=p, eps=eps), backend=backend)
    out = model(**inputs(model)).logits
    out.sum().backward()
    assert out.isfinite().all()
    assert all(w.grad is None or w.grad.isfinite().all() for w in model.parameters())


def test_a_layer_index_of_shared_layers_says_that_they_are_shared() -> None:
    with refused("layers", "(1,)", "-1 to 0", "ALBERT"):
        ga.patch_model(MODELS["ALBERT"](), ga.GFSAConfig(layers=(1,)))


def test_weights_that_are_not_loaded_yet() -> None:
    with torch.device("meta"):
        model = MODELS["BERT"]()
    with refused("meta", "Load the weights"):
        ga.patch_model(model, ga.GFSAConfig())
    assert not ga.is_patched(model)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", MODELS)
def test_another_attention_implementation_never_drops_the_filter(
    architecture: str, implementation: str
) -> None:
    """The next forward raises; both remedies that it names work."""
    model = MODELS[architecture]()
    batch = inputs(model)
    plain = model(**batch).logits
    filtered = ga.patch_model(model, ga.GFSAConfig(w_K=0.3))(**batch).logits
    model.set_attn_implementation(implementation)
    with refused(f"'{implementation}'", "unpatch_model", "backend="):
        model(**batch)
    ga.unpatch_model(model)
    torch.testing.assert_close(model(**batch).logits, plain)
    ga.patch_model(model, ga.GFSAConfig(w_K=0.3), backend=implementation)
    torch.testing.assert_close(model(**batch).logits, filtered, atol=1e-4, rtol=1e-4)


def test_a_model_built_from_a_patched_config_raises_at_its_first_forward() -> None:
    config = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig()).config
    model = AutoModelForSequenceClassification.from_config(config)
    with refused("without its filters", "hf_graphattn.from_pretrained"):
        model(**inputs(model))


def test_the_damaged_tensor_is_one_that_the_model_has(patched_folder: Path) -> None:
    assert FILTER in ga.from_pretrained(patched_folder).state_dict()
