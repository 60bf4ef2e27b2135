"""Bad input: the error's class and words, and a model that is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refusals import ARGUMENTS, FILTER, FOLDERS, refused, untouched
from tiny import MODELS, inputs
from transformers import AutoModelForSequenceClassification

import hf_graphattn as ga


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
