"""Each variant's filter against its float64 formula: outputs, every gradient, every backend."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from cases import (
    FIRST_LAYER_CASES,
    TOKEN_CASES,
    VARIANT_CASES,
    WITH_MATRIX,
    WITH_NEUTRAL,
    WITH_SCALARS,
    attention,
)
from edges import product
from tensors import built, error, inputs_of, mask_of, states
from tiny import MODELS
from torch.utils._python_dispatch import TorchDispatchMode

import hf_graphattn as ga
from hf_graphattn.backends import make

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


@pytest.mark.parametrize(("variant", "backend"), [p for p in PAIRS if p[0] in WITH_NEUTRAL])
def test_neutral_scalars_are_plain_attention(variant: str, backend: str) -> None:
    torch.manual_seed(3)
    query, key, value = (x.double() for x in states(4, 7))
    inputs = inputs_of(query, key, mask_of("right", 4, 7), False)
    got = VARIANT_CASES[variant].neutral.build(4).double()(make(backend, inputs), value)
    torch.testing.assert_close(got, make("eager", inputs).matrix @ value)


@pytest.mark.parametrize("cast", ["half", "bfloat16", "to", "to_kwarg"])
@pytest.mark.parametrize("variant", WITH_SCALARS)
def test_scalars_stay_float32_in_a_half_precision_model(variant: str, cast: str) -> None:
    model = ga.patch_model(MODELS["BERT"](), VARIANT_CASES[variant].config)
    with torch.no_grad():
        for _, parameter in ga.filter_parameters(model):
            parameter.add_(1e-4 * torch.randn_like(parameter))
    before = {name: parameter.detach().clone() for name, parameter in ga.filter_parameters(model)}
    casts = {
        "half": lambda: model.half(),
        "bfloat16": lambda: model.bfloat16(),
        "to": lambda: model.to(torch.bfloat16),
        "to_kwarg": lambda: model.to(dtype=torch.float16),
    }
    casts[cast]()
    after = dict(ga.filter_parameters(model))
    assert model.bert.embeddings.word_embeddings.weight.dtype != torch.float32
    assert len(after) == len(before) > 0
    for name, parameter in after.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, before[name])
    model.float()
    assert all(torch.equal(p, before[name]) for name, p in ga.filter_parameters(model))


def test_a_double_model_has_double_scalars() -> None:
    model = ga.patch_model(MODELS["BERT"](), VARIANT_CASES["gfsa"].config).double()
    assert {parameter.dtype for _, parameter in ga.filter_parameters(model)} == {torch.float64}
    assert model(torch.tensor([[3, 4, 5]])).logits.dtype == torch.float64


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
