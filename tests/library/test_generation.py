"""Generation with the key-value cache gives what it gives without: tokens, and attentions."""

from __future__ import annotations

import copy

import pytest
import torch
from cases import VARIANT_CASES, WITH_MATRIX
from edges import product
from saved import every_variant
from tiny import GENERATORS, MODELS, ROWS, deep, inputs
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import DynamicLayer

import hf_graphattn as ga

ENCODER_DECODERS = ("BART", "PLBART", "T5", "Whisper")
DECODERS = [name for name in GENERATORS if name not in ENCODER_DECODERS]
# In test_first_layer.py are those that read the first layer's values.
VARIANTS = {name: case.config for name, case in VARIANT_CASES.items()}
CACHED = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "assisted": {},  # by a plain model of the same kind, made in the test
    "static": {"cache_implementation": "static"},
    "chunked prefill": {"prefill_chunk_size": 3},
}
UNCACHED = {  # what must come out, where it is asked for otherwise
    "prompt lookup": {},
    "assisted": {},
    "static": {},
    "chunked prefill": {},
}


def generator(architecture: str, config: ga.VariantConfig, **patch: str) -> PreTrainedModel:
    torch.manual_seed(0)
    # An untied head: a tied random one repeats its input, whatever the attention does.
    model = ga.patch_model(MODELS[architecture](tie_word_embeddings=False), config, **patch)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def prompt(model: PreTrainedModel, mode: str) -> dict[str, torch.Tensor]:
    alone = mode in ("prompt lookup", "assisted")  # transformers has them for one sequence
    batch = inputs(model, "none" if alone else "left")
    rows = 1 if alone else 3
    return {name: x[:rows] for name, x in batch.items() if not name.startswith("decoder")}


def generated(model: PreTrainedModel, batch: dict[str, torch.Tensor], **settings: object):
    torch.manual_seed(1)
    return model.generate(**batch, **{"do_sample": False, "max_new_tokens": 8} | settings)


CASES = [
    (architecture, mode)
    for architecture in GENERATORS
    for mode in CACHED
    # transformers has it for decoders only
    if mode != "chunked prefill" or architecture not in ENCODER_DECODERS
]


@pytest.mark.parametrize(("architecture", "mode", "variant"), product(CASES, VARIANTS))
def test_cached_generation_equals_uncached(architecture: str, mode: str, variant: str):
    model = generator(architecture, VARIANTS[variant])
    batch = prompt(model, mode)
    assistant = {}
    if mode == "assisted":  # like the model in part, so that some of its tokens are taken
        assistant["assistant_model"] = ga.unpatch_model(copy.deepcopy(model))
    cached = generated(model, batch, **CACHED[mode], **assistant)
    uncached = generated(model, batch, use_cache=False, **UNCACHED.get(mode, CACHED[mode]))
    assert torch.equal(cached, uncached)
    probe = inputs(model)
    filtered = model(**probe).logits
    plain = ga.unpatch_model(model)(**probe).logits
    assert not torch.allclose(filtered, plain, atol=1e-3)  # the filter was there


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_in_chunks_of_any_size_equal_the_whole(variant: str):
    for layers, backend in ((None, "auto"), ((0,), "eager")):
        config = type(VARIANTS[variant])(**VARIANTS[variant].__dict__ | {"layers": layers})
        model = generator("GPT-2", config, backend=backend)
        ids = torch.randint(3, 60, (2, 13))
        whole = model(ids, use_cache=False).logits
        cache, parts = DynamicCache(config=model.config), []
        for chunk in ids.split([1, 5, 1, 4, 2], dim=1):
            parts.append(model(chunk, past_key_values=cache).logits)
        assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)
        torch.cat(parts, 1).sum().backward()  # the cache may be differentiated through


def test_caches_that_cannot_serve_are_refused_by_name():
    model = generator("GPT-2", VARIANTS["gfsa"])
    ids = torch.randint(3, 60, (1, 5))
    model.train()
    in_training = model(ids).past_key_values
    assert in_training.layers[0].values.shape == in_training.layers[0].keys.shape
    with pytest.raises(ga.GraphAttentionError, match="in training"):
        model(ids, past_key_values=in_training)

    model.eval()
    offloaded = DynamicCache(config=model.config)
    offloaded.offloading = True  # a constructor argument, but it needs an accelerator's stream
    with pytest.raises(ga.GraphAttentionError, match="offloaded"):
        model(ids, past_key_values=offloaded)
    of_another_kind = DynamicCache(config=model.config)
    of_another_kind.layers = [OwnLayer() for _ in of_another_kind.layers]
    with pytest.raises(ga.GraphAttentionError, match=r"layers of class OwnLayer.*Allowed"):
        model(ids, past_key_values=of_another_kind)


class OwnLayer(DynamicLayer):
    """A layer of a cache that is not known here, as the quantised ones are."""


def _filled(model: PreTrainedModel, ids: torch.Tensor) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    model(ids, past_key_values=cache)
    return cache


def test_caches_of_other_filters():
    ids = torch.randint(3, 60, (1, 9))
    kept = _filled(generator("GPT-2", VARIANTS["laplacian"]), ids)
    with pytest.raises(ga.GraphAttentionError, match="filled without this filter's operands"):
        generator("GPT-2", VARIANTS["gfsa"])(ids, past_key_values=kept)
    # A filter without operands goes on with a cache that a plain model filled, or any other.
    for variant in ("laplacian", "plat"):
        model = generator("GPT-2", type(VARIANTS[variant])(layers=(-1,)))
        whole = model(ids).logits
        first = ga.unpatch_model(copy.deepcopy(model))
        for other in (first, ga.patch_model(copy.deepcopy(first), ga.GFSAConfig())):
            cache = _filled(other, ids[:, :5])
            got = model(ids[:, 5:], past_key_values=cache).logits
            assert torch.allclose(got, whole[:, 5:], atol=1e-5)
        with pytest.raises(ga.GraphAttentionError, match="filled without this filter's operands"):
            other(ids[:, :1], past_key_values=cache)


MODES = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "static": {"cache_implementation": "static"},
    "chunked prefill": {"prefill_chunk_size": 3},
}
NO_CACHE = {"static": {}, "chunked prefill": {}}  # what is asked for instead, without a cache
RECORDED = [
    *((architecture, mode) for architecture in GENERATORS for mode in ("greedy", "beams")),
    *((architecture, mode) for architecture in ("T5", "Llama") for mode in ("sampling", "static")),
    ("GPT-2", "chunked prefill"),
]


def recorded(model: PreTrainedModel, batch: dict[str, Tensor], **settings: object):
    torch.manual_seed(1)
    asked = {"output_attentions": True, "output_scores": True, "return_dict_in_generate": True}
    lengths = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(**batch, **{"do_sample": False} | asked | lengths | settings)


def steps(out) -> dict[str, list[Tensor]]:
    """Every recorded matrix, by name, step by step and layer by layer."""
    named = {name: out[name] for name in out if name.endswith("attentions")}
    encoder = list(named.pop("encoder_attentions", ()))
    return {n: [m for step in x for m in step] for n, x in named.items()} | {"encoder": encoder}


def assert_rows(got: Tensor, whole: Tensor) -> None:
    """`got` is the last rows of `whole`; a static cache has columns beyond."""
    rows, keys = got.shape[-2], whole.shape[-1]
    torch.testing.assert_close(got[..., :keys], whole[..., -rows:, :], rtol=1e-9, atol=1e-9)
    assert not got[..., keys:].any()


@pytest.mark.parametrize(("architecture", "mode"), RECORDED)
def test_generated_attentions_and_scores_equal_uncached(architecture: str, mode: str) -> None:
    wide = {"sliding_window": 64} if "sliding_window" in ROWS[architecture].settings else {}
    model = every_variant(architecture, WITH_MATRIX, tie_word_embeddings=False, **wide).double()
    batch = {n: x for n, x in inputs(model, "left").items() if not n.startswith("decoder")}
    exact = {n: x.double() if x.is_floating_point() else x for n, x in batch.items()}
    cached = recorded(model, exact, **MODES[mode])
    uncached = recorded(model, exact, use_cache=False, **NO_CACHE.get(mode, MODES[mode]))
    assert torch.equal(cached.sequences, uncached.sequences)
    for got, expected in zip(cached.scores, uncached.scores, strict=True):
        torch.testing.assert_close(got, expected)
    found, whole = steps(cached), steps(uncached)
    for name, matrices in whole.items():
        for got, expected in zip(found[name], matrices, strict=True):
            assert_rows(got, expected)
    plain = deep(architecture, len(WITH_MATRIX), attn_implementation="eager", **wide)
    shapes = steps(recorded(plain, batch, **MODES[mode]))
    assert {n: [m.shape for m in x] for n, x in found.items()} == {
        n: [m.shape for m in x] for n, x in shapes.items()
    }


def assert_continues(model: PreTrainedModel, ids: Tensor, new: int, cache: Cache) -> None:
    """The last `new` of all tokens onto a cache that holds the others."""
    whole = model(ids, use_cache=False, output_attentions=True)
    got = model(ids[:, -new:], past_key_values=cache, output_attentions=True)
    torch.testing.assert_close(got.logits, whole.logits[:, -new:])
    for rows, matrix in zip(got.attentions, whole.attentions, strict=True):
        assert_rows(rows, matrix)


@pytest.mark.parametrize("architecture", ["GPT-2", "Llama", "GPT-NeoX"])
def test_what_is_kept_follows_the_cache(architecture: str) -> None:
    model = every_variant(architecture, WITH_MATRIX).double()
    ids = torch.randint(3, 60, (2, 12))
    static = StaticCache(config=model.config, max_cache_len=15)
    with torch.no_grad():
        for cache in (DynamicCache(), DynamicCache(config=model.config), static):
            for end, new in ((1, 1), (6, 5), (7, 1), (11, 4)):
                assert_continues(model, ids[:, :end], new, cache)
            if cache is not static:
                cache.crop(-3)
                other = copy.deepcopy(cache)
                other.batch_select_indices(torch.tensor([1]))
                other.batch_repeat_interleave(2)
                other.reorder_cache(torch.tensor([1, 0]))
                assert_continues(model, ids[1:].expand(2, -1), 4, other)
                assert_continues(model, ids, 4, cache)
            cache.reset()
            assert_continues(model, ids, 12, cache)


@pytest.mark.parametrize("variant", WITH_MATRIX)
def test_a_cache_that_cannot_serve_a_second_pass_is_refused(variant: str) -> None:
    """One pass needs no earlier rows: it records onto any cache, and within a window."""
    model = ga.patch_model(MODELS["Mistral"](), WITH_MATRIX[variant].config)  # its window is 6
    one_pass = next(iter(ga.graph_filters(model).values())).operands == 0
    ids = torch.randint(3, 60, (1, 8))
    silent, windowed = (DynamicCache(config=model.config) for _ in range(2))
    with torch.no_grad():
        whole = model(ids, use_cache=False, output_attentions=True).attentions
        model(ids[:, :7], past_key_values=silent)
        model(ids[:, :7], past_key_values=windowed, output_attentions=True)
        for cache, words in ((silent, "were not recorded.*empty cache"), (windowed, "window")):
            if not one_pass:
                with pytest.raises(ga.GraphAttentionError, match=f"{words}.*use_cache=False"):
                    model(ids[:, 7:], past_key_values=cache, output_attentions=True)
                continue
            got = model(ids[:, 7:], past_key_values=cache, output_attentions=True).attentions
            for rows, matrix in zip(got, whole, strict=True):
                torch.testing.assert_close(rows, matrix[..., 7:, 2:])


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_tokens_that_overfill_a_window_keep_their_rows(kind: type[Cache]) -> None:
    model = every_variant("Mistral", WITH_MATRIX).double()  # its window is 6
    ids = torch.randint(3, 60, (2, 7))
    long = {"max_cache_len": 15} if kind is StaticCache else {}
    cache = kind(config=model.config, **long)
    with torch.no_grad():
        assert_continues(model, ids[:, :4], 4, cache)
        assert_continues(model, ids, 3, cache)


@pytest.mark.parametrize("static", [False, True])
def test_a_cache_begun_while_recording_goes_on_without(static: bool) -> None:
    model = every_variant("Llama", WITH_MATRIX).double()
    ids = torch.randint(3, 60, (2, 12))

    def empty() -> Cache:
        long = {"max_cache_len": 15} if static else {}
        return (StaticCache if static else DynamicCache)(config=model.config, **long)

    cache, never = empty(), empty()
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        model(ids, past_key_values=never)
        assert_continues(model, ids[:, :5], 5, cache)
        got = model(ids[:, 5:], past_key_values=cache).logits
        torch.testing.assert_close(got, whole[:, 5:])
        for one, other in zip(cache.layers, never.layers, strict=True):
            assert not one.rows  # nothing of it is left
            for kept, expected in zip(one.operands, other.operands, strict=True):
                torch.testing.assert_close(kept.keys, expected.keys)
        with pytest.raises(ga.GraphAttentionError, match="were not recorded"):
            model(ids[:, :1], past_key_values=cache, output_attentions=True)


def test_gradients_reach_what_is_recorded_in_chunks() -> None:
    model = every_variant("Llama", WITH_MATRIX).double()
    ids = torch.randint(3, 60, (2, 8))
    found = []
    for lengths in ([8], [4, 1, 3]):
        cache, matrices, loss = DynamicCache(), [], torch.zeros(())
        for chunk in ids.split(lengths, dim=1):
            out = model(chunk, past_key_values=cache, output_attentions=True)
            matrices.append(out.attentions)
            loss = loss + out.logits.square().sum()
        model.zero_grad()
        for matrix in sum(matrices, ()):
            matrix.retain_grad()
        loss.backward()
        found.append([p.grad for p in model.parameters()] + [m.grad for m in matrices[-1]])
    for got, expected in zip(found[1], found[0], strict=True):
        rows = expected if got.shape == expected.shape else expected[..., -3:, :]  # of a matrix
        torch.testing.assert_close(got, rows)
        assert rows.any()
