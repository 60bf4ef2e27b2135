"""transformers' own loaders on a patched folder: they load its filters, or refuse at loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_task
import torch
import transformers
from edges import product
from saved import CONFIGS
from sentence_transformers import SentenceTransformer
from tiny import MODELS, inputs
from transformers import AutoModel, AutoModelForSequenceClassification, pipeline

import hf_graphattn as ga

LOADERS = {
    "BERT": "AutoModelForSequenceClassification",
    "GPT-2": "AutoModelForCausalLM",
    "T5": "AutoModelForSeq2SeqLM",
}
TEXT = "a cat sees the blue house"


def saved(folder: Path) -> Any:
    """A patched classifier with its tokenizer, saved by itself."""
    tiny_task.save_bert(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    ga.patch_model(model, ga.GFSAConfig(w_K=0.5)).save_pretrained(folder)
    return model


@pytest.mark.parametrize(("architecture", "variant"), product(LOADERS, CONFIGS))
def test_a_saved_folder_loads_with_trust(architecture: str, variant: str, tmp_path: Path) -> None:
    model = ga.patch_model(MODELS[architecture](), CONFIGS[variant])
    batch = inputs(model)
    model.save_pretrained(tmp_path / "first")
    loader = getattr(transformers, LOADERS[architecture])
    loaded = loader.from_pretrained(tmp_path / "first", trust_remote_code=True)
    assert type(loaded) is type(model)
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    loaded.save_pretrained(tmp_path / "second")
    for name in ("config.json", "graph_attn.py"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    ga.unpatch_model(loaded).save_pretrained(tmp_path / "plain")
    assert "graph_attn" not in (tmp_path / "plain" / "config.json").read_text()
    plain = loader.from_pretrained(tmp_path / "plain", trust_remote_code=True)
    assert torch.equal(plain(**batch)[0], loaded(**batch)[0])


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
