"""Attention classes that compute attention by themselves, reached by their dropout module."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import spread
from torch import Tensor, nn
from transformers import DebertaConfig, DebertaModel
from zoo import models
from zoo.batches import inputs

import hf_graphattn as ga
from hf_graphattn.interface.dropout import OwnProducts

GFSA = ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.3)
TYPES = ("bloom", "deberta-v2", "gptj", "swinv2")


def pair(model_type: str) -> tuple[Any, dict[str, Tensor]]:
    model = models.build(model_type)
    return model, inputs(model, "right")


@pytest.mark.parametrize("model_type", TYPES)
def test_it_is_patched_saved_loaded_and_plain_again(model_type: str, tmp_path: Path) -> None:
    model, batch = pair(model_type)
    own, plain = list(model.parameters()), model(**batch)[0]
    found = ga.check(model, **batch)
    assert found.passed, found
    ga.patch_model(model, ga.GFSAConfig(), check=batch)
    torch.testing.assert_close(model(**batch)[0], plain)
    for _, scalar in ga.filter_parameters(model):
        scalar.data.uniform_(0.2, 0.5)
    filtered = model(**batch)[0]
    assert not torch.allclose(filtered, plain, rtol=1e-3)
    assert "H is formed of the A of" in str(ga.report(model))
    model.save_pretrained(tmp_path)
    assert torch.equal(ga.from_pretrained(tmp_path)(**batch)[0], filtered)
    assert torch.equal(copy.deepcopy(model)(**batch)[0], filtered)
    ga.unpatch_model(model)
    assert torch.equal(model(**batch)[0], plain)
    assert all(a is b for a, b in zip(model.parameters(), own, strict=True))


@pytest.mark.parametrize("model_type", TYPES)
def test_every_gradient_is_that_of_the_classes_own_product(model_type: str) -> None:
    model, batch = pair(model_type)
    model = ga.patch_model(model, GFSA, check=batch).double()
    batch = {n: x.double() if x.is_floating_point() else x for n, x in batch.items()}
    weight = torch.randn_like(model(**batch)[0])
    found = []
    for context in (OwnProducts, torch.enable_grad):
        with context():
            loss = (model(**batch)[0] * weight).sum()
        wanted = [each for each in model.parameters() if each.requires_grad]
        found.append(torch.autograd.grad(loss, wanted, allow_unused=True))
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_generation_is_without_a_cache_or_refused() -> None:
    model, batch = pair("bloom")
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    given = {**batch, "max_new_tokens": 4, "do_sample": False}
    plain = model.generate(**given)
    ga.patch_model(model, ga.GFSAConfig(), check=batch)
    assert torch.equal(model.generate(**given, use_cache=False), plain)
    with pytest.raises(ga.GraphAttentionError, match="use_cache=False"):
        model.generate(**given)


def test_what_it_cannot_compute_is_refused_and_the_model_is_untouched() -> None:
    model, batch = pair("deberta-v2")
    before = {name: dict(vars(each)) for name, each in model.named_modules()}
    with pytest.raises(ga.GraphAttentionError, match="linear in the values, since Disentangled"):
        ga.patch_model(model, ga.PLaTConfig(), check=batch)
    with pytest.raises(ga.GraphAttentionError, match="backend is 'sdpa'; allowed: auto"):
        ga.patch_model(model, GFSA, backend="sdpa", check=batch)
    assert before == {name: dict(vars(each)) for name, each in model.named_modules()}
    assert not ga.is_patched(model)


def test_a_class_that_does_more_to_its_matrix_is_out_of_reach() -> None:
    config = DebertaConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, talking_head=True
    )
    with pytest.raises(ga.GraphAttentionError, match="DisentangledSelfAttention"):
        ga.patch_model(DebertaModel(config), GFSA)


class Own(nn.Module):
    """A model with attention of one's own; `spoil` says what is wrong with it."""

    def __init__(self, spoil: str = "") -> None:
        super().__init__()
        self.heads, self.spoil, self.fused = 4, spoil, True
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        states = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = states
        if self.fused:
            out = nn.functional.scaled_dot_product_attention(query, key, value)
        else:
            scores = query @ key.mT * 8**-0.5
            matrix = self.drop(scores if self.spoil == "scores" else scores.softmax(-1))
            if self.spoil == "scores":
                matrix = matrix.softmax(-1)
            if self.spoil == "window":
                matrix = matrix.tril(2)
            out = matrix @ value
        out = self.out(out.transpose(1, 2).flatten(2))
        return self.drop(out) if self.spoil == "twice" else out


def own(spoil: str = "") -> nn.Module:
    model = nn.Sequential(Own(spoil), nn.Tanh(), Own(spoil)).eval()
    spread(model)
    return model


@pytest.fixture(autouse=True)
def _registered() -> None:
    ga.register_architecture(Own, dropout="drop", num_heads="heads", settings={"fused": False})


def test_a_registered_class_is_checked_and_patched() -> None:
    model, x = own(), torch.randn(2, 9, 32)
    plain = model(x)
    assert {row.says for row in ga.supported(model).rows} == {
        "after a check (check=...); filters linear in the values, no cache"
    }
    with pytest.raises(ga.GraphAttentionError, match="check=batch"):
        ga.patch_model(model, GFSA)
    with pytest.raises(ga.GraphAttentionError, match="Pass check=batch"):
        ga.patch_model(model, GFSA, check=True)
    ga.patch_model(model, GFSA, check={"input": x})
    assert not torch.allclose(model(x), plain, rtol=1e-3)
    assert [each.fused for each in (model[0], model[2])] == [False, False]
    ga.unpatch_model(model)
    assert torch.equal(model(x), plain)
    assert model[0].fused


@pytest.mark.parametrize("spoil", ["scores", "window", "twice"])
def test_a_registered_class_whose_dropout_is_not_that_of_a_is_refused(spoil: str) -> None:
    model, x = own(spoil), torch.randn(2, 9, 32)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ga.GraphAttentionError, match=r"no product takes|returns a tensor"):
        ga.patch_model(model, GFSA, check={"input": x})
    assert not ga.is_patched(model)
    assert model.state_dict().keys() == before.keys()


def test_a_row_that_names_what_is_not_there_raises_and_leaves_the_model_plain() -> None:
    model, x = own(), torch.randn(2, 9, 32)
    for row in ({"dropout": "dorp"}, {"dropout": "drop", "settings": {"fusd": False}}):
        ga.register_architecture(Own, num_heads="heads", **row)
        with pytest.raises(AttributeError, match=r"dorp|fusd"):
            ga.patch_model(model, GFSA, check={"input": x})
        assert not ga.is_patched(model)
        assert model[0].fused
    for attention in (Own(), type("Sub", (Own,), {}), type("Plain", (), {"forward": print})):
        with pytest.raises(ga.GraphAttentionError, match="that defines forward"):
            ga.register_architecture(attention, dropout="drop")
    ga.register_architecture(Own, dropout="drop", num_heads="haeds")
    with pytest.raises(ga.GraphAttentionError, match=r"number of heads of 0 is .not known"):
        ga.patch_model(own(), GFSA, check={"input": x})


def test_as_many_rows_as_heads_tell_nothing() -> None:
    """Of a class with its heads in the first dimension, (H, B, N, N), the check would be right."""
    with pytest.raises(ga.GraphAttentionError, match="a batch of 4 rows"):
        ga.patch_model(own(), GFSA, check={"input": torch.randn(4, 9, 32)})
