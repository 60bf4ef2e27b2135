"""Compilers and gradient checkpointing on every architecture, with a layer of each variant."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import transformers
from cases import VARIANT_CASES, VariantCase
from saved import every_variant
from tiny import LAYERS, MODELS, ROWS, gradients, inputs
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter

KINDS = ("GPT-2", "Llama", "T5", "ViT")


def compiled(architecture: str, cases: Mapping[str, VariantCase] = VARIANT_CASES) -> None:
    torch._dynamo.reset()
    # float64: the p-LaT kernel of the uncompiled model rounds otherwise than plain operations.
    # Nearly all time is torch's tracing, layer by layer: encoder and decoder share the variants.
    stacks = max(1, ROWS[architecture].modules // LAYERS)
    model, counter = every_variant(architecture, cases, stacks).double(), CompileCounter()
    whole = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for length in (11, 12, 17):
        batch = inputs(model, length=length)
        batch = {n: x.double() if x.is_floating_point() else x for n, x in batch.items()}
        with torch.no_grad():
            torch.testing.assert_close(whole(**batch)[0], model(**batch)[0])
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.full
@pytest.mark.parametrize("architecture", ROWS)
def test_one_graph_serves_all_lengths(architecture: str) -> None:
    try:
        compiled(architecture)
    except Unsupported as error:  # torch's compiler gave up, as it may on the plain model too
        with pytest.raises(Unsupported):
            torch.compile(MODELS[architecture](), fullgraph=True)(**inputs(MODELS[architecture]()))
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        pytest.skip(f"{versions}: the plain model does not compile either: {error}")


@pytest.mark.parametrize("place", range(len(KINDS)), ids=KINDS)
def test_an_architecture_of_each_kind_compiles_with_four_variants(place: int) -> None:
    """Each variant in two of them."""
    four = (list(VARIANT_CASES) * 2)[4 * place : 4 * place + 4]
    compiled(KINDS[place], {name: VARIANT_CASES[name] for name in four})


@pytest.mark.parametrize("architecture", [name for name, row in ROWS.items() if not row.is_shared])
def test_gradient_checkpointing_has_the_same_gradients(architecture: str) -> None:
    """Of both kinds, with dropout."""
    model = every_variant(architecture).train()
    batch = inputs(model)

    def run() -> dict[str, Tensor]:
        torch.manual_seed(1)
        return gradients(model, model(**batch)[0], {})

    expected = run()
    largest = max(float(each.abs().max()) for each in expected.values())
    for reentrant in (True, False):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        for name, got in run().items():
            assert (got - expected[name]).abs().max() <= 1e-5 * largest, name
        model.gradient_checkpointing_disable()
