"""torch.compile, torch.export and compiled generation."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
from features import VARIANTS, gradients, patched
from tiny import inputs
from transformers import CompileConfig

import hf_graphattn as ga

NAMES = [config.variant for config in VARIANTS]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", ["none", "left"])
def test_a_compiled_step_has_the_gradients_of_a_plain_one(backend: str, padding: str) -> None:
    """Forward and backward in one graph each, one compilation for every length."""
    model = ga.patch_model(ga.unpatch_model(patched("GPT-2")), VARIANTS[0], backend=backend)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    whole = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for length in (7, 11, 18):
        batch = inputs(model, padding, length)
        expected = gradients(model, batch)
        largest = max(float(each.abs().max()) for each in expected)
        model.zero_grad()
        logits = whole(**batch)[0]
        weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
        (logits * weight).sum().backward()
        got = [p.grad for p in model.parameters() if p.grad is not None]
        for one, other in zip(got, expected, strict=True):
            assert (one - other).abs().max() <= 1e-5 * largest
    assert counter.frame_count == 2  # as for a plain model; none for another length


@pytest.mark.parametrize("config", VARIANTS, ids=NAMES)
@pytest.mark.parametrize("architecture", ["GPT-2", "Llama", "Mistral", "T5"])
def test_a_compiled_static_cache_generates_the_same(
    architecture: str, config: ga.VariantConfig
) -> None:
    """As on a GPU, where generate compiles every decoding step by itself."""
    model = patched(architecture, config, tie_word_embeddings=False)
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    batch = inputs(model, "left")
    batch = {name: x for name, x in batch.items() if not name.startswith("decoder")}
    settings = {"do_sample": False, "max_new_tokens": 8}
    expected = model.generate(**batch, **settings, use_cache=False)
    compiling = CompileConfig(fullgraph=True, dynamic=False, backend="eager", mode=None)
    compiling._compile_all_devices = True
    torch._dynamo.utils.counters.clear()
    got = model.generate(
        **batch, **settings, cache_implementation="static", compile_config=compiling
    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # it was compiled
    assert torch.equal(got, expected)


@pytest.mark.parametrize("config", VARIANTS, ids=NAMES)
@pytest.mark.parametrize("architecture", ["BERT", "ViT"])
def test_an_exported_program_computes_the_filter(
    architecture: str, config: ga.VariantConfig
) -> None:
    model = patched(architecture, config)
    batch = inputs(model, "right")
    with torch.no_grad():
        program = torch.export.export(model, (), batch)
        again = inputs(model, "left")
        torch.testing.assert_close(program.module()(**again)[0], model(**again)[0])
