"""What a check needs of its batch and of its filters, so that nothing stays unseen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from refusals import refused, untouched
from torch import Tensor
from zoo.batches import inputs
from zoo.models import build

import hf_graphattn as ga
from hf_graphattn.variants.gfsa import GFSAFilter

GFSA = ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.3)


def test_a_batch_that_does_not_reach_every_filter_does_not_pass() -> None:
    model = build("llava")
    batch = inputs(model)
    text = {name: batch[name] for name in ("input_ids", "attention_mask")}
    text["input_ids"] = text["input_ids"].clamp_min(model.config.image_token_id + 1)
    found = ga.check(model, **text)
    assert [row.name for row in found.rows if not row.passed] == ["reached"]
    with (
        untouched(model, batch),
        refused("does not reach 2 filters, in CLIPAttention", "all that the model reads"),
    ):
        ga.patch_model(model, GFSA, check=text)
    assert ga.check(model, **batch).passed
    assert ga.check(model, ga.GFSAConfig(w_K=0.3, layers=(-1, -2)), **text).passed


def test_a_model_that_keeps_what_it_made_of_its_texts_does_not_pass() -> None:
    """Its filters would not act on what it keeps; after saving and loading they would."""
    model = build("omdet-turbo")
    batch = inputs(model)
    with refused("does not reach 2 filters, in CLIPAttention", "earlier inputs fails"):
        ga.patch_model(model, GFSA, check=batch)


def test_each_head_has_scalars_of_its_own_in_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    forward = GFSAFilter.forward

    def kept(self: GFSAFilter, *args: Any) -> Tensor:
        seen.append([each.detach() for each in self.parameters()])
        return forward(self, *args)

    monkeypatch.setattr(GFSAFilter, "forward", kept)
    model = build("qwen2")
    assert ga.check(model, **inputs(model)).passed
    filtered = [torch.stack(each) for each in seen if len(each) == 3]
    assert filtered
    for each in filtered:
        assert each.unique().numel() == 3 * model.config.num_attention_heads


def test_a_model_of_a_type_that_was_tried_and_is_not_listed_needs_a_check() -> None:
    """Its classes are in the table: in a model of another type they may be given other masks."""
    model = build("rag")
    with (
        untouched(model, inputs(model)),
        refused("not verified", "BartAttention, BertSelfAttention"),
    ):
        ga.patch_model(model, GFSA)
    assert {row.says for row in ga.supported(model).rows if row.kind == "self"} == {
        "after a check (check=...)"
    }


def test_keys_that_layers_share_are_without_a_cache_and_with_all_queries_alone() -> None:
    model = build("gemma4_text, shared keys")
    batch = {"input_ids": inputs(model)["input_ids"]}
    settings = {"do_sample": False, "min_new_tokens": 3, "max_new_tokens": 3}
    ga.patch_model(model, GFSA, check=inputs(model))
    with refused("DummyLayer", "use_cache=False"):
        model.generate(**batch, **settings)
    with refused("1 queries and 11 keys", "output_hidden_states=True"):
        model.generate(**batch, **settings, use_cache=False)
    said = {"use_cache": False, "output_hidden_states": True, "return_dict_in_generate": True}
    out = model.generate(**batch, **settings, **said, output_logits=True)
    whole = model(out.sequences, use_cache=False).logits[:, -4:-1]
    torch.testing.assert_close(torch.stack(out.logits, 1), whole, rtol=1e-4, atol=1e-4)
