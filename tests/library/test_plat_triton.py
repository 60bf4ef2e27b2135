"""p-LaT's Triton kernels, run by Triton's interpreter on the CPU, against the naive form.

Fresh random inputs, sizes that are no multiples of a block, and memory that is NaN until written.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from edges import leading, product
from tensors import close_values, error, every, inputs_of, leaves, mask_of
from torch import Tensor

import hf_graphattn as ga
from hf_graphattn import backends
from hf_graphattn.backends import AttentionInputs, attention_matrix, choose, make
from hf_graphattn.backends.kernels import TritonAttention
from hf_graphattn.kernels import plat, plat_triton
from hf_graphattn.kernels.plat_triton import Block, precision

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="Triton is published for Linux alone"
)
NAMES = ("out", "query", "key", "values", "p")
ORDERS = 8
SMALL = (Block(16, 16), Block(16, 16))
BLOCKS = ((37, 16, 16), (45, 16, 32), (41, 32, 16))  # length, and the sides of a block
KINDS = ("none", "causal", "left", "right", "full", "additive")
HALVES = leading(1, [torch.bfloat16, torch.float16])  # each case takes the interpreter a second


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """New memory is NaN: whatever a kernel forgets to write is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def states(heads: int, length: int, width: int) -> tuple[Tensor, ...]:
    """As a model hands them: (B, N, H, D) transposed."""
    drawn = (torch.randn(2, heads, length, width) for _ in range(3))
    return tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in drawn)


def exponents(heads: int) -> Tensor:
    return torch.linspace(1.3, 2.8, heads).view(-1, 1, 1)


def naive(inputs: AttentionInputs, value: Tensor, p: Tensor, eps: float) -> Tensor:
    return plat.naive(attention_matrix(inputs), every(value), p, eps)


def results(form, tensors, mask, causal, probe, **settings) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """Output and every gradient."""
    query, key, value, p = own = leaves(*tensors)
    out = form(inputs_of(query, key, mask, causal), value, p, 1e-2, **settings)
    return [out, *torch.autograd.grad((out * probe.to(out.dtype)).sum(), own)]


def by_triton(inputs: AttentionInputs, value: Tensor, p: Tensor, eps: float, **settings) -> Tensor:  # type: ignore[no-untyped-def]
    return plat_triton.triton(inputs, every(value), p, eps, **settings)


def check(  # type: ignore[no-untyped-def]
    tensors, mask, causal, dtype=torch.float32, slack=4.0, **settings
) -> None:
    """Within `slack` times what the naive form in the same dtype loses against float64.

    One run of the naive form may lose next to nothing, by luck: the gradient of p is one number a
    head, a sum of terms of both signs. So the measure is the most that it loses over `ORDERS`
    orders of the tokens and of the width, which are the same sums in other orders of adding up;
    and never less than a unit in the last place, which is what writing the exact result down costs.
    """
    probe = torch.randn(tensors[0].shape, dtype=torch.float64)
    given = [x.to(dtype) for x in tensors[:3]] + [tensors[3]]
    precise = None if mask is None or mask.dtype == torch.bool else mask.double()
    exact = results(
        naive, [x.double() for x in given], mask if precise is None else precise, causal, probe
    )
    plain = [reordered(given, mask, causal, probe) for _ in range(ORDERS)]
    got = results(by_triton, given, mask, causal, probe, **settings)
    for i, (name, ours, expected) in enumerate(zip(NAMES, got, exact, strict=True)):
        assert expected.abs().max() > 0, name
        lost = max(error(each[i], expected) for each in plain)
        limit = max(slack * lost, torch.finfo(dtype).eps)
        assert error(ours, expected) <= limit, name


def reordered(tensors, mask, causal, probe) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """The naive form's results for the tokens, and each width, in a random order; put back."""
    query, key, value, p = tensors
    length, width = query.shape[-2:]
    tokens = torch.randperm(length)
    paired, own = torch.randperm(width), torch.randperm(width)
    if causal:
        mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    if mask is not None:
        mask = mask[..., tokens, :][..., tokens]
    moved = [x[..., tokens, :][..., order] for x, order in ((query, paired), (key, paired))]
    values, upstream = (x[..., tokens, :][..., own] for x in (value, probe))
    *states, p_gradient = results(naive, [*moved, values, p], mask, False, upstream)
    back = [order.argsort() for order in (own, paired, paired, own)]
    rows = tokens.argsort()
    return [
        *(x[..., rows, :][..., order] for x, order in zip(states, back, strict=True)),
        p_gradient,
    ]


@pytest.mark.parametrize(("length", "made", "swept", "kind"), product(BLOCKS, KINDS))
def test_forward_and_every_gradient(length: int, made: int, swept: int, kind: str) -> None:
    torch.manual_seed(length)
    tensors = [*states(2, length, 32), exponents(2)]
    blocks = (Block(made, swept), Block(swept, made))
    check(tensors, mask_of(kind, 2, length), kind == "causal", blocks=blocks)


@pytest.mark.parametrize("width", leading(2, [40, 80, 16, 64, 128]))
def test_head_widths(width: int) -> None:
    torch.manual_seed(width)
    check([*states(2, 35, width), exponents(2)], None, True, blocks=SMALL)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", leading(1, ["causal", "left", "offset"]))
def test_half_precision(dtype: torch.dtype, kind: str) -> None:
    torch.manual_seed(0)
    query, key, value = states(2, 37, 32)
    tensors = [query, key, value + (50 if kind == "offset" else 0), exponents(2)]
    # The interpreter cuts bfloat16 off where hardware rounds it.
    slack = 8.0 if dtype == torch.bfloat16 else 4.0
    check(tensors, mask_of(kind, 2, 37), kind == "causal", dtype, slack, blocks=SMALL)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", ["equal", "wide", "offset"])
def test_half_precision_is_finite(dtype: torch.dtype, value: str) -> None:
    torch.manual_seed(0)
    query, key, drawn = states(2, 19, 16)
    values = {"equal": torch.ones_like(drawn), "wide": 30 * drawn, "offset": drawn + 100}[value]
    own = leaves(*(x.to(dtype) for x in (query, key, values)), torch.tensor([1.0, 2.5]))
    out = by_triton(
        inputs_of(own[0], own[1], None, True), own[2], own[3].view(-1, 1, 1), 1e-3, blocks=SMALL
    )
    assert out.dtype == dtype
    gradients = torch.autograd.grad(out.float().sum(), own)
    assert all(torch.isfinite(x).all() for x in (out, *gradients))


@pytest.mark.parametrize("value", leading(2, ["nearly equal", "offset", "repeated tokens", "wide"]))
def test_float32_distances_do_not_cancel(value: str) -> None:
    torch.manual_seed(0)
    query, key, _ = states(2, 33, 16)
    check([query, key, close_values(value, 33, 2), exponents(2)], None, False, blocks=SMALL)


@pytest.mark.parametrize("causal", leading(1, [True, False]))
def test_fewer_heads_of_keys_and_values(causal: bool) -> None:
    """Grouped-query attention: gradients of a group's key are summed over its query heads."""
    torch.manual_seed(0)
    query, _, _ = states(6, 21, 16)
    _, key, value = states(2, 21, 16)
    p, probe = exponents(6), torch.randn(2, 6, 21, 16)
    own, other = leaves(query, key, value, p), leaves(query, key, value, p)
    # Values of the rows are one a query head: the same tensor, repeated.
    repeated = own[2].repeat_interleave(3, dim=1)
    got = plat_triton.triton(
        inputs_of(own[0], own[1], None, causal), plat.Values(own[2], repeated), own[3], 1e-2,
        SMALL,
    )  # fmt: skip
    whole = [x.repeat_interleave(3, dim=1) for x in other[1:3]]
    expected = naive(inputs_of(other[0], whole[0], None, causal), whole[1], other[3], 1e-2)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    mine = torch.autograd.grad((got * probe).sum(), own)
    for name, one, two in zip(
        NAMES[1:], mine, torch.autograd.grad((expected * probe).sum(), other), strict=True
    ):
        assert error(one, two) < 1e-5, name


def test_dropout_acts_on_the_attention_and_is_drawn_again_in_the_backward() -> None:
    """With p = 2 and the identity as values, the output is the dropped-out A: the mask is known."""
    length, rate = 27, 0.3
    torch.manual_seed(0)
    query, key, value = states(2, length, 32)
    identity = torch.eye(length, 32).expand(2, 2, length, 32)

    def run(value: Tensor, p: Tensor, query: Tensor, key: Tensor) -> Tensor:
        torch.manual_seed(7)
        inputs = inputs_of(query, key, None, False, rate)
        return by_triton(inputs, value, p, 1e-2, blocks=(Block(32, 16), Block(16, 32)))

    dropped = run(identity, torch.full((2, 1, 1), 2.0), query, key)[..., :length]
    a = attention_matrix(inputs_of(query, key, None, False))
    kept = dropped / a
    torch.testing.assert_close(kept[kept != 0], torch.full_like(kept, 1 / (1 - rate))[kept != 0])
    assert abs((kept == 0).float().mean() - rate) < 0.03
    assert not torch.equal(kept[0, 0], kept[0, 1])  # heads draw their own
    inputs = inputs_of(query, key, None, False, rate)
    once, again = (by_triton(inputs, value, exponents(2), 1e-2) for _ in range(2))
    assert not torch.equal(once, again)  # and so do calls
    mask, probe = (kept > 0) / (1 - rate), torch.randn(2, 2, length, 32)
    own, other = (leaves(query, key, value, exponents(2)) for _ in range(2))
    got = run(own[2], own[3], own[0], own[1])
    whole = attention_matrix(inputs_of(other[0], other[1], None, False)) * mask
    expected = plat.naive(whole, every(other[2]), other[3], 1e-2)
    assert error(got, expected) < 1e-5
    mine = torch.autograd.grad((got * probe).sum(), own)
    theirs = torch.autograd.grad((expected * probe).sum(), other)
    for name, one, two in zip(NAMES[1:], mine, theirs, strict=True):
        assert error(one, two) < 1e-5, name


def test_a_mask_with_a_gradient_is_refused() -> None:
    query, _, value = states(2, 19, 16)
    bias = torch.randn(1, 2, 19, 19, requires_grad=True)
    with pytest.raises(ga.GraphAttentionError, match=r"mask's gradient .* 'blockwise'"):
        by_triton(inputs_of(query, query, bias, False), value, 1.5, 1e-2)


def test_a_mask_of_the_least_number_is_as_in_the_matrix() -> None:
    """Rows hidden by float32's least number, not by infinity, attend evenly everywhere."""
    torch.manual_seed(0)
    mask = torch.zeros(2, 1, 19, 19)
    mask[0, :, :5] = torch.finfo(torch.float32).min
    check([*states(2, 19, 16), exponents(2)], mask, False, blocks=SMALL)


def test_new_tokens_against_all_keys() -> None:
    """Cached generation: fewer rows than keys, and the rows' own values."""
    torch.manual_seed(0)
    query, key, value = states(2, 21, 16)
    mask = torch.ones(21, 21, dtype=torch.bool).tril()[-4:].expand(2, 1, 4, 21)
    values = plat.Values(every=value, rows=value[:, :, -4:])
    inputs = inputs_of(query[:, :, -4:], key, mask, False)
    got = plat_triton.triton(inputs, values, exponents(2), 1e-2, SMALL)
    whole = naive(inputs_of(query, key, None, True), value, exponents(2), 1e-2)
    torch.testing.assert_close(got, whole[:, :, -4:], atol=1e-5, rtol=1e-4)


def test_it_is_an_operator_that_torch_compile_takes_whole() -> None:
    torch.manual_seed(0)
    query, key, value = leaves(*states(2, 18, 16))
    p = exponents(2).requires_grad_()

    def run(query: Tensor, key: Tensor, value: Tensor, p: Tensor) -> Tensor:
        return by_triton(inputs_of(query, key, None, True), value, p, 1e-2, blocks=SMALL)

    own = (query, key, value, p)
    expected = run(*own)
    got = torch.compile(run, fullgraph=True, backend="aot_eager")(*own)
    torch.testing.assert_close(got, expected)
    for one, two in zip(
        torch.autograd.grad(got.sum(), own), torch.autograd.grad(expected.sum(), own), strict=True
    ):
        torch.testing.assert_close(one, two)


def test_a_filter_under_the_backend() -> None:
    torch.manual_seed(0)
    query, key, value = states(4, 21, 16)
    graph_filter = ga.PLaTConfig(trainable=("p",)).build(4)
    inputs = inputs_of(query, key, None, True)
    got, expected = (graph_filter(make(name, inputs), value) for name in ("triton", "blockwise"))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    assert choose("auto", graph_filter.backends, inputs) == "blockwise"  # never on the CPU


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (torch.empty(2, 2, 5, 16, dtype=torch.float64), "dtype.*float64.*bfloat16.*blockwise"),
        (torch.empty(2, 2, 5, 160), "head width.*160.*at most 128"),
        (torch.empty(2**15, 2, 1, 1), "batch times heads.*65536.*at most 65535"),
    ],
)
def test_what_it_does_not_take_is_refused(query: Tensor, expected: str) -> None:
    inputs = inputs_of(query, query, None, False)
    with pytest.raises(ga.GraphAttentionError, match=expected):
        ga.PLaTConfig().build(2)(make("triton", inputs), query)
    assert not ga.PLaTConfig().build(2).fits("triton", inputs)


def test_the_automatic_choice_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    graph_filter = ga.PLaTConfig().build(2)
    bias, query = torch.zeros(1, 2, 5, 5), torch.empty(2, 2, 5, 16)
    with monkeypatch.context() as on_cuda:
        on_cuda.setattr(TritonAttention, "automatic", lambda *_: True)
        for x, mask, expected in (
            (query, bias, "triton"),
            (query.double(), bias, "blockwise"),
            (query, bias.clone().requires_grad_(), "blockwise"),
        ):
            inputs = inputs_of(x, x, mask, False)
            chosen = choose("auto", graph_filter.backends, inputs, fits=graph_filter.fits)
            assert chosen == expected
    monkeypatch.setattr("hf_graphattn.backends.kernels._obstacle", lambda: None)
    report = backends.explain("auto", graph_filter.backends, "cuda")
    assert report == ("triton", "auto; else blockwise, eager")
    monkeypatch.setattr("hf_graphattn.backends.kernels._obstacle", lambda: "no Triton")
    assert backends.explain("auto", graph_filter.backends, "cuda")[0] == "blockwise"


def test_products_follow_torchs_setting_of_tf32() -> None:
    """Whichever of torch's two switches is used: once the new one is, the old one raises."""
    query, key, value = states(2, 5, 16)
    before = torch.backends.fp32_precision
    try:
        torch.backends.fp32_precision = "tf32"
        assert precision() == "tf32"
        by_triton(inputs_of(query, key, None, False), value, exponents(2), 1e-2)
    finally:
        torch.backends.fp32_precision = before
    assert precision() == "ieee"


def test_without_triton_the_package_works_and_refuses_the_backend_by_name() -> None:
    program = """
import sys
sys.modules["triton"] = None  # whatever imports it fails
import torch, hf_graphattn as ga
from transformers import BertConfig, BertModel
settings = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
model = BertModel(BertConfig(**settings))
ga.patch_model(model, ga.PLaTConfig())
model(torch.arange(5)[None])
ga.unpatch_model(model)
try:
    ga.patch_model(model, ga.PLaTConfig(), backend="triton")
    model(torch.arange(5)[None])
except ga.GraphAttentionError as error:
    print(error)
"""
    settings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=settings, check=True
    )
    assert "Triton is not installed" in done.stdout


@pytest.mark.parametrize("dtype", HALVES)
def test_the_gradient_of_the_queries_does_not_see_the_rounded_output(dtype: torch.dtype) -> None:
    """An even attention: dScores = T - A0 delta is small beside delta; its rounding would show."""
    torch.manual_seed(0)
    query, key, value = (x.to(dtype) for x in states(2, 64, 32))
    given = [0.1 * query, key, value + 4, exponents(2)]
    probe = torch.randn(value.shape).to(dtype).abs().double()
    exact = results(naive, [x.double() for x in given], None, False, probe)
    got = results(by_triton, given, None, False, probe, blocks=SMALL)
    assert error(got[1], exact[1]) < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("dtype", "width", "mask"),
    [
        ("bfloat16", 64, "boolean"),
        pytest.param("float32", 128, "causal", marks=pytest.mark.full),
    ],
)
def test_they_compile_for_a_gpu_and_fit_its_shared_memory_and_registers(
    dtype: str, width: int, mask: str
) -> None:
    """The interpreter runs what the compiler may refuse. 99 KB is what small GPUs have."""
    program = Path(__file__).parents[1] / "triton_compile.py"
    settings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(program), dtype, str(width), mask]
    done = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    used = {
        name: [int(x) for x in rest] for name, *rest in map(str.split, done.stdout.splitlines())
    }
    assert set(used) == {"rows_forward", "rows_backward", "columns_backward"}
    for shared, registers, spilled in used.values():
        assert shared <= 99 * 1024
        assert registers <= 255
        assert spilled < 256  # bytes a thread: a tile spilled is more
