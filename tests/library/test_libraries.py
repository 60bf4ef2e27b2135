"""What worked on the model before works on it patched: precisions, pipelines, compilers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo.testing
from cards import made
from cases import VARIANT_CASES
from edges import leading, product
from saved import every_variant
from tiny import MODELS, gradients, inputs
from transformers import CompileConfig, PreTrainedModel, pipeline

import hf_graphattn as ga

LEARNED = ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.3, trainable=("w_0", "w_K"))
VARIANTS = {name: case.config for name, case in VARIANT_CASES.items()}
DTYPES = {torch.bfloat16: 2**-8, torch.float16: 2**-11}  # and their relative rounding


def patched(
    architecture: str, config: ga.VariantConfig = LEARNED, **settings: object
) -> PreTrainedModel:
    return ga.patch_model(MODELS[architecture](**settings), config)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("architecture", "variant"), product(["BERT", "GPT-2", "Llama", "T5", "ViT"], VARIANTS)
)
def test_autocast_trains_the_scalars(architecture: str, variant: str, dtype: torch.dtype) -> None:
    model = patched(architecture, VARIANTS[variant])
    batch = inputs(model, "right")
    expected = model(**batch)[0]
    with torch.autocast("cpu", dtype):
        logits = model(**batch)[0]
        got = gradients(model, logits, batch)
    # Tiny random models are worse conditioned than real ones: 40 roundings.
    assert (logits - expected).abs().max() <= 40 * DTYPES[dtype] * expected.abs().max()
    assert all(gradient.isfinite().all() for gradient in got.values())
    for name, scalar in ga.filter_parameters(model):
        assert scalar.dtype == torch.float32
        assert scalar.grad.abs().max() > 0, name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("architecture", "variant"), product(["BERT", "GPT-2", "Llama", "ViT"], VARIANTS)
)
def test_half_models(architecture: str, variant: str, dtype: torch.dtype) -> None:
    """`model.half()` and `model.bfloat16()`: the plain model's precision, scalars exact."""
    model = patched(architecture, VARIANTS[variant])
    batch = inputs(model, "right")
    expected = model(**batch)[0]
    model.to(dtype)
    half = {n: x.to(dtype) if x.is_floating_point() else x for n, x in batch.items()}
    logits = model(**half)[0]
    assert logits.dtype == dtype
    assert (logits - expected).abs().max() <= 40 * DTYPES[dtype] * expected.abs().max()
    assert all(scalar.dtype == torch.float32 for _, scalar in ga.filter_parameters(model))


@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning")
@pytest.mark.parametrize("variant", VARIANTS)
def test_dynamic_quantisation_and_patching_in_any_order(variant: str) -> None:
    """It leaves attention modules without parameters; the filters stay exact."""

    def quantised(model: torch.nn.Module) -> torch.nn.Module:
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})

    model = patched("BERT", VARIANTS[variant])
    batch = inputs(model, "right")
    after = quantised(model)
    before = ga.patch_model(quantised(ga.unpatch_model(copy.deepcopy(model))), VARIANTS[variant])
    for (_, scalar), (_, own) in zip(
        ga.filter_parameters(before), ga.filter_parameters(model), strict=True
    ):
        scalar.data.copy_(own)
    assert torch.equal(before(**batch)[0], after(**batch)[0])
    assert str(ga.report(before)) == str(ga.report(after))
    plain = quantised(ga.unpatch_model(model))(**batch)[0]
    assert torch.equal(ga.unpatch_model(before)(**batch)[0], plain)


def test_pipelines_take_a_patched_model(caplog: pytest.LogCaptureFixture) -> None:
    model, tokenizer, text = made("label")
    (found,) = pipeline("text-classification", model=model, tokenizer=tokenizer)(text)
    with torch.no_grad():
        scores = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)
    assert found["score"] == pytest.approx(float(scores.max()))

    model, tokenizer, text = made("text")
    settings = {"max_new_tokens": 5, "do_sample": False}
    (found,) = pipeline("text-generation", model=model, tokenizer=tokenizer)(text, **settings)
    ids = tokenizer(text, return_tensors="pt")
    ids.pop("token_type_ids", None)
    expected = model.generate(**ids, **settings, use_cache=False)
    assert found["generated_text"] == tokenizer.decode(expected[0], skip_special_tokens=True)
    assert "not supported" not in caplog.text


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
        expected = gradients(model, model(**batch)[0], batch)
        largest = max(float(each.abs().max()) for each in expected.values())
        got = gradients(model, whole(**batch)[0], batch)
        assert got.keys() == expected.keys()
        for name, gradient in got.items():
            assert (gradient - expected[name]).abs().max() <= 1e-5 * largest, name
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
