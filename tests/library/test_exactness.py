"""Whole models against the published form, and what exactness promises besides.

1e-4 in float32, 1e-9 in float64: on logits and states, of its largest value where a tensor is above
1; on gradients of the largest.
"""

from __future__ import annotations

import copy

import pytest
import torch
from cases import WITH_MATRIX, WITH_NEUTRAL
from edges import product
from published import (
    ALL,
    TOLERANCE,
    assert_same,
    assert_same_gradients,
    backward,
    outputs,
    pair,
)
from saved import CONFIGS, patched
from tiny import HEADS, MODELS, ROWS, inputs

import hf_graphattn as ga


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("architecture", "padding"), [(name, side) for name in ROWS for side in ROWS[name].padding]
)
def test_it_is_the_published_form(architecture: str, padding: str, backend: str) -> None:
    """In float64, to rounding."""
    model, own, patched = pair(architecture, backend)
    batch = inputs(model, padding)
    batch = {n: x.double() if x.is_floating_point() else x for n, x in batch.items()}
    for each in (model, patched):
        each.double()
    for coefficients in own.values():
        for scalar in ALL:
            as_double = getattr(coefficients, scalar).detach().double().requires_grad_()
            setattr(coefficients, scalar, as_double)
    expected, got = outputs(model, batch), outputs(patched, batch)
    assert got[0].dtype == torch.float64
    assert_same(got, expected, 1e-9)
    backward(expected)
    backward(got)
    assert_same_gradients(model, own, patched, 1e-9)


@pytest.mark.parametrize("architecture", ["BERT", "BART"])
def test_decoder_masks_padded_on_the_left(architecture: str) -> None:
    """A causal decoder whose first rows may attend nowhere at all."""
    settings = {"is_decoder": True} if architecture == "BERT" else {}
    for backend in ("sdpa", "eager"):
        model, _, patched = pair(architecture, backend, **settings)
        batch = inputs(model, "left")
        if architecture == "BART":
            batch["decoder_attention_mask"] = torch.ones_like(batch["decoder_input_ids"])
            batch["decoder_attention_mask"][0, :3] = 0
        # BERT's own logits are read at position 0, which is padding here.
        first = 1 if architecture == "BERT" else 0
        assert_same(outputs(patched, batch)[first:], outputs(model, batch)[first:])


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("architecture", MODELS)
def test_dropout_acts_once_on_the_kept_matrix(architecture: str, backend: str) -> None:
    """In training the published form and ours draw the same masks from the same seed."""
    model, own, patched = pair(architecture, backend, **{ROWS[architecture].dropout: 0.3})
    batch = inputs(model, "right")
    still = outputs(model, batch)
    for each in (model, patched):
        each.train()
    torch.manual_seed(1)
    expected = outputs(model, batch)
    torch.manual_seed(1)
    got = outputs(patched, batch)
    assert (expected[0] - still[0]).abs().max() > 100 * TOLERANCE
    assert_same(got, expected)
    backward(expected)
    backward(got)
    assert_same_gradients(model, own, patched)


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize(("architecture", "variant"), product(MODELS, WITH_NEUTRAL))
def test_neutral_scalars_give_the_original_logits(
    architecture: str, variant: str, backend: str
) -> None:
    """To 1e-5: another kernel may add in another order."""
    model = MODELS[architecture]()
    for padding in ROWS[architecture].padding:
        batch = inputs(model, padding)
        original = outputs(model, batch)
        ga.patch_model(model, WITH_NEUTRAL[variant].neutral, backend=backend)
        assert_same(outputs(model, batch), original, 1e-5)
        ga.unpatch_model(model)


@pytest.mark.parametrize("config", [ga.GFSAConfig(), ga.LaplacianConfig(step=0.0)])
@pytest.mark.parametrize("architecture", MODELS)
def test_neutral_scalars_are_bit_exact_under_the_same_kernel(
    architecture: str, config: ga.VariantConfig
) -> None:
    """The fused pass is the one that the unpatched model makes; w_K = 0 adds a plain zero."""
    model = MODELS[architecture](attn_implementation="sdpa")
    batch = inputs(model, "right")
    original = outputs(model, batch)
    ga.patch_model(model, config, backend="sdpa")
    for one, other in zip(original, outputs(model, batch), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", MODELS)
def test_output_attentions_are_the_published_matrices(architecture: str, backend: str) -> None:
    """H of self-attention, whose rows sum to w_0 + w_1 + w_K; A of cross-attention."""
    model, own, patched = pair(architecture, backend)
    batch = inputs(model)
    expected = model(**batch, output_attentions=True)
    got = patched(**batch, output_attentions=True)
    kinds = ("encoder_", "decoder_", "cross_") if model.config.is_encoder_decoder else ("",)
    for kind in kinds:
        assert len(got[f"{kind}attentions"]) == model.config.num_hidden_layers
        assert_same(list(got[f"{kind}attentions"]), list(expected[f"{kind}attentions"]))
    first = next(iter(own.values()))
    sums = (first.w_0 + first.w_1 + first.w_K)[None, :, None].expand(3, HEADS, -1)
    row_sums = got[f"{kinds[0]}attentions"][0].sum(-1)
    torch.testing.assert_close(row_sums, sums.expand_as(row_sums), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(got.logits, patched(**batch).logits, atol=1e-4, rtol=1e-5)


def test_order_one_is_a_weight_on_plain_attention() -> None:
    model, _, patched = pair("GPT-2", "sdpa", order=1)
    batch = inputs(model, "right")
    assert_same(outputs(patched, batch), outputs(model, batch))


def test_fixed_scalars_equal_learned_ones_of_the_same_value() -> None:
    values = {"w_0": -0.05, "w_1": 0.9, "w_K": 0.3}
    model = MODELS["BERT"]()
    batch = inputs(model, "left")
    logits = {}
    for trainable in ((), ("w_K",), ("w_0", "w_1"), ALL):
        patched = ga.patch_model(
            copy.deepcopy(model), ga.GFSAConfig(order=3, trainable=trainable, **values)
        )
        own_names = {name.split(".")[-1] for name, _ in ga.filter_parameters(patched)}
        assert own_names == set(trainable)
        logits[trainable] = patched(**batch).logits
    for other in logits.values():
        torch.testing.assert_close(other, logits[ALL], atol=1e-5, rtol=0.0)
    assert (logits[ALL] - model(**batch).logits).abs().max() > 1e-3


@pytest.mark.parametrize(("layers", "expected"), [((1,), [1]), ((-1, 0), [0, 2]), ((-2, 1), [1])])
def test_only_the_chosen_layers_differ(layers: tuple[int, ...], expected: list[int]) -> None:
    """A filter in layer i changes the states after it, and none before."""
    model = MODELS["BERT"](num_hidden_layers=3)
    batch = inputs(model, "right")
    plain = model(**batch, output_hidden_states=True).hidden_states
    ga.patch_model(model, ga.GFSAConfig(w_K=0.3, layers=layers))
    assert list(ga.graph_filters(model)) == [
        f"bert.encoder.layer.{index}.attention.self" for index in expected
    ]
    changed = model(**batch, output_hidden_states=True).hidden_states
    first = expected[0]
    for index in range(len(plain)):
        same = torch.allclose(changed[index], plain[index], atol=1e-6)
        assert same == (index <= first), index


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
