"""What is particular to XSA, shaped attention, AttnScale, the sink, LASER, and presets."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from cases import VARIANT_CASES, attention
from refusals import refused
from tensors import built, error, inputs_of, mask_of, states
from tiny import MODELS, inputs
from torch import Tensor
from zoo import batches, models

import hf_graphattn as ga
from hf_graphattn.backends import AttentionInputs, choose, make
from hf_graphattn.variants.shaped import uniform
from hf_graphattn.variants.temperature import log_visible

LEAST = {dtype: torch.finfo(dtype).min for dtype in (torch.float16, torch.float32, torch.float64)}


def output(
    config: ga.VariantConfig, backend: str, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Of the same queries and keys at each call."""
    torch.manual_seed(0)
    query, key, _ = states(value.shape[1], value.shape[2])
    query, key = (x.to(value.dtype) for x in (query, key))
    graph_filter = config.build(value.shape[1])
    return graph_filter(make(backend, inputs_of(query, key, mask, False)), value)


# XSA


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_the_output_of_xsa_is_orthogonal_to_the_own_value(size: float, dtype: torch.dtype) -> None:
    """At any size: in float16 the square of a norm of 300 would be infinite."""
    value = (size * torch.randn(2, 4, 7, 8)).to(dtype)
    out, plain = (output(ga.XSAConfig(exclusion=each), "sdpa", value) for each in (1.0, 0.0))
    along = (out.double() * torch.nn.functional.normalize(value.double(), dim=-1)).sum(-1)
    assert (along.abs() < 4 * torch.finfo(dtype).eps * plain.double().norm(dim=-1)).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_value_of_zero_excludes_nothing(dtype: torch.dtype) -> None:
    value = torch.randn(2, 4, 7, 8)
    value[:, :, 3] = 0.0
    value = value.to(dtype).requires_grad_()
    plain = output(ga.XSAConfig(exclusion=0.0), "eager", value)
    out = output(ga.XSAConfig(trainable=("exclusion",)), "eager", value)
    assert torch.equal(out[:, :, 3], plain[:, :, 3])
    out.float().square().sum().backward()
    assert value.grad is not None
    assert value.grad.isfinite().all()


@pytest.mark.parametrize("exclusion", [0.0, 0.4, -30.0])
def test_a_bounded_exclusion_is_the_tangent(exclusion: float) -> None:
    value = torch.randn(2, 4, 7, 8).double()
    bounded = ga.XSAConfig(exclusion=exclusion, bounded=True)
    plain = ga.XSAConfig(exclusion=math.tanh(exclusion))
    torch.testing.assert_close(output(bounded, "sdpa", value), output(plain, "sdpa", value))
    learned = dataclasses.replace(bounded, trainable=("exclusion",)).build(4).double()
    inputs = inputs_of(*(x.double() for x in states(4, 7)[:2]), None, False)
    assert torch.autograd.gradcheck(
        lambda _: learned(make("eager", inputs), value), tuple(learned.parameters())
    )
    with refused("bounded", "'yes'", "True or False"):
        ga.XSAConfig(bounded="yes")


# Shaped attention and AttnScale


def test_centred_attention_takes_the_mean_out() -> None:
    assert ga.ShapedConfig.centred() == ga.ShapedConfig(trainable=("gamma",))
    paper = ga.ShapedConfig.centred(gamma=1.0, trainable=(), layers=(0,))
    assert (paper.trainable, paper.layers) == ((), (0,))
    value = torch.randn(2, 4, 7, 8).double()
    plain = output(ga.ShapedConfig.centred(), "eager", value)
    centred = output(paper, "eager", value)
    torch.testing.assert_close(centred, plain - value.mean(-2, keepdim=True))


def ones(*lengths: int) -> Tensor:
    return torch.ones(*lengths, dtype=torch.bool)


MASKS = {
    "left": ones(7, 7).tril() & (torch.arange(7) > 2),
    "right": ones(7, 7) & (torch.arange(7) < 4),
    "window": ones(7, 7).tril() & ones(7, 7).triu(-2),
    "full": ones(7, 7) & (torch.arange(7) != 4)[:, None],
    "new tokens": ones(3, 7).tril(4),
}
HIDDEN = (False, -torch.inf, "least", -1e9, -1e4)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("kind", MASKS)
def test_uniform_attention_is_the_mean_of_what_a_token_may_see(
    kind: str, hidden: object, backend: str
) -> None:
    """However a mask hides, with a position bias as additive masks have it, and under dropout."""
    seen = MASKS[kind].expand(2, 4, -1, -1)
    rows, keys = seen.shape[-2:]
    every = torch.randn(2, 4, keys, 8).half()
    expected = torch.zeros(2, 4, rows, 8, dtype=torch.float64)
    for row in range(rows):
        if seen[0, 0, row].any():
            expected[:, :, row] = every[:, :, seen[0, 0, row]].double().mean(-2)
    for dtype in (torch.float64, torch.float32, torch.float16):
        mask = seen
        if hidden is not False:
            low = LEAST[dtype] if hidden == "least" else hidden
            bias = 8 * torch.randn(2, 4, rows, keys, dtype=torch.float64)
            mask = (bias + bias.new_zeros(()).masked_fill(~seen, low)).to(dtype)
        query, key = (torch.randn(2, 4, n, 8, dtype=dtype) for n in (rows, keys))
        attend = make(backend, inputs_of(query, key, mask, False, dropout=0.5))
        attend.every_value = every.to(dtype)  # as with a cache
        got = uniform(attend, attend.every_value[:, :, -rows:])
        assert error(got, expected) < 4 * torch.finfo(dtype).eps


def test_the_papers_start_of_shaped_attention_is_the_identity() -> None:
    """Queries that are zero, as the paper's are at first: A is U."""
    _, key, value = states(4, 7)
    for causal in (False, True):
        attend = make("sdpa", inputs_of(torch.zeros_like(key), key, None, causal))
        got = ga.ShapedConfig.simplified().build(4)(attend, value)
        torch.testing.assert_close(got, value)
    assert ga.ShapedConfig.simplified(gamma=0.5, trainable=()) == ga.ShapedConfig(
        1.0, 1.0, 0.5, trainable=()
    )


def test_attnscale_is_shaped_attention_of_tied_scalars() -> None:
    value, mask = torch.randn(2, 4, 7, 8), mask_of("left", 4, 7)
    got = output(ga.AttnScaleConfig(omega=0.3), "sdpa", value, mask)
    expected = output(ga.ShapedConfig(0.0, 1.3, 0.3), "sdpa", value, mask)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "config",
    [ga.ShapedConfig(), ga.AttnScaleConfig(), ga.SinkConfig(), ga.TemperatureConfig()],
)
def test_arguments_of_unknown_meaning_are_refused(config: ga.VariantConfig) -> None:
    """They may hide keys, and then U is not known; nor can the softmax be changed from outside."""
    query, key, _ = states(4, 7)
    inputs = inputs_of(query, key, None, False)
    inputs = dataclasses.replace(inputs, unknown=("block_table",))
    with refused("backend", "auto", "delegate, for filters that have it", "block_table"):
        choose("auto", config.build(4).backends, inputs)


@pytest.mark.parametrize(
    "config",
    [
        *(ga.ShapedConfig(), ga.LASERConfig(), ga.XSAConfig()),
        *(ga.SinkConfig(), ga.TemperatureConfig()),
    ],
)
def test_a_class_that_shows_its_matrix_alone_is_refused(config: ga.VariantConfig) -> None:
    model = models.build("deberta-v2")
    with refused("config", type(config).__name__, "linear in the values", "A alone"):
        ga.patch_model(model, config, check=batches.inputs(model, "right"))
    assert not ga.is_patched(model)


# The sink


def sunk(inputs: AttentionInputs, value: Tensor, backend: str, start: float = 0.7) -> Tensor:
    """Its output, with a learned sink of this size."""
    graph_filter = ga.SinkConfig(sink=start).build(4).to(value.dtype)
    return graph_filter(make(backend, inputs), value)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["none", "causal", "left", "full", "additive_full"])
@pytest.mark.parametrize("variant", ["sink", "temperature"])
def test_every_gradient_of_what_changes_the_softmax(variant: str, kind: str, backend: str) -> None:
    """That of the fused sink is made by hand."""
    torch.manual_seed(1)
    graph_filter = built(VARIANT_CASES[variant], 2).double()
    mask = mask_of(kind, 2, 4)
    mask = mask.double() if kind.startswith("additive") else mask

    def run(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        return graph_filter(make(backend, inputs_of(query, key, mask, kind == "causal")), value)

    tensors = [x.double().requires_grad_() for x in states(2, 4, width=3)]
    assert torch.autograd.gradcheck(run, (*tensors, *graph_filter.parameters()))


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_sink_at_plain_attention_learns_by_its_slope_from_above(backend: str) -> None:
    query, key, value = (x.double() for x in states(4, 7))
    inputs = inputs_of(query, key, None, True)
    graph_filter = ga.SinkConfig().build(4).double()
    weight = torch.randn(2, 4, 7, 8).double()
    (graph_filter(make(backend, inputs), value) * weight).sum().backward()
    step = 1e-6
    ends = [sunk(inputs, value, backend, start) * weight for start in (0.0, step)]
    expected = ((ends[1] - ends[0]) / step).sum((0, 2, 3))
    torch.testing.assert_close(graph_filter.sink.grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hidden", [False, -torch.inf, -1e9, -1e4])
def test_the_temperature_counts_the_keys_that_a_mask_shows(hidden: float | bool) -> None:
    """However it hides the others, and whatever it adds to the scores."""
    seen = MASKS["window"]
    mask = seen
    if hidden is not False:
        mask = 8 * torch.randn(7, 7) + torch.zeros(()).masked_fill(~seen, hidden)
    inputs = inputs_of(*states(4, 7)[:2], mask.expand(1, 1, 7, 7), False)
    expected = torch.tensor([1, 2, 3, 3, 3, 3, 3]).log().view(1, 1, 7, 1)
    torch.testing.assert_close(log_visible(inputs), expected)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("shift", [-200.0, -70.0, 60.0, 200.0])
@pytest.mark.parametrize("start", [0.0, 0.7])
def test_scores_of_any_size_are_finite(backend: str, shift: float, start: float) -> None:
    """A mask that adds one number to all scores: softmax does not see it, a sink does."""
    query, key, value = (x.requires_grad_() for x in states(4, 7))
    mask = torch.full((1, 1, 7, 7), shift)
    inputs = inputs_of(query, key, mask, False)
    graph_filter = ga.SinkConfig(sink=start).build(4)
    out = graph_filter(make(backend, inputs), value)
    plain = make(backend, inputs)(value)
    expected = plain if shift > 0 or start == 0.0 else torch.zeros_like(plain)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6)
    out.square().sum().backward()
    for leaf in (query, key, value, *graph_filter.parameters()):
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("width", [3, 8, 13])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_the_fused_sink_takes_grouped_heads_and_values_of_another_width(
    width: int, key_heads: int
) -> None:
    query, key = torch.randn(2, 4, 7, 8).double(), torch.randn(2, key_heads, 7, 8).double()
    value = torch.randn(2, 4, 7, width).double()
    tensors = [x.requires_grad_() for x in (query, key, value)]
    inputs = inputs_of(query, key, mask_of("left", 4, 7), False)
    weight = torch.randn(2, 4, 7, width).double()
    found = []
    for backend in ("sdpa", "eager"):
        out = sunk(inputs, value, backend)
        found.append([out, *torch.autograd.grad((out * weight).sum(), tensors)])
    torch.testing.assert_close(*found)


def test_the_fused_sink_is_as_exact_as_plain_attention_under_autocast() -> None:
    """Where queries and keys are float32, of a norm, and values bfloat16."""
    query, key, value = states(4, 33)
    inputs = inputs_of(query, key, None, True)
    exact = sunk(inputs_of(query.double(), key.double(), None, True), value.double(), "eager")
    plain = make("eager", inputs)(value)
    with torch.autocast("cpu", torch.bfloat16):
        out, once = sunk(inputs, value.bfloat16(), "sdpa"), make("sdpa", inputs)(value.bfloat16())
    assert out.dtype == once.dtype == torch.bfloat16
    assert error(out, exact) <= 4 * error(once, plain.double()) + torch.finfo(torch.bfloat16).eps


def test_what_the_fused_sink_cannot_compute_keeps_the_matrix_or_is_refused() -> None:
    graph_filter = ga.SinkConfig().build(4)
    query, key, value = states(4, 7)
    bias = torch.randn(1, 4, 7, 7, requires_grad=True)
    for call in (inputs_of(query, key, None, True, 0.1), inputs_of(query, key, bias, False)):
        chosen = choose("auto", graph_filter.backends, call, fits=graph_filter.fits)
        assert chosen == "eager"
        with refused("backend", "'sdpa'", "auto or eager", "log-sum-exp"):
            graph_filter(make("sdpa", call), value)
    fitting = inputs_of(query, key, None, True)
    assert choose("auto", graph_filter.backends, fitting, fits=graph_filter.fits) == "sdpa"
    with refused("sink", "-0.1", "0 or more"):
        ga.SinkConfig(sink=-0.1)


def test_the_kept_matrix_gives_second_derivatives_and_the_fused_pass_says_that_it_does_not() -> (
    None
):
    tensors = tuple(x.double().requires_grad_() for x in states(4, 3, width=2, batch=1))
    for config in (ga.SinkConfig(sink=0.7), ga.TemperatureConfig(slope=0.3), ga.GainConfig()):
        graph_filter = config.build(4).double()

        def run(query: Tensor, key: Tensor, value: Tensor, *_: Tensor, of: Any = graph_filter):
            return of(make("eager", inputs_of(query, key, None, True)), value)

        assert torch.autograd.gradgradcheck(run, (*tensors, *graph_filter.parameters()))
    query, key, value = tensors
    out = sunk(inputs_of(query, key, None, True), value, "sdpa")
    (first,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


# LASER


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_laser_is_exact_where_a_mask_hides_the_greatest_values(
    backend: str, dtype: torch.dtype
) -> None:
    """Early tokens see values at the lower bound of the clamp, later ones those at the upper."""
    query, key, value = states(4, 9)
    value[:, :, :4] -= 200.0
    value[:, :, 4:] += 200.0
    value[:, :, 4] = 0.0
    query, key, value = (x.to(dtype) for x in (query, key, value))
    value.requires_grad_()
    out = ga.LASERConfig().build(4)(make(backend, inputs_of(query, key, None, True)), value)
    exact = value.detach().double().requires_grad_()
    matrix = attention(query.double(), key.double(), 8**-0.5, None, True)
    expected = (matrix @ (15 * torch.tanh(exact / 15)).exp()).log()
    assert error(out, expected) < 4 * torch.finfo(dtype).eps
    out[:, :, :4].sum().backward()
    expected[:, :, :4].sum().backward()
    assert exact.grad is not None
    assert value.grad is not None
    torch.testing.assert_close(value.grad.double(), exact.grad, atol=1e-6, rtol=0.1)


def test_laser_refuses_a_dtype_that_does_not_hold_its_exponentials() -> None:
    value = torch.randn(2, 4, 7, 8, dtype=torch.float16)
    with refused("clamp", "15.0", "at most 4.9 in torch.float16", "bfloat16"):
        output(ga.LASERConfig(), "sdpa", value)
    assert output(ga.LASERConfig(clamp=4.8), "sdpa", value).isfinite().all()
    with refused("clamp", "0", "a number above 0"):
        ga.LASERConfig(clamp=0)


def test_a_row_of_which_all_is_dropped_is_zero() -> None:
    """The first token of a causal model sees itself alone, which dropout takes every other time."""
    query, key, value = states(4, 7, batch=50)
    value.requires_grad_()
    attend = make("eager", inputs_of(query, key, None, True, dropout=0.5))
    out = ga.LASERConfig().build(4)(attend, value)
    assert 0 < (out[:, :, 0] == 0.0).all(-1).sum() < 200
    out.sum().backward()
    assert out.isfinite().all()
    assert value.grad is not None
    assert value.grad.isfinite().all()


def test_laser_hides_no_fault() -> None:
    value = torch.randn(1, 4, 7, 8)
    value[:, 0, 3] = torch.nan
    out = output(ga.LASERConfig(), "eager", value)
    assert out[:, 0].isnan().all()
    assert out[:, 1:].isfinite().all()


def test_laser_has_no_matrix() -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.LASERConfig())
    batch = inputs(model)
    for ask in (lambda: model(**batch, output_attentions=True), lambda: ga.diagnose(model, batch)):
        with pytest.raises(ga.GraphAttentionError, match=r"no matrix H: .*output_attentions=False"):
            ask()
    model(**batch)


# The polynomial's presets


def test_twicing_subtracts_the_second_pass() -> None:
    query, key, value = (x.double() for x in states(4, 7))
    attend = make("eager", inputs_of(query, key, None, False))
    config = ga.PolynomialConfig.twicing(layers=(0,))
    assert (config.trainable, config.layers) == ((), (0,))
    graph_filter = config.build(4).double()
    assert not list(graph_filter.parameters())
    once = attend(value)
    torch.testing.assert_close(graph_filter(attend, value), 2 * once - attend(once))


def test_page_rank_starts_at_a_geometric_sum() -> None:
    config = ga.PolynomialConfig.page_rank(0.2, 3)
    assert config.coefficients == pytest.approx((0.2, 0.16, 0.128, 0.512))
    assert config.trainable == ("coefficients",)
    assert sum(config.coefficients) == pytest.approx(1.0)
    assert ga.PolynomialConfig.page_rank(0.0, 1, trainable=()).coefficients == (0.0, 1.0)
    for a in (-0.1, 1.1, "0.1", float("nan")):
        with refused("a is"):
            ga.PolynomialConfig.page_rank(a, 3)
    for degree in (0, -2):
        with refused("coefficients", "two or more numbers"):
            ga.PolynomialConfig.page_rank(0.2, degree)


def test_an_uneven_split_is_refused() -> None:
    with refused("p", "(1.5, 2.5)", "3 heads evenly"):
        ga.PLaTConfig().build(3)
    ga.PLaTConfig(p=(1.5, 1.5, 2.5)).build(3)
