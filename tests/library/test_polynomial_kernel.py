"""Polynomials in A in blocks, against passes of attention and every power formed, in float64."""

from __future__ import annotations

import pytest
import torch
from cases import VARIANT_CASES, attention
from tensors import built, error, inputs_of, leaves, mask_of, states
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import hf_graphattn as ga
from hf_graphattn.backends import choose, explain, make
from hf_graphattn.kernels import combination
from hf_graphattn.kernels.polynomial import blockwise, naive

N = 37
KINDS = ("none", "causal", "left", "right", "full", "additive", "additive_full")


def polynomial(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool):  # type: ignore[no-untyped-def]
    """By blocks of 16 rows of two heads, A kept or made again; or by the kept matrix."""
    own = inputs_of(query, key, mask, causal)

    def compute(value: Tensor, scalars: list[Tensor], kept: int | None) -> Tensor:
        if kept is None:
            return naive(make("eager", own), value, scalars)
        return blockwise(own, value, scalars, 16, 2 * N * 16, kept)

    return compute


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_the_whole_forward_and_in_every_gradient(kind: str, degree: int) -> None:
    """Of a mask too, as T5's learned bias is; states as models hand them, (B, N, H, D)."""
    torch.manual_seed(degree)
    tensors = [x.double().transpose(1, 2).contiguous().transpose(1, 2) for x in states(3, N)]
    mask = mask_of(kind, 3, N)
    if kind.startswith("additive"):
        mask = mask.double().requires_grad_()
    own = leaves(*tensors)
    scalars = leaves(*torch.randn(degree + 1, 3, 1, 1, dtype=torch.float64))
    wanted = [*own, *scalars, *([mask] if kind.startswith("additive") else [])]
    upstream = torch.randn(2, 3, N, 8, dtype=torch.float64)
    compute = polynomial(own[0], own[1], mask, kind == "causal")
    expected = compute(own[2], scalars, None)
    expected = [expected, *torch.autograd.grad(expected, wanted, upstream)]
    for kept in (0, 100):
        out = compute(own[2], scalars, kept)
        for got, wish in zip(
            [out, *torch.autograd.grad(out, wanted, upstream)], expected, strict=True
        ):
            assert error(got, wish) < 1e-12


@pytest.mark.parametrize(
    ("config", "backend"),
    [(ga.GFSAConfig, "shared"), (ga.PLaTConfig, "blockwise"), (ga.SinkConfig, "sdpa")],
)
def test_second_derivatives_are_refused(config: type[ga.VariantConfig], backend: str) -> None:
    """Of a sum too, whose gradient is constant: torch would leave the kernel's derivative out."""
    x = torch.randn(2, 2, 5, 4, requires_grad=True)
    graph_filter = config().build(2)
    graph_filter.backend = backend
    out = ga.attention(x, x, x, graph_filter).sum()
    with pytest.raises(ga.GraphAttentionError, match="backend='eager'"):
        torch.autograd.grad(out, x, create_graph=True)
    graph_filter.backend = "eager"
    (first,) = torch.autograd.grad(ga.attention(x, x, x, graph_filter).sum(), x, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), x)[0].any()


@pytest.mark.parametrize("shape", [(4, 1, 1), (2, 4, N, 1)])
def test_a_combination_has_the_derivatives_of_its_formula(shape: tuple[int, ...]) -> None:
    """First, second and batched ones; the second term's heads are shared, as grouped values are."""
    torch.manual_seed(4)
    x, y = leaves(*(torch.randn(2, h, N, 3, dtype=torch.float64) for h in (4, 2)))
    c, d = leaves(*(torch.randn(s, dtype=torch.float64) for s in (shape, (4, 1, 1))))
    upstream = torch.randn(2, 2, 4, N, 3, dtype=torch.float64)
    found = []
    for out in (combination((c, x), (d, y)), c * x + d * y.repeat_interleave(2, 1)):
        batched = torch.autograd.grad(out, (c, x, d, y), upstream, True, is_grads_batched=True)
        first = torch.autograd.grad(out, (c, x, d, y), upstream[0], create_graph=True)
        squares = sum(each.square().sum() for each in first)
        found.append([out, *batched, *first, *torch.autograd.grad(squares, (c, x, d, y))])
    for got, expected in zip(*found, strict=True):
        assert error(got, expected) < 1e-12


def test_transforms_of_torch_func_make_passes() -> None:
    torch.manual_seed(5)
    x = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    graph_filter = ga.GFSAConfig(order=4, w_K=0.4).build(2)
    graph_filter.backend = "shared"

    def loss(x: Tensor) -> Tensor:
        return ga.attention(x, x, x, graph_filter).square().sum()

    each = torch.func.vmap(torch.func.grad(loss))(x)
    for own, found in zip(x, each, strict=True):
        assert error(found, torch.autograd.grad(loss(own.requires_grad_()), own)[0]) < 1e-12


class Attends(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.graph_filter = ga.GFSAConfig(order=4, w_K=0.4).build(2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ga.attention(query, key, value, self.graph_filter)


@torch.no_grad()
def test_an_exported_program_serves_lengths_that_the_kernel_takes_and_others() -> None:
    module, sizes = Attends(), {2: torch.export.Dim("length", min=4, max=4000)}
    program = torch.export.export(module, states(2, 200), dynamic_shapes=(sizes,) * 3).module()
    for length in (20, 300):
        given = states(2, length)
        assert error(program(*given), module(*given).double()) < 1e-5


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace")
@pytest.mark.parametrize("is_causal", [False, True])
def test_what_torch_traces_serves_other_batches_and_lengths(is_causal: bool) -> None:
    """The kernel's parts and blocks are one call's: in a longer one, rows would stay unwritten."""
    graph_filter = ga.GFSAConfig(order=4, w_K=0.4).build(2).requires_grad_(False)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ga.attention(query, key, value, graph_filter, is_causal=is_causal)

    traced = torch.jit.trace(attend, states(2, 256, width=64))
    for batch, length in ((2, 300), (3, 256), (1, 140)):
        given = states(2, length, width=64, batch=batch)
        assert error(traced(*given), attend(*given).double()) < 1e-5


@pytest.mark.parametrize("backend", ["auto", "shared"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(0, 150), (2, 0)])
def test_a_batch_may_be_empty(backend: str, grad: bool, batch: int, length: int) -> None:
    graph_filter = ga.GFSAConfig(order=4, w_K=0.4).build(2)
    graph_filter.backend = backend
    own = leaves(*states(2, length, batch=batch))
    with torch.set_grad_enabled(grad):
        out = ga.attention(*own, graph_filter)
    assert out.shape == own[2].shape
    if grad:
        assert torch.autograd.grad(out.sum(), own)[0].shape == own[0].shape


def test_numbers_are_scalars_without_a_gradient_and_float32_is_close() -> None:
    torch.manual_seed(1)
    own = leaves(*states(3, N))
    precise = [x.detach().double().requires_grad_() for x in own]
    found = []
    for query, key, value in (precise, own):
        out = polynomial(query, key, None, True)(value, [-0.1, 1.0, 0.3], 0)
        found.append([out, *torch.autograd.grad(out.square().sum(), (query, key, value))])
    whole = attention(precise[0], precise[1], 8**-0.5, None, True)
    once = whole @ precise[2]
    assert error(found[0][0], -0.1 * precise[2] + once + 0.3 * whole @ once) < 1e-12
    for got, expected in zip(*reversed(found), strict=True):
        assert error(got, expected) < 1e-5


def test_what_is_kept_for_the_backward_is_linear_in_the_length() -> None:
    """A under 8 states, and beyond none of it."""
    most: dict[int, int] = {}
    for length in (40, 64, 128, 256):
        query, key, value = leaves(*states(2, length))
        sizes: dict[int, int] = {}

        def keep(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            blockwise(inputs_of(query, key, None, False), value, [0.1, 1.0, 0.3])
        most[length] = sum(sizes.values()) // value.nbytes
    assert most == {40: 10, 64: 13, 128: 5, 256: 5}


def auto(config: ga.VariantConfig, query: Tensor, key: Tensor, causal: bool, dropout: float) -> str:
    graph_filter = config.build(2)
    own = inputs_of(query, key, None, causal, dropout)
    passes = graph_filter.operands + 1
    return choose("auto", graph_filter.backends, own, passes, graph_filter.fits)


@pytest.mark.parametrize(
    ("config", "length", "causal", "expected"),
    [
        (ga.GFSAConfig(), 5000, True, "shared"),
        (ga.GFSAConfig(), 2048, False, "shared"),
        (ga.GFSAConfig(), 2049, False, "sdpa"),
        (ga.PolynomialConfig(), 129, False, "shared"),
        (ga.PolynomialConfig(), 128, False, "sdpa"),
        (ga.GFSAConfig(), 33, True, "sdpa"),
        (ga.GFSAConfig(), 32, True, "eager"),  # 8 x 4: A is as large as 8 states
        (ga.GFSAConfig(order=1), 5, True, "sdpa"),
    ],
)
def test_the_automatic_choice(
    config: ga.VariantConfig,
    length: int,
    causal: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = [explain("auto", ga.GFSAConfig().build(2).backends, "cpu", n)[0] for n in (1, 2)]
    assert reported == ["sdpa", "shared"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    query = torch.empty(1, 2, length, 4)
    assert auto(config, query, query, causal, 0.0) == expected
    assert auto(config, query, query, causal, 0.1) == "eager"
    assert auto(config, query.bfloat16(), query.bfloat16(), causal, 0.0) != "shared"
    assert auto(config, query, torch.empty(1, 2, length + 1, 4), False, 0.0) != "shared"


@pytest.mark.parametrize("variant", ["gfsa", "polynomial"])
def test_dropout_and_caches_make_passes(variant: str) -> None:
    """As `sdpa` does, to the same bits."""
    graph_filter = built(VARIANT_CASES[variant], 2)
    query, key, value = states(2, 9)
    for dropout in (0.0, 0.4):
        own = inputs_of(query, key, None, True, dropout)
        found = []
        for backend in ("shared", "sdpa"):
            attend = make(backend, own)
            attend.every_value = None if dropout else value
            torch.manual_seed(3)
            found.append(graph_filter(attend, value))
        assert torch.equal(*found)


def test_gradient_checkpointing_has_the_same_gradients() -> None:
    own = leaves(*(x.double() for x in states(2, 9)))

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return blockwise(inputs_of(query, key, None, True), value, [-0.1, 1.0, 0.3], 4)

    found = [run(*own), checkpoint(run, *own, use_reentrant=False)]
    one, other = (torch.autograd.grad(out.square().sum(), own) for out in found)
    assert all(map(torch.equal, one, other))
