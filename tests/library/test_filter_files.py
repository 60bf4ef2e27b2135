"""The filters alone: saved, moved between heads and bases, refused where they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from edges import product
from refusals import edit_tensors
from safetensors.torch import load_file, save_file
from saved import CONFIGS, patched
from tiny import MODELS, inputs
from transformers import AutoModelForSequenceClassification

import hf_graphattn as ga


@pytest.mark.parametrize(("architecture", "variant"), product(MODELS, CONFIGS))
def test_filters_move_to_another_copy_of_the_base(
    architecture: str, variant: str, tmp_path: Path
) -> None:
    model = patched(architecture, variant)
    batch = inputs(model)
    expected = model(**batch)[0]
    path = ga.save_filters(model, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["graph_filters.safetensors"]
    assert path.stat().st_size < 8000
    plain = ga.unpatch_model(model)
    loaded = ga.load_filters(plain, tmp_path)
    assert loaded is plain
    assert torch.equal(loaded(**batch)[0], expected)


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


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    model = MODELS["BERT"]()
    with pytest.raises(ga.GraphAttentionError, match=r"has no graph_filters.*save_filters"):
        ga.load_filters(model, tmp_path)
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
