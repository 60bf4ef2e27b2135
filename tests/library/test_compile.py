"""torch.compile, torch.export and compiled generation."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
from edges import leading
from features import LEARNED, every_variant, gradients, patched
from tiny import inputs
from transformers import CompileConfig

import hf_graphattn as ga


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@torch._dynamo.config.patch(specialize_float=True)
def test_a_compiled_step_has_the_gradients_of_a_plain_one() -> None:
    """Forward and backward in one graph each, one compilation for every length and padding.

    One layer makes fused passes, the other keeps the matrix: the graph holds both. Floats are
    constants from the first: by default torch traces everything twice to find that they are.
    """
    model = patched("GPT-2", LEARNED)
    filters = ga.graph_filters(model).values()
    for graph_filter, backend in zip(filters, ("sdpa", "eager"), strict=True):
        graph_filter.backend = backend
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    whole = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for padding, length in (("none", 7), ("left", 11), ("none", 18), ("left", 9)):
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
    assert counter.frame_count == 1  # none for another length


@pytest.mark.parametrize("architecture", leading(2, ["GPT-2", "Llama", "T5", "Mistral"]))
def test_a_compiled_static_cache_generates_the_same(architecture: str) -> None:
    """As on a GPU, where generate compiles every decoding step by itself; a layer a variant.

    Few tokens: of a sliding cache torch traces each step anew.
    """
    model = every_variant(architecture, tie_word_embeddings=False)
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    batch = inputs(model, "left")
    batch = {name: x for name, x in batch.items() if not name.startswith("decoder")}
    settings = {"do_sample": False, "max_new_tokens": 4}
    expected = model.generate(**batch, **settings, use_cache=False)
    compiling = CompileConfig(fullgraph=True, dynamic=False, backend="eager", mode=None)
    compiling._compile_all_devices = True
    torch._dynamo.utils.counters.clear()
    got = model.generate(
        **batch, **settings, cache_implementation="static", compile_config=compiling
    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # it was compiled
    assert torch.equal(got, expected)


@pytest.mark.parametrize("architecture", ["BERT", "ViT"])
def test_an_exported_program_computes_the_filters(architecture: str) -> None:
    model = every_variant(architecture)
    batch = inputs(model, "right")
    with torch.no_grad():
        program = torch.export.export(model, (), batch)
        again = inputs(model, "left")
        torch.testing.assert_close(program.module()(**again)[0], model(**again)[0])
