"""Layers of a cache that grow in place: as transformers' in all that is done to them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from tiny import MODELS, inputs
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import DynamicLayer

import hf_graphattn as ga
from hf_graphattn.interface.cache import GrowingLayer

TWO_PASSES = {
    "gfsa": ga.GFSAConfig(order=4, w_0=0.1, w_K=0.3),
    "polynomial": ga.PolynomialConfig(coefficients=(0.2, 0.5, -0.3, 0.4)),
}


def states(tokens: int, batch: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, tokens, 5), torch.randn(batch, 3, tokens, 7)


def assert_equal(layer: DynamicLayer, expected: DynamicLayer) -> None:
    assert layer.get_seq_length() == expected.get_seq_length()
    assert layer.is_initialized == expected.is_initialized
    if expected.is_initialized:
        assert torch.equal(layer.keys, expected.keys)
        assert torch.equal(layer.values, expected.values)


def set_from_outside(layer: DynamicLayer) -> None:
    layer.keys, layer.values = layer.keys[:, :, 1:].clone(), layer.values[:, :, 1:].clone()


OPERATIONS: dict[str, Callable[[DynamicLayer], DynamicLayer | None]] = {
    "crop": lambda layer: layer.crop(-2),
    "crop all": lambda layer: layer.crop(-layer.get_seq_length()),
    "repeat": lambda layer: layer.batch_repeat_interleave(2),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([1, 0])),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 1])),
    "reset": lambda layer: layer.reset(),
    "set": set_from_outside,
    "offloaded and back": lambda layer: (layer.offload(), layer.prefetch())[0],
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("modes", [[torch.no_grad], [torch.inference_mode, torch.no_grad]])
def test_what_is_done_to_a_layer_is_as_in_transformers(name: str, modes: list) -> None:
    layers = [GrowingLayer(), DynamicLayer()]
    for step in range(9):
        tokens = (6, 1, 1, 40, 1, 3, 1, 1, 1)[step]
        with modes[step % len(modes)](), torch.no_grad():
            if step in (3, 6):
                layers = [OPERATIONS[name](layer) or layer for layer in layers]
                assert_equal(*layers)
            batch = layers[1].keys.shape[0] if layers[1].is_initialized else 2
            given = states(tokens, batch)
            found, expected = (layer.update(*given) for layer in layers)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert_equal(*layers)


@torch.no_grad()
def test_a_token_writes_its_row_alone() -> None:
    layer = GrowingLayer()
    layer.update(*states(100))
    places = set()
    for _ in range(300):
        _, values = layer.update(*states(1))
        places.add(values.data_ptr())
    assert len(places) < 10
    whole = layer.keys.untyped_storage().nbytes() / layer.keys[0].numel() / 2 / 4
    assert whole <= 1.3


@torch.no_grad()
def test_tensors_of_others_are_never_written_to() -> None:
    own, kept = states(20)[0], GrowingLayer()
    before = own.clone()
    kept.update(*states(9))
    kept.keys = own[:, :, :9]  # as long as before, and with room behind it
    kept.crop(-2)
    kept.update(*states(3))
    assert torch.equal(own, before)
    other = copy.copy(kept)  # which shares nothing but what it was given
    before, read = other.keys.clone(), kept.keys
    kept.crop(-1)
    kept.update(*states(4))
    assert torch.equal(other.keys, before)
    assert torch.equal(read, before)


@torch.no_grad()
def test_a_file_holds_no_room() -> None:
    layer = GrowingLayer()
    layer.update(*states(400))
    layer.update(*states(1))
    for one in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert one.keys.untyped_storage().nbytes() == 4 * one.keys.numel()
        assert torch.equal(one.keys, layer.keys)


@torch.no_grad()
def test_tokens_that_do_not_fit_are_cast_or_refused_as_in_transformers() -> None:
    layers = GrowingLayer(), DynamicLayer()
    first, more, one_row = states(6), states(2), states(1, batch=1)
    for layer in layers:
        layer.update(*(each.bfloat16() for each in first))
        layer.update(*more)  # float32 behind bfloat16 is float32
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            layer.update(*one_row)
    assert_equal(*layers)
    assert layers[0].keys.dtype == torch.float32


def test_what_autograd_has_saved_stays() -> None:
    """A prompt without gradients, tokens with them, and others without, which go on in place."""
    layer, weights = GrowingLayer(), torch.randn(2, 3, 1, 5, requires_grad=True)
    with torch.no_grad():
        layer.update(*states(6))
        layer.update(*states(1))
    keys, _ = layer.update(*states(1))
    saved = keys.clone()
    scores = weights @ keys.mT
    with torch.no_grad():
        layer.update(*states(1))
        layer.crop(-4)
        layer.update(*states(1))
    scores.sum().backward()
    torch.testing.assert_close(weights.grad, saved.sum(-2, keepdim=True))


def model_of(architecture: str, variant: str, backend: str = "auto") -> PreTrainedModel:
    model = MODELS[architecture]()
    return ga.patch_model(model, TWO_PASSES[variant], backend=backend).double()


@pytest.mark.parametrize("variant", TWO_PASSES)
@pytest.mark.parametrize("architecture", ["GPT-2", "Llama", "Mistral", "GPT-NeoX"])
def test_token_for_token_equals_the_whole(architecture: str, variant: str) -> None:
    """Shared heads, left padding, and each kind of layer; in float64.

    The kernel of `shared` takes the prompt, and gives the cache what it keeps.
    """
    for backend in ("auto", "sdpa", "shared"):
        model = model_of(architecture, variant, backend)
        batch = inputs(model, "left")
        ids, mask = batch["input_ids"], batch["attention_mask"]
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        static = StaticCache(config=model.config, max_cache_len=ids.shape[1] + 2)
        with torch.no_grad():
            whole = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
            for cache in (DynamicCache(config=model.config), static):
                end = 0
                for new in (ids.shape[1] - 5, 1, 1, 2, 1):
                    rows = slice(end, end + new)
                    end += new
                    got = model(
                        ids[:, rows],
                        attention_mask=mask[:, :end],
                        position_ids=positions[:, rows],
                        past_key_values=cache,
                    ).logits
                    seen = mask[:, rows].bool()
                    torch.testing.assert_close(
                        got[seen], whole[:, rows][seen], rtol=1e-10, atol=1e-10
                    )


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept(dtype: torch.dtype) -> None:
    model = model_of("Llama", "gfsa").to(dtype)
    ids = torch.randint(3, 60, (2, 12))
    whole = model(ids, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    parts = [model(chunk, past_key_values=cache).logits for chunk in ids.split([8, 1, 1, 1, 1], 1)]
    assert cache.layers[0].values.dtype == dtype
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0.05, atol=0.05)
