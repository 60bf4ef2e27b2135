"""No mask is made where plain SDPA needs none, since kernels are slower with one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import GENERATORS, LAYERS, MODELS, ROWS, inputs
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import hf_graphattn as ga
from hf_graphattn.interface.graph_attn import NAME

WITHOUT = ("BERT", "GPT-2", "Llama")  # plain SDPA needs no mask unless there is padding


def masks(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, call: str = "forward", **batch: Any
) -> list[tuple[int, ...] | None]:
    """The shapes of the masks that the attention function gets, None where it gets none."""
    name = model.config._attn_implementation
    function, found = ALL_ATTENTION_FUNCTIONS[name], []

    def spy(module: Any, query: Any, key: Any, value: Any, mask: Any, **others: Any) -> Any:
        found.append(None if mask is None else tuple(mask.shape))
        return function(module, query, key, value, mask, **others)

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setitem(ALL_ATTENTION_FUNCTIONS, name, spy)
        getattr(model, call)(**batch)
    assert name == (NAME if ga.is_patched(model) else "sdpa")
    return found


@pytest.mark.parametrize(
    ("architecture", "padding"), [(name, each) for name in ROWS for each in ROWS[name].padding]
)
def test_a_patched_model_gets_masks_where_plain_sdpa_does(
    architecture: str, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[architecture]()
    batch = inputs(model, padding)
    plain = masks(model, monkeypatch, **batch)
    assert masks(ga.patch_model(model, ga.GFSAConfig()), monkeypatch, **batch) == plain
    if architecture in WITHOUT:
        assert [mask is None for mask in plain] == [padding == "none"] * LAYERS


@pytest.mark.parametrize("architecture", GENERATORS)
def test_cached_generation_gets_the_masks_of_sdpa(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[architecture]()
    batch = {name: given[:1] for name, given in inputs(model).items() if "decoder" not in name}
    settings = {"do_sample": False, "min_new_tokens": 4, "max_new_tokens": 4}
    plain = masks(model, monkeypatch, "generate", **batch, **settings)
    ga.patch_model(model, ga.GFSAConfig())
    assert masks(model, monkeypatch, "generate", **batch, **settings) == plain
    if architecture in WITHOUT:
        assert plain == [None] * (4 * LAYERS)
