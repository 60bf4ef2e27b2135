"""The Triton kernels of polynomials of degree 2, run by Triton's interpreter, against `naive`.

Fresh random inputs, sizes that are no multiples of a block, and memory that is NaN until written.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tensors import error, inputs_of, leaves, mask_of
from tiny import MODELS
from torch import Tensor

import hf_graphattn as ga
from hf_graphattn.backends import AttentionInputs, attention_matrix, make
from hf_graphattn.kernels import polynomial
from hf_graphattn.kernels.polynomial.triton import _Call, triton
from hf_graphattn.kernels.triton_call import Block

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="Triton is published for Linux alone"
)
NAMES = ("out", "query", "key", "values", "c_0", "c_1", "c_2")
SMALL = (Block(16, 16),) * 2
PASSES = ["first_pass", "second_pass", "inner_backward", "keys_backward"]


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """New memory is NaN: whatever a kernel forgets to write is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def states(length: int, width: int, heads: int = 2, batch: int = 2) -> list[Tensor]:
    return [torch.randn(batch, heads, length, width) for _ in range(3)]


def scalars(heads: int = 2) -> list[Tensor]:
    return [torch.randn(heads, 1, 1) for _ in range(3)]


def naive(inputs: AttentionInputs, value: Tensor, coefficients: list[Tensor]) -> Tensor:
    return polynomial.naive(attention_matrix(inputs).__matmul__, value, coefficients)


def results(form, tensors, mask, causal, probe, **settings) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """Output and every gradient."""
    query, key, value, *coefficients = own = leaves(*tensors)
    out = form(inputs_of(query, key, mask, causal), value, coefficients, **settings)
    return [out, *torch.autograd.grad((out * probe.to(out.dtype)).sum(), own)]


def check(  # type: ignore[no-untyped-def]
    tensors, mask, causal, dtype=torch.float32, form=triton, **settings
) -> None:
    """Within four times what the naive form in the same dtype loses against float64.

    By luck that is next to nothing, so four units in the last place of the largest number are
    allowed in any case, and 16 of float32. The gradient of a coefficient is one number a head, a
    sum of n products of both signs that may cancel, so it counts as sqrt(n) at least.
    """
    probe = torch.randn(tensors[0].shape, dtype=torch.float64)
    given = [x.to(dtype) for x in tensors[:3]] + tensors[3:]
    precise = mask if mask is None or mask.dtype == torch.bool else mask.double()
    exact = results(naive, [x.double() for x in given], precise, causal, probe)
    plain = results(naive, given, mask, causal, probe)
    got = results(form, given, mask, causal, probe, **settings)
    least = (16 if dtype == torch.float32 else 4) * torch.finfo(dtype).eps
    for name, ours, theirs, expected in zip(NAMES, got, plain, exact, strict=True):
        largest = expected.abs().max()
        assert largest > 0, name
        if name.startswith("c_"):
            largest = torch.maximum(largest, torch.tensor(probe[:, 0].numel() ** 0.5))
        limit = max(4 * (theirs - expected).abs().max(), least * largest)
        assert (ours - expected).abs().max() <= limit, name


EVEN, WIDE, TALL = (21, (16, 16)), (35, (16, 32)), (41, (32, 16))  # tokens, block


@pytest.mark.parametrize(
    ("kind", "size", "deterministic"),
    [
        *(("none", size, False) for size in (EVEN, WIDE, TALL)),
        *(("causal", size, False) for size in (EVEN, WIDE, TALL)),
        ("causal", WIDE, True),
        ("left", EVEN, False),
        ("right", WIDE, False),
        ("full", EVEN, True),
        ("additive", TALL, False),
    ],
)
def test_forward_and_every_gradient(
    kind: str, size: tuple[int, tuple[int, int]], deterministic: bool
) -> None:
    length, block = size
    tensors = [*states(length, 16, heads=1), *scalars(heads=1)]
    settings = {"blocks": (Block(*block),) * 2, "deterministic": deterministic}
    check(tensors, mask_of(kind, 1, length), kind == "causal", **settings)


def without_a_block(inputs: AttentionInputs, value: Tensor, coefficients: list[Tensor]) -> Tensor:
    kept = torch.ones(inputs.query.shape[2], inputs.query.shape[2])
    kept[16:32, :16] = 0
    matrix = (attention_matrix(inputs) * kept).to(value.dtype)
    return polynomial.naive(matrix.__matmul__, value, coefficients)


def off(x: Tensor) -> Tensor:
    """The same number, whose gradient is wrong by a ten-thousandth."""
    return x.detach() + 1.0001 * (x - x.detach())


FAULTS: dict[str, Callable[..., Tensor]] = {
    "a factor": lambda inputs, value, c: 1.0001 * naive(inputs, value, c),
    "c_1": lambda inputs, value, c: naive(inputs, value, [c[0], 1.0001 * c[1], c[2]]),
    "the gradient of c_2": lambda inputs, value, c: naive(inputs, value, [c[0], c[1], off(c[2])]),
    "the gradient of the values": lambda inputs, value, c: naive(inputs, off(value), c),
    "a missing block": without_a_block,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_small_fault_is_noticed(fault: str) -> None:
    """What `check` lets through is rounding."""
    tensors = [*states(35, 16), *scalars()]
    check(tensors, None, True, form=naive)
    with pytest.raises(AssertionError, match="assert"):
        check(tensors, None, True, form=FAULTS[fault])


@pytest.mark.parametrize("width", [16, 40, 64, 128])
def test_head_widths_at_the_default_block(width: int) -> None:
    check([*states(39, width, batch=1), *scalars()], None, True, deterministic=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["causal", "left"])
def test_half_precision(dtype: torch.dtype, kind: str) -> None:
    tensors = [*states(29, 32, heads=1), *scalars(heads=1)]
    settings = {"blocks": SMALL, "deterministic": kind == "left"}
    check(tensors, mask_of(kind, 1, 29), kind == "causal", dtype, **settings)


@pytest.mark.parametrize("deterministic", [False, True])
def test_fewer_heads_of_keys_and_values(deterministic: bool) -> None:
    """Grouped-query attention: gradients of a group's key are summed over its query heads."""

    def repeated(inputs: AttentionInputs, value: Tensor, coefficients: list[Tensor]) -> Tensor:
        key, every = (x.repeat_interleave(2, dim=1) for x in (inputs.key, value))
        return naive(inputs_of(inputs.query, key, None, True), every, coefficients)

    query = torch.randn(1, 4, 17, 16)
    tensors = [query, *states(17, 16, batch=1)[1:], *scalars(4)]
    probe = torch.randn_like(query).double()
    got = results(triton, tensors, None, True, probe, blocks=SMALL, deterministic=deterministic)
    exact = results(repeated, [x.double() for x in tensors], None, True, probe)
    for name, ours, expected in zip(NAMES, got, exact, strict=True):
        assert error(ours, expected) < 4e-6, name


@pytest.mark.parametrize("shape", [(1, 2, 19, 19), (2, 1, 1, 19)])
def test_an_additive_mask_has_its_gradient(shape: tuple[int, ...]) -> None:
    query, key, value = states(19, 16)
    bias, probe, coefficients = torch.randn(shape), torch.randn(2, 2, 19, 16), scalars()
    gradients = []
    for form, dtype in ((triton, torch.float32), (naive, torch.float64)):
        own = bias.to(dtype).requires_grad_()
        given = [x.to(dtype) for x in (query, key, value, *coefficients)]
        out = form(inputs_of(given[0], given[1], own, False), given[2], given[3:])
        gradients.append(torch.autograd.grad((out * probe).sum(), own)[0])
    assert error(*gradients) < 4e-6


def test_a_mask_of_the_least_number_is_as_in_the_matrix() -> None:
    """Rows hidden by float32's least number, not by infinity, attend evenly everywhere."""
    mask = torch.zeros(2, 1, 19, 19)
    mask[0, :, :5] = torch.finfo(torch.float32).min
    check([*states(19, 16, heads=1), *scalars(heads=1)], mask, False, blocks=SMALL)


def test_large_scores_lose_no_digits() -> None:
    """Beside a score of 1e5 the logarithm of a sum of exponentials would."""
    query, key, value = states(19, 16, heads=1)
    check([1e-3 * query, key, value, *scalars(heads=1)], torch.full((1, 1, 19, 19), 1e5), False)


def test_states_with_any_strides_and_numbers_as_coefficients() -> None:
    """As a model hands them: (B, N, H, D) transposed, and slices of one projection."""
    joint = torch.randn(2, 23, 3, 2, 16)
    query, key, value = (joint[:, :, i].transpose(1, 2) for i in range(3))
    value = value.mT.contiguous().mT
    assert not query.is_contiguous()
    assert value.stride(-1) != 1
    inputs, coefficients = inputs_of(query, key, None, True), [0.3, 1.0, -0.7]
    got, expected = (form(inputs, value, coefficients) for form in (triton, naive))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_dq_is_added_up_in_one_order_where_torch_is_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []
    launch = _Call.launch

    def recorded(self, name, *rest, **constants):  # type: ignore[no-untyped-def]
        ran.append(name)
        launch(self, name, *rest, **constants)

    monkeypatch.setattr(_Call, "launch", recorded)
    query, key, value = leaves(*states(5, 16))
    for asked in (True, False):
        ran.clear()
        torch.use_deterministic_algorithms(asked)
        triton(inputs_of(query, key, None, True), value, [0.0, 1.0, 0.5]).sum().backward()
        assert ran == PASSES + ["rows_backward"] * asked


def test_it_is_an_operator_that_torch_compile_takes_whole() -> None:
    own = leaves(*states(5, 16, heads=1), *scalars(heads=1))

    def run(query: Tensor, key: Tensor, value: Tensor, *coefficients: Tensor) -> Tensor:
        return triton(inputs_of(query, key, None, True), value, coefficients, SMALL)

    expected = run(*own)
    got = torch.compile(run, fullgraph=True, backend="aot_eager")(*own)
    torch.testing.assert_close(got, expected)
    mine, theirs = (torch.autograd.grad(out.sum(), own) for out in (got, expected))
    for one, two in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"query": torch.empty(2, 2, 5, 16).double()}, "dtype.*float64.*bfloat16.*sdpa"),
        ({"query": torch.empty(2, 2, 5, 160)}, "head width.*160.*at most 128"),
        ({"query": torch.empty(2, 2, 1, 16)}, "number of keys.*5.*that of the queries, 1"),
        ({"dropout": 0.1}, "attention dropout.*0.1.*allowed: 0"),
        ({"value": torch.empty(2, 2, 5, 8)}, "width of the values.*8.*that of the queries, 16"),
        ({"coefficients": [1.0, 0.5]}, "degree of a polynomial.*1.*allowed: 2"),
        (
            {name: torch.empty(2**15, 2, 1, 1) for name in ("query", "key", "value")},
            "batch times heads.*65536.*at most 65535",
        ),
    ],
)
def test_what_it_does_not_take_is_refused(changed: dict[str, object], expected: str) -> None:
    query, key, value = states(5, 16)
    given = {"query": query, "key": key, "value": value, "dropout": 0.0}
    given |= {"coefficients": [0.0, 1.0, 0.5]} | changed
    inputs = inputs_of(given["query"], given["key"], None, True, given["dropout"])
    with pytest.raises(ga.GraphAttentionError, match=expected):
        triton(inputs, given["value"], given["coefficients"])


def test_a_filter_under_the_backend_which_auto_does_not_take() -> None:
    query, key, value = states(21, 16)
    graph_filter = ga.GFSAConfig(order=4, w_0=0.3, w_K=-0.2, trainable=("w_K",)).build(2)
    inputs = inputs_of(query, key, None, True)
    got, expected = (graph_filter(make(name, inputs), value) for name in ("triton", "sdpa"))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    on_gpu = [name for name in graph_filter.backends if name in ("sdpa", "triton")]
    assert on_gpu == ["sdpa", "triton"]  # in the order in which "auto" prefers them


def test_cached_generation_is_refused() -> None:
    model = ga.patch_model(MODELS["GPT-2"](), ga.GFSAConfig(w_K=0.2), backend="triton").eval()
    batch = torch.arange(5)[None]
    assert model(batch, use_cache=False)[0].isfinite().all()
    with pytest.raises(ga.GraphAttentionError, match=r"no A x of new tokens.*use_cache=False"):
        model(batch, use_cache=True)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("bfloat16 64 causal", PASSES),
        ("float16 16 additive --deterministic", [*PASSES, "rows_backward"]),
    ],
)
def test_they_compile_for_a_gpu_and_fit_its_shared_memory(call: str, names: list[str]) -> None:
    """The interpreter runs what the compiler may refuse. 99 KB is what small GPUs have."""
    program = Path(__file__).parents[1] / "triton_compile.py"
    settings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(program), "polynomial", *call.split()]
    done = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    used = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, *_ in used] == names
    assert max(int(shared) for _, shared, *_ in used) <= 99 * 1024
