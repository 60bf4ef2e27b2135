"""p-LaT: blocks of rows against the whole, its several p, and its distances in low precision."""

from __future__ import annotations

import pytest
import torch
from cases import attention
from cases import plat as formula
from tensors import close_values, error, every, inputs_of, leaves, mask_of, states
from torch import Tensor

import hf_graphattn as ga
from hf_graphattn.backends import make
from hf_graphattn.kernels import plat

GLOBALS = plat.blockwise.__globals__


@pytest.fixture(params=["kept", "made again"])
def matrices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one sequence and of few heads, whose matrices the backward has or makes again."""
    monkeypatch.setitem(GLOBALS, "BLOCK_ELEMENTS", 1000)
    monkeypatch.setitem(GLOBALS, "KEPT_ELEMENTS", 0 if request.param == "made again" else 10**6)


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("kind", ["none", "causal", "left", "full", "additive"])
@pytest.mark.parametrize("block_rows", [1, 4, 62, 63, 1000])
def test_blocks_are_the_whole_forward_and_in_every_gradient(block_rows: int, kind: str) -> None:
    torch.manual_seed(0)
    probe = torch.randn(2, 2, 63, 8, dtype=torch.float64)
    mask, causal = mask_of(kind, 2, 63), kind == "causal"
    mask = mask.double() if kind == "additive" else mask
    p = torch.tensor([1.5, 2.6], dtype=torch.float64).view(2, 1, 1)
    tensors = [*(x.double() for x in states(2, 63)), p]
    results = []
    for blocks in (None, block_rows):
        query, key, value, exponent = own = leaves(*tensors)
        inputs = inputs_of(query, key, mask, causal)
        if blocks is None:
            out = plat.naive(make("eager", inputs).matrix, every(value), exponent, 1e-2)
        else:
            out = plat.blockwise(inputs, every(value), exponent, 1e-2, blocks)
        gradients = torch.autograd.grad((out * probe).sum(), own)
        results.append([out, *gradients])
    for whole, blocked in zip(*results, strict=True):
        assert whole.abs().max() > 0
        torch.testing.assert_close(blocked, whole, atol=1e-11, rtol=1e-9)


@pytest.mark.usefixtures("matrices")
def test_blocks_with_dropout_have_the_right_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward draws each block's mask again; by finite differences under one seed."""
    torch.manual_seed(0)
    monkeypatch.setitem(GLOBALS, "BLOCK_ELEMENTS", 2 * 6)  # blocks of one head
    query, key, value = leaves(*(x.double() for x in states(2, 6, width=3)))
    p = torch.tensor([1.5, 2.6], dtype=torch.float64).view(2, 1, 1).requires_grad_()

    def run(query: Tensor, key: Tensor, value: Tensor, p: Tensor) -> Tensor:
        torch.manual_seed(5)
        return plat.blockwise(inputs_of(query, key, None, False, 0.4), every(value), p, 1e-2, 2)

    dropped = run(query, key, value, p)
    undropped = plat.blockwise(inputs_of(query, key, None, False), every(value), p, 1e-2, 2)
    assert not torch.allclose(dropped, undropped)
    assert torch.autograd.gradcheck(run, (query, key, value, p), fast_mode=True)


def test_dropout_acts_on_the_attention_before_the_factor() -> None:
    torch.manual_seed(0)
    query, key, value = (x.double() for x in states(2, 6))
    inputs = inputs_of(query, key, None, False, 0.4)
    graph_filter = ga.PLaTConfig(eps=1e-2).build(2).double()
    plain = ga.PLaTConfig(p=2.0).build(2).double()
    identity = torch.eye(6, dtype=torch.float64).expand(2, 2, 6, 6)
    whole = attention(query, key, inputs.scaling, None, False)
    for backend in ("blockwise", "eager"):
        torch.manual_seed(5)
        got = graph_filter(make(backend, inputs), value)
        torch.manual_seed(5)
        dropped = plain(make(backend, inputs), identity)  # A after dropout
        assert (dropped == 0).any()
        torch.testing.assert_close(dropped, torch.where(dropped == 0, dropped, whole / 0.6))
        expected = formula(dropped, value, {"p": torch.tensor([1.5, 2.5])})
        torch.testing.assert_close(got, expected)


def test_what_blocks_keep_for_the_backward_is_linear_in_the_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(GLOBALS, "KEPT_ELEMENTS", 0)
    kept = {}
    for length in (64, 128):
        inputs_and_value = leaves(*states(2, length))
        sizes: dict[int, int] = {}
        query, key, value = inputs_and_value

        def keep(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            plat.blockwise(inputs_of(query, key, None, True), every(value), 1.5, 1e-3, 16)
        kept[length] = sum(sizes.values())
    assert kept[128] <= 2.2 * kept[64]


@pytest.mark.parametrize(
    ("elements", "groups", "rows"),
    [
        (10**6, [(3, 2)], [20, 20]),  # (sequences, heads) of each group, rows of each block
        (2 * 2 * 20 * 40, [(2, 2), (1, 2)], [20, 20]),
        (20 * 40, [(1, 1)] * 6, [20, 20]),
        (40, [(1, 1)] * 6, [16, 16, 8]),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_and_many_heads_are_split(
    elements: int,
    groups: list[tuple[int, int]],
    rows: list[int],
    causal: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []
    states_of = GLOBALS["_States"]
    block = states_of.block

    def spy(self: object, *where: slice) -> object:
        found = block(self, *where)
        sizes.append(tuple(found.weights.shape))
        return found

    monkeypatch.setattr(states_of, "block", spy)
    monkeypatch.setitem(GLOBALS, "BLOCK_ROWS", 20)
    monkeypatch.setitem(GLOBALS, "BLOCK_ELEMENTS", elements)
    query, key, value = states(2, 40, batch=3)
    plat.blockwise(inputs_of(query, key, None, causal), every(value), 1.5, 1e-3)
    keys = [sum(rows[: i + 1]) if causal else 40 for i in range(len(rows))]
    assert sizes == [(*g, r, k) for g in groups for r, k in zip(rows, keys, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_row_alone_is_that_row_of_the_whole(dtype: torch.dtype) -> None:
    """As in cached generation. By differences, which are exact for values with a large offset."""
    torch.manual_seed(0)
    query, key, _ = (x.to(dtype) for x in states(4, 63, width=16))
    value = close_values("offset", 63).to(dtype)
    value[:, :, 5] = value[:, :, -1]  # at distance 0
    p = torch.tensor([1.5, 2.6, 1.2, 3.0]).view(-1, 1, 1)
    mask = mask_of("left", 2, 63)
    assert mask is not None
    row = plat.Values(every=value, rows=value[:, :, -1:])
    results = []
    for precise in (False, True):
        own = leaves(query[:, :, -1:], key, row.every, row.rows, p)
        given = [x.double() if precise else x for x in own]
        inputs = inputs_of(given[0], given[1], mask[:, :, -1:], False)
        if precise:
            matrix = make("eager", inputs).matrix
            square = (given[3] - given[2]).square().sum(-1).unsqueeze(-2)
            out = matrix * (square + 1e-3) ** ((given[4] - 2.0) / 2.0) @ given[2]
        else:
            out = plat.blockwise(inputs, plat.Values(given[2], given[3]), given[4], 1e-3)
            assert out.dtype == dtype
        results.append([out, *torch.autograd.grad(out.double().square().sum(), own)])
    for got, expected in zip(*results, strict=True):
        assert error(got, expected.double()) <= 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("eps", [1e-3, 1e-6])
@pytest.mark.parametrize("p", [1.5, 2.5])
@pytest.mark.parametrize("kind", ["nearly equal", "offset", "repeated tokens", "wide"])
def test_float32_distances_do_not_cancel(kind: str, p: float, eps: float) -> None:
    """Against differences in float64: within 4 times what differences in float32 lose."""
    torch.manual_seed(0)
    value = close_values(kind, 63)
    query, key, _ = states(4, 63, width=16)
    matrix = make("eager", inputs_of(query, key, None, False)).matrix

    def by_differences(matrix: Tensor, value: Tensor) -> Tensor:
        square = (value[..., :, None, :] - value[..., None, :, :]).square().sum(-1)
        return matrix * (square + eps) ** ((p - 2.0) / 2.0)

    expected = by_differences(matrix.double(), value.double())
    got = plat.weights(matrix, every(value), p, eps)
    yardstick = error(by_differences(matrix, value), expected)
    assert error(got, expected) <= 4 * yardstick + torch.finfo(torch.float32).eps

    expected = expected @ value.double()
    yardstick = error(by_differences(matrix, value) @ value, expected)
    for rows in (None, 20):
        got = plat.blockwise(inputs_of(query, key, None, False), every(value), p, eps, rows)
        assert error(got, expected) <= 4 * yardstick + torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["blockwise", "eager"])
def test_half_precision_is_finite_forward_and_backward(backend: str, dtype: torch.dtype) -> None:
    """Even where all values are equal, and eps is small."""
    torch.manual_seed(0)
    for config in (ga.PLaTConfig(eps=1e-6, trainable=("p",)), ga.PLaTConfig(p=1.0)):
        for value in (torch.ones(2, 4, 7, 8), 30 * torch.randn(2, 4, 7, 8)):
            graph_filter = config.build(4).to(dtype)
            query, key, _ = states(4, 7)
            own = leaves(*(x.to(dtype) for x in (query, key, value)))
            out = graph_filter(make(backend, inputs_of(own[0], own[1], None, True)), own[2])
            assert out.dtype == dtype
            out.float().sum().backward()
            gradients = [tensor.grad for tensor in (*own, *graph_filter.parameters())]
            assert all(torch.isfinite(tensor).all() for tensor in (out, *gradients))


@pytest.mark.parametrize("shape", [(1, 4, 7, 7), (2, 1, 1, 7), (2, 4, 7, 7)])
@pytest.mark.parametrize("rows", [None, 3])
def test_an_additive_mask_has_its_gradient(rows: int | None, shape: tuple[int, ...]) -> None:
    """T5 learns its position bias through the mask."""
    torch.manual_seed(0)
    query, key, value = leaves(*(x.double() for x in states(4, 7, width=3)))
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    p = torch.linspace(1.2, 2.9, 4, dtype=torch.float64).view(-1, 1, 1).requires_grad_()

    def run(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, p: Tensor) -> Tensor:
        return plat.blockwise(inputs_of(query, key, bias, False), every(value), p, 1e-2, rows)

    assert torch.autograd.gradcheck(run, (query, key, value, bias, p), fast_mode=True)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.5])
def test_values_in_tight_clusters_lose_no_more_in_blocks(p: float) -> None:
    """Their distances are near the rounding error of the products that give them."""
    torch.manual_seed(0)
    centres, which = torch.randn(1, 4, 4, 64), torch.randint(4, (150,))
    value = centres[:, :, which] + 0.003 * torch.randn(1, 4, 150, 64)
    query, key, grad = (torch.randn(1, 4, 150, 64) for _ in range(3))

    def result(name: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [each.to(dtype).requires_grad_() for each in (query, key, value)]
        attend = make(name, inputs_of(leaves[0], leaves[1], None, False))
        out = ga.PLaTConfig(p=p).build(4)(attend, leaves[2])
        return [out, *torch.autograd.grad(out, leaves, grad.to(dtype))]

    exact = result("eager", torch.float64)
    pairs = zip(result("blockwise", torch.float32), result("eager", torch.float32), strict=True)
    for (blocks, whole), expected in zip(pairs, exact, strict=True):
        assert error(blocks, expected) < 3 * error(whole, expected)
