"""What filters keep in a cache: as transformers' in all that is done to it, or refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from saved import every_variant
from tiny import MODELS, inputs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

import hf_graphattn as ga
from hf_graphattn.interface.cache import GrowingLayer

GFSA = ga.GFSAConfig(order=4, w_0=0.1, w_K=0.3)
CUBIC = ga.PolynomialConfig(coefficients=(0.2, 0.5, -0.3, 0.4))
TWO_PASSES = {"gfsa": GFSA, "polynomial": CUBIC}
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


class Products(TorchDispatchMode):
    """Counts products of matrices of each layer's heads."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)
        return func(*args, **kwargs or {})


@torch.no_grad()
@pytest.mark.parametrize("variant", TWO_PASSES)
def test_a_token_takes_a_product_a_pass_and_writes_in_place(variant: str) -> None:
    model = model_of("Llama", variant, "eager")
    ids = torch.randint(3, 60, (2, 9))
    cache = DynamicCache(config=model.config)
    model(ids[:, :8], past_key_values=cache)
    kept = [kept for layer in cache.layers for kept in (layer, *layer.operands)]
    places = [each.keys.data_ptr() for each in kept]
    with Products() as products:
        model(ids[:, 8:], past_key_values=cache)
    assert products.count == len(cache.layers) + len(kept)  # of queries and keys, of A and each
    assert [each.keys.data_ptr() for each in kept] == places
