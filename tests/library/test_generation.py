"""Generation with the key-value cache gives token for token what it gives without."""

from __future__ import annotations

import copy

import pytest
import torch
from cases import VARIANT_CASES
from edges import product
from tiny import GENERATORS, MODELS, inputs
from transformers import DynamicCache, PreTrainedModel
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


@pytest.mark.parametrize(("architecture", "variant"), product(DECODERS, VARIANTS))
def test_generate_goes_on_with_the_cache_of_the_turn_before(architecture: str, variant: str):
    model = generator(architecture, VARIANTS[variant])
    cache = DynamicCache(config=model.config)
    ids = torch.randint(3, 60, (1, 7))
    for turn in range(3):
        mask = torch.ones_like(ids)
        settings = {"do_sample": False, "max_new_tokens": 4, "attention_mask": mask}
        expected = model.generate(ids, **settings, use_cache=False)
        ids = model.generate(ids, **settings, past_key_values=cache)
        assert torch.equal(ids, expected), turn
        ids = torch.cat([ids, torch.randint(3, 60, (1, 3))], dim=1)


def test_caches_that_cannot_serve_are_refused_by_name():
    model = generator("GPT-2", VARIANTS["gfsa"])
    ids = torch.randint(3, 60, (1, 5))
    plain = MODELS["GPT-2"]()
    filled = DynamicCache(config=plain.config)
    plain(ids, past_key_values=filled)
    with pytest.raises(ga.GraphAttentionError, match="filled without this filter's operands"):
        model(ids, past_key_values=filled)

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
