"""Each variant's filter against its float64 formula, and what is particular to each."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
from cases import (
    FIRST_LAYER_CASES,
    TOKEN_CASES,
    VARIANT_CASES,
    WITH_MATRIX,
    WITH_SCALARS,
    attention,
)
from edges import product
from refusals import refused
from tensors import built, error, inputs_of, mask_of, states
from tiny import MODELS, inputs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import batches, models

import hf_graphattn as ga
from hf_graphattn.backends import AttentionInputs, choose, make
from hf_graphattn.variants.shaped import uniform
from hf_graphattn.variants.temperature import log_visible

MASKS = ("none", "causal", "left", "right", "full", "additive", "additive_full")
PAIRS = [(name, backend) for name, case in VARIANT_CASES.items() for backend in case.backends]
SHAPES = ((1, 7), (4, 1), (4, 63), (6, 7))  # heads, length


@pytest.mark.parametrize(
    ("variant", "backend", "kind", "heads", "length"),
    product([(*pair, kind) for pair in PAIRS for kind in MASKS], SHAPES),
)
def test_the_filter_is_its_formula(
    variant: str, backend: str, kind: str, heads: int, length: int
) -> None:
    """float64 to 1e-9; float32 and bfloat16 to 4 times what plain attention loses there."""
    torch.manual_seed(0)
    case = VARIANT_CASES[variant]
    mask, causal = mask_of(kind, heads, length), kind == "causal"
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        graph_filter = built(case, heads)
        if dtype == torch.float64:
            graph_filter = graph_filter.double()
        query, key, value = (x.to(dtype) for x in states(heads, length))
        own = mask.to(dtype) if kind.startswith("additive") else mask
        attend = make(backend, inputs_of(query, key, own, causal))
        got = graph_filter(attend, value)
        assert got.dtype == dtype
        assert got.shape == value.shape

        exact = own.double() if kind.startswith("additive") else own
        inputs = query.double(), key.double(), query.shape[-1] ** -0.5, exact, causal
        scalars = {name: x.to(torch.float32).double() for name, x in case.start(heads).items()}
        expected = case.output(*inputs, value=value.double(), scalars=scalars)
        if dtype == torch.float64:
            assert error(got, expected) < 1e-9
        else:
            plain = make("sdpa", inputs_of(query, key, own, causal))(value)
            yardstick = error(plain, attention(*inputs) @ value.double())
            assert error(got, expected) <= 4 * yardstick + 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", ["none", "causal", "left", "additive"])
@pytest.mark.parametrize("variant", WITH_MATRIX)
def test_the_matrix_makes_the_output(variant: str, kind: str) -> None:
    """H of `output_attentions`: H V is the layer's output, in every variant."""
    torch.manual_seed(2)
    query, key, value = (x.double() for x in states(4, 7))
    graph_filter = built(VARIANT_CASES[variant], 4).double()
    mask = mask_of(kind, 4, 7)
    mask = mask.double() if kind == "additive" else mask
    attend = make("eager", inputs_of(query, key, mask, kind == "causal"))
    matrix = graph_filter.matrix(attend, value)
    assert matrix.shape == (2, 4, 7, 7)
    torch.testing.assert_close(matrix @ value, graph_filter(attend, value))


@pytest.mark.parametrize("variant", WITH_SCALARS)
def test_scalars_stay_float32_in_a_half_precision_model(variant: str) -> None:
    model = ga.patch_model(MODELS["BERT"](), VARIANT_CASES[variant].config)
    with torch.no_grad():
        for _, parameter in ga.filter_parameters(model):
            parameter.add_(1e-4 * torch.randn_like(parameter))
    before = {name: parameter.detach().clone() for name, parameter in ga.filter_parameters(model)}
    for cast in (model.half, model.bfloat16, lambda: model.to(dtype=torch.float16), model.float):
        cast()
        after = dict(ga.filter_parameters(model))
        assert len(after) == len(before) > 0
        assert {parameter.dtype for parameter in after.values()} == {torch.float32}
        assert all(torch.equal(parameter, before[name]) for name, parameter in after.items())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_empty_tensors_keep_the_fixed_scalars_of_the_heads(device: str) -> None:
    """No state dict has them, so that nothing else would bring them back."""
    torch.manual_seed(0)
    model = ga.patch_model(MODELS["BERT"](), ga.PLaTConfig(p=(1.5, 2.5))).eval()
    ids, weights = torch.arange(7)[None], copy.deepcopy(model.state_dict())
    others = {n: b.clone() for n, b in model.named_buffers() if "graph_filter" not in n}
    assert not any("graph_filter" in name for name in weights)
    expected = model(ids)[0]
    model.to(device).to_empty(device="cpu").load_state_dict(weights)
    for name, buffer in others.items():
        model.get_buffer(name).copy_(buffer)
    assert model(ids)[0].equal(expected)


def test_fused_passes_are_unbiased_and_the_kept_matrix_is_not_quite() -> None:
    """Dropout, 20 000 draws, to 5 standard errors.

    Two independent masks: E[A' A''] = A A. One mask twice: where both factors are the same entry,
    A_xx, its square has the mean A_xx^2 / (1 - rate). Each token looks at itself most, so that
    this is far from A_xx^2.
    """
    torch.manual_seed(4)
    draws, length, rate = 20_000, 4, 0.3
    query = key = 2.0 * torch.eye(length)[None, None]
    value = torch.randn(1, 1, length, length)
    matrix = make("eager", inputs_of(query, key, None, False)).matrix
    graph_filter = ga.GFSAConfig(order=4, w_K=0.5, trainable=()).build(1)
    undropped = graph_filter(make("eager", inputs_of(query, key, None, False)), value)
    twice = torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1) ** 2) @ value * rate / (1 - rate)
    many = [x.expand(draws, -1, -1, -1) for x in (query, key, value)]
    for backend, expected in (("sdpa", undropped), ("eager", undropped + 3 * 0.5 * twice)):
        attend = make(backend, inputs_of(many[0], many[1], None, False, rate))
        drawn = graph_filter(attend, many[2])
        standard_error = drawn.std(0, keepdim=True) / draws**0.5
        assert (standard_error > 0).all()
        assert ((drawn.mean(0, keepdim=True) - expected).abs() <= 5 * standard_error).all()
        if backend == "eager":
            assert ((drawn.mean(0, keepdim=True) - undropped).abs() > 5 * standard_error).any()


class Copies(TorchDispatchMode):
    """Counts what copies states whole."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = function.overloadpacket.__name__
        if name in ("clone", "copy_", "_to_copy", "contiguous"):
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def test_nothing_is_copied_between_the_passes_of_gfsa() -> None:
    """States as a model hands them, (B, N, H, D) transposed: forward and backward."""
    tensors = [torch.randn(2, 31, 4, 16).requires_grad_() for _ in range(3)]
    query, key, value = (x.transpose(1, 2) for x in tensors)
    graph_filter = ga.GFSAConfig(order=4, w_0=0.1, w_K=0.2).build(4)
    upstream = torch.randn(2, 31, 4, 16).transpose(1, 2)
    with Copies() as seen:
        out = graph_filter(make("sdpa", inputs_of(query, key, None, True)), value)
        out.backward(upstream)
    assert seen.names == []


@pytest.mark.parametrize("name", ga.variant_configs())
def test_a_variant_knows_where_it_is_plain(name: str) -> None:
    """The tables of the tests have it from the papers."""
    cases = {**VARIANT_CASES, **TOKEN_CASES}
    if name not in cases:
        first_layer = FIRST_LAYER_CASES[name]
        plain = first_layer.config.at_neutral()
        scalars = {scalar: torch.tensor(getattr(plain, scalar)) for scalar in plain.scalars}
        matrix, value, first = torch.rand(3, 4, 4)
        assert torch.equal(first_layer.formula(matrix, value, first, scalars), matrix @ value)
        return
    plain, case = cases[name].config.at_neutral(), cases[name]
    assert (plain is None) == (case.neutral is None)
    for scalar in case.config.scalars if plain else ():
        value, known = getattr(plain, scalar), getattr(case.neutral, scalar)
        if name == "polynomial":
            assert value == (0.0, 1.0, *[0.0] * (len(value) - 2))
        else:
            assert {*value} == {known} if isinstance(value, tuple) else value == known


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (ga.LaplacianConfig(), r"Start at step=0\.0, with trainable=\('step',\)"),
        (ga.PLaTConfig(), r"Start at p=\(2\.0, 2\.0\)"),
        (ga.LASERConfig(), "No setting of it is plain"),
        (ga.GFSAConfig(w_0=-0.01), ""),
    ],
)
def test_a_far_start_on_a_pretrained_model_is_warned_of(
    config: ga.VariantConfig, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    untrained = MODELS["BERT"]()
    untrained.save_pretrained(tmp_path)
    cls = type(untrained)
    ga.patch_model(untrained, config)
    assert not caplog.records
    patched = ga.patch_model(cls.from_pretrained(tmp_path), config)
    assert re.search(says, caplog.text) if says else not caplog.records
    assert len(caplog.records) == bool(says)
    patched.save_pretrained(tmp_path / "patched")
    caplog.clear()
    ga.from_pretrained(tmp_path / "patched")
    assert not caplog.records


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_xsa_of_values_of_any_size(dtype: torch.dtype) -> None:
    """In float16 the square of a norm of 300 would be infinite; a value of 0 excludes nothing."""
    value = 300 * torch.randn(2, 4, 7, 8)
    value[:, :, 3] = 0.0
    value = value.to(dtype).requires_grad_()
    plain = output(ga.XSAConfig(exclusion=0.0), "eager", value)
    out = output(ga.XSAConfig(trainable=("exclusion",)), "eager", value)
    along = (out.double() * torch.nn.functional.normalize(value.double(), dim=-1)).sum(-1)
    assert (along.abs() < 4 * torch.finfo(dtype).eps * plain.double().norm(dim=-1)).all()
    assert torch.equal(out[:, :, 3], plain[:, :, 3])
    (out.float() / 300).square().sum().backward()
    assert value.grad.isfinite().all()


def test_a_bounded_exclusion_is_the_tangent() -> None:
    value = torch.randn(2, 4, 7, 8).double()
    bounded = ga.XSAConfig(exclusion=-0.4, bounded=True, trainable=("exclusion",))
    plain = ga.XSAConfig(exclusion=math.tanh(-0.4))
    torch.testing.assert_close(output(bounded, "sdpa", value), output(plain, "sdpa", value))
    with refused("bounded", "'yes'", "True or False"):
        ga.XSAConfig(bounded="yes")


# Presets


def test_presets() -> None:
    value = torch.randn(2, 4, 7, 8).double()
    plain = output(ga.ShapedConfig.centred(), "eager", value)
    centred = output(ga.ShapedConfig.centred(gamma=1.0, trainable=()), "eager", value)
    torch.testing.assert_close(centred, plain - value.mean(-2, keepdim=True))
    _, key, value = states(4, 7)
    attend = make("sdpa", inputs_of(torch.zeros_like(key), key, None, True))
    # Queries that are zero, as the paper's are at first: A is U.
    got = ga.ShapedConfig.simplified().build(4)(attend, value)
    torch.testing.assert_close(got, value)
    twicing = ga.PolynomialConfig.twicing(layers=(0,))
    assert (twicing.coefficients, twicing.trainable) == ((0.0, 2.0, -1.0), ())
    assert twicing.layers == (0,)
    config = ga.PolynomialConfig.page_rank(0.2, 3)
    assert config.coefficients == pytest.approx((0.2, 0.16, 0.128, 0.512))
    for a, degree in ((-0.1, 3), (1.1, 3), ("0.1", 3), (0.2, 0)):
        with refused("a is" if degree else "coefficients"):
            ga.PolynomialConfig.page_rank(a, degree)


# Shaped attention and AttnScale


def ones(*lengths: int) -> Tensor:
    return torch.ones(*lengths, dtype=torch.bool)


SEEN = {
    "left": ones(7, 7).tril() & (torch.arange(7) > 2),
    "window": ones(7, 7).tril() & ones(7, 7).triu(-2),
    "full": ones(7, 7) & (torch.arange(7) != 4)[:, None],
    "new tokens": ones(3, 7).tril(4),
}


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("hidden", [False, -torch.inf, "least", -1e4])
@pytest.mark.parametrize("kind", SEEN)
def test_uniform_attention_is_the_mean_of_what_a_token_may_see(
    kind: str, hidden: object, backend: str
) -> None:
    """However a mask hides, with a position bias as additive masks have it, and under dropout."""
    seen = SEEN[kind].expand(2, 4, -1, -1)
    rows, keys = seen.shape[-2:]
    every = torch.randn(2, 4, keys, 8).half()
    share = seen.double() / seen.double().sum(-1, keepdim=True).clamp_min(1)
    for dtype in (torch.float64, torch.float16):
        mask = seen
        if hidden is not False:
            low = LEAST[dtype] if hidden == "least" else hidden
            bias = 8 * torch.randn(2, 4, rows, keys, dtype=torch.float64)
            mask = (bias + bias.new_zeros(()).masked_fill(~seen, low)).to(dtype)
        query, key = (torch.randn(2, 4, n, 8, dtype=dtype) for n in (rows, keys))
        attend = make(backend, inputs_of(query, key, mask, False, dropout=0.5))
        attend.every_value = every.to(dtype)  # as with a cache
        got = uniform(attend, attend.every_value[:, :, -rows:])
        assert error(got, share @ every.double()) < 4 * torch.finfo(dtype).eps


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
    seen = SEEN["window"]
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


def test_the_fused_sink_takes_grouped_heads_and_values_of_another_width() -> None:
    query, key = torch.randn(2, 4, 7, 8).double(), torch.randn(2, 2, 7, 8).double()
    for width in (3, 13):
        value = torch.randn(2, 4, 7, width).double()
        tensors = [x.requires_grad_() for x in (query, key, value)]
        inputs = inputs_of(query, key, mask_of("left", 4, 7), False)
        found = []
        for backend in ("sdpa", "eager"):
            out = sunk(inputs, value, backend)
            found.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
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


def test_the_kept_matrix_has_second_derivatives_of_the_sink() -> None:
    tensors = tuple(x.double().requires_grad_() for x in states(4, 3, width=2, batch=1))
    graph_filter = ga.SinkConfig(sink=0.7).build(4).double()

    def run(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        return graph_filter(make("eager", inputs_of(query, key, None, True)), value)

    assert torch.autograd.gradgradcheck(run, (*tensors, *graph_filter.parameters()))


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
