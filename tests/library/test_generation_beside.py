"""What filters keep beside keys and values follows all that is done to a cache, or is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from features import every_variant
from tiny import MODELS
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import CacheLayerMixin

import hf_graphattn as ga

GFSA = ga.GFSAConfig(order=4, w_0=0.1, w_K=0.3)
CUBIC = ga.PolynomialConfig(coefficients=(0.2, 0.5, -0.3, 0.4))
EMPTY = {
    "dynamic": lambda model: DynamicCache(config=model.config),
    "without a config": lambda model: DynamicCache(),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=20),
}


def patched(architecture: str, config: ga.VariantConfig, **settings: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return ga.patch_model(MODELS[architecture](**settings), config)


def turned(cache: Cache) -> Cache:
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    return cache


def selected(cache: Cache) -> Cache:
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 2, 3]))  # 2, 0, 0 of the first
    return cache


def moved(cache: Cache) -> Cache:
    for layer in turned(cache).layers:
        layer.offload()
        layer.prefetch()
    return cache


FOLLOWED = {
    "reorder": turned,
    "select and repeat": selected,
    "copy": lambda cache: turned(copy.deepcopy(cache)),
    "file": lambda cache: pickle.loads(pickle.dumps(turned(cache))),
    "offload and back": moved,
}
KINDS = [
    (kind, operation)
    for kind in (*EMPTY, "initialised")
    for operation in FOLLOWED
    # transformers has it for dynamic caches only
    if operation != "select and repeat" or kind not in ("static", "initialised")
]


def begun(name: str, model: PreTrainedModel) -> Cache:
    if name != "initialised":
        return EMPTY[name](model)
    cache, config = EMPTY["static"](model), model.config
    width = config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    cache.early_initialization(3, heads, width, model.dtype, model.device)
    return cache


@torch.no_grad()
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("architecture", ["GPT-2", "Llama", "Mistral"])
def test_values_have_the_heads_own_width(architecture: str, static: bool) -> None:
    """In a layer of each variant, as in the plain model: an operand is a layer beside it."""
    model = every_variant(architecture)
    plain = ga.unpatch_model(copy.deepcopy(model))
    ids = torch.randint(3, 60, (2, 5))
    found, expected = (EMPTY["static" if static else "dynamic"](model) for _ in range(2))
    for chunk in ids.split([4, 1], dim=1):
        model(chunk, past_key_values=found)
        plain(chunk, past_key_values=expected)
    assert found.get_max_length() == expected.get_max_length()
    filters = ga.graph_filters(model).values()
    for graph_filter, one, other in zip(filters, found.layers, expected.layers, strict=True):
        assert one.keys.shape == other.keys.shape
        assert one.values.shape == other.values.shape
        beside = [each.keys.shape for each in one.operands]
        batch, _, tokens, width = other.values.shape
        heads = model.config.num_attention_heads
        assert beside == [(batch, heads, tokens, width)] * graph_filter.operands
    if not static:
        again = DynamicCache(found)  # as DataParallel gathers it: tensors, layer by layer
        assert again.layers[0].values.shape == expected.layers[0].values.shape


@torch.no_grad()
@pytest.mark.parametrize(("kind", "operation"), KINDS)
@pytest.mark.parametrize("architecture", ["GPT-2", "Llama", "Mistral"])
def test_what_is_kept_follows_every_row(architecture: str, kind: str, operation: str) -> None:
    """Rows that change places; in float64, short and longer than Mistral's window of 6."""
    model = patched(architecture, CUBIC).double()
    ids = torch.randint(3, 60, (3, 15))
    for first in (3, 9):
        cache = begun(kind, model)
        model(ids[:, :first], past_key_values=cache)
        cache = FOLLOWED[operation](cache)
        rows = torch.cat([ids[[2, 0, 0], :first], ids[:, first:]], dim=1)
        whole = model(rows, use_cache=False).logits[:, first:]
        chunks = ids[:, first:].split([1, 3, 1, 1] if first == 9 else [12], dim=1)
        parts = [model(chunk, past_key_values=cache).logits for chunk in chunks]
        torch.testing.assert_close(torch.cat(parts, 1), whole)
        cache.reset()
        again = model(ids, past_key_values=cache).logits
        torch.testing.assert_close(again, model(ids, use_cache=False).logits)


@torch.no_grad()
@pytest.mark.parametrize("first", [False, True])
def test_a_window_that_records_its_past_is_cropped(first: bool) -> None:
    model = patched("Mistral", GFSA).double()
    ids = torch.randint(3, 60, (2, 16))
    whole = model(ids, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    if first:
        cache.activate_past_recording()
    model(ids[:, :4], past_key_values=cache)
    if not first:
        cache.activate_past_recording()
    model(ids[:, 4:11], past_key_values=cache)
    cache.crop(-3)
    for end in (9, 12, 16):
        got = model(ids[:, cache.get_seq_length() : end], past_key_values=cache).logits
        torch.testing.assert_close(got, whole[:, end - got.shape[1] : end])
        cache.crop(0)


def _swap(layer: CacheLayerMixin) -> None:
    layer.keys, layer.values = layer.keys.flip(0), layer.values.flip(0)


def _swap_in_place(layer: CacheLayerMixin) -> None:
    layer.keys.copy_(layer.keys.flip(0))
    layer.values.copy_(layer.values.flip(0))


@torch.no_grad()
@pytest.mark.parametrize("change", [_swap, _swap_in_place])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_what_cannot_be_followed_is_refused(kind: str, change: Callable) -> None:
    model = patched("GPT-2", GFSA)
    ids = torch.randint(3, 60, (2, 6))
    cache = EMPTY[kind](model)
    model(ids[:, :4], past_key_values=cache)
    change(cache.layers[1])
    with pytest.raises(ga.GraphAttentionError, match=r"set otherwise.*reorder_cache"):
        model(ids[:, 4:], past_key_values=cache)
    # A filter of one pass keeps nothing, so there is nothing to follow.
    one_pass = patched("GPT-2", ga.LaplacianConfig(step=0.4))
    cache = EMPTY[kind](one_pass)
    one_pass(ids[:, :4], past_key_values=cache)
    for layer in cache.layers:
        change(layer)
    got = one_pass(ids[:, 4:], past_key_values=cache).logits
    whole = one_pass(torch.cat([ids[:, :4].flip(0), ids[:, 4:]], dim=1), use_cache=False).logits
    torch.testing.assert_close(got, whole[:, 4:])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_tokens_of_which_nothing_was_kept_are_refused(kind: str) -> None:
    """Another model's tokens behind those of a filter, until the cache is empty again."""
    model = patched("GPT-2", GFSA)
    ids = torch.randint(3, 60, (2, 6))
    cache = EMPTY[kind](model)
    model(ids[:, :4], past_key_values=cache, output_attentions=True)
    plain = ga.unpatch_model(copy.deepcopy(model))
    plain(ids[:, 4:5], past_key_values=cache)
    with pytest.raises(ga.GraphAttentionError, match="filled without this filter's operands"):
        model(ids[:, 5:], past_key_values=cache)
    for any_filter in (model, patched("GPT-2", CUBIC)):
        cache.reset()
        got = any_filter(ids, past_key_values=cache, output_attentions=True).logits
        torch.testing.assert_close(got, any_filter(ids, use_cache=False).logits)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["Llama", "Mistral"])
def test_a_static_cache_goes_on_from_where_somebody_set_it(architecture: str) -> None:
    model = patched(architecture, GFSA, sliding_window=None).double()
    ids = torch.randint(3, 60, (2, 9))
    whole = model(ids, use_cache=False).logits
    cache = EMPTY["static"](model)
    model(ids[:, :7], past_key_values=cache)
    for layer in cache.layers:
        layer.cumulative_length.fill_(4)
    got = model(ids[:, 4:], past_key_values=cache).logits
    torch.testing.assert_close(got, whole[:, 4:])
