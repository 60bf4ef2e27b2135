"""No mask is made and no shared head repeated where plain attention needs none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensors import error, inputs_of, leaves, mask_of, states
from tiny import GENERATORS, LAYERS, MODELS, ROWS, inputs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import hf_graphattn as ga
from hf_graphattn.backends import attention_matrix, make
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


HEADS, SHARED = 6, 2


def repeated(x: Tensor) -> Tensor:
    return x.repeat_interleave(HEADS // x.shape[1], dim=1)


@pytest.mark.parametrize("kind", ["none", "causal", "left", "full", "additive_full"])
@pytest.mark.parametrize(
    ("backend", "value_heads"), [("eager", HEADS), ("sdpa", HEADS), ("sdpa", SHARED)]
)
def test_shared_keys_are_the_keys_of_each_head(backend: str, value_heads: int, kind: str) -> None:
    """Two passes and their gradients, in float64."""
    mask, causal = mask_of(kind, HEADS, 7), kind == "causal"
    mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    query, key, value = (each.double() for each in states(HEADS, 7))
    own = leaves(query, key[:, :SHARED], value[:, :value_heads])
    expected_of = leaves(*own)
    attend = make(backend, inputs_of(*own[:2], mask, causal))
    once = attend(own[2])
    got = once + attend(once)
    a = attention_matrix(inputs_of(expected_of[0], repeated(expected_of[1]), mask, causal))
    expected = a @ repeated(expected_of[2])
    expected = expected + a @ expected
    upstream = torch.randn_like(got)
    gradients = torch.autograd.grad(got, own, upstream)
    of_expected = torch.autograd.grad(expected, expected_of, upstream)
    for one, other in zip((got, *gradients), (expected, *of_expected), strict=True):
        assert error(one, other) < 1e-12


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.elements = max(self.elements, out.numel())
        return out


@torch.no_grad()
def test_a_token_is_generated_without_repeating_what_the_cache_holds() -> None:
    """In layers with a filter, and in those without."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=24,
        num_attention_heads=8, num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    ga.patch_model(model, ga.LaplacianConfig(step=0.1, layers=(0,)))
    ids, cache = torch.randint(24, (1, 121)), DynamicCache(config=model.config)
    model(ids[:, :-1], past_key_values=cache)
    with Largest() as largest:
        out = model(ids[:, -1:], past_key_values=cache)
    assert error(out.logits, model(ids).logits[:, -1:].double()) < 1e-5
    assert largest.elements < 8 * 120 * 8 / 2
