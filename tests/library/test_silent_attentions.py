"""Recorded attentions are what the output was computed from, so gradients reach them."""

from __future__ import annotations

import pytest
import torch
from cases import WITH_MATRIX
from saved import CONFIGS, patched
from tiny import MODELS, ROWS, inputs

import hf_graphattn as ga


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("variant", WITH_MATRIX)
def test_outputs_and_gradients_are_those_without_recording(
    variant: str, training: bool, backend: str
) -> None:
    """In float64, with attention dropout too: H is that of the dropped-out A."""
    dropout = {ROWS["BERT"].dropout: 0.3} if training else {}
    model = MODELS["BERT"](**dropout).double()
    ga.patch_model(model, CONFIGS[variant], backend="eager" if training else backend)
    model.train(training)
    for module in model.modules():  # all dropout but the attention's
        if isinstance(module, torch.nn.Dropout):
            module.eval()
    batch = inputs(model, "right")
    found = []
    for settings in ({}, {"output_attentions": True}):
        torch.manual_seed(0)
        model.zero_grad()
        logits = model(**batch, **settings).logits
        logits.square().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([logits.detach(), *gradients])
    for plain, recorded in zip(*found, strict=True):
        torch.testing.assert_close(recorded, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("variant", WITH_MATRIX)
def test_gradient_times_attention_is_the_outputs_derivative(variant: str) -> None:
    """`sum(dL/dH * H)` is `sum(dL/d(H V) * H V)`, since H V is linear in H."""
    model = patched("BERT", variant, head="Model").double()
    layer = model.encoder.layer[-1].attention.self
    kept: dict[str, torch.Tensor] = {}

    def keep(_: object, __: object, output: tuple[torch.Tensor, ...]) -> None:
        kept["out"], kept["matrix"] = output[0], output[1]
        output[0].retain_grad(), output[1].retain_grad()

    layer.register_forward_hook(keep)
    model(**inputs(model), output_attentions=True)[0].square().sum().backward()
    by_matrix = (kept["matrix"].grad * kept["matrix"]).sum()
    by_output = (kept["out"].grad * kept["out"]).sum()
    torch.testing.assert_close(by_matrix, by_output)
    assert by_matrix.abs() > 0
