"""Calls of the attention function, of any shape, mask and dtype, against the float64 formulas."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import VARIANT_CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import REFUSED, outcome
from tensors import built
from torch import Tensor, nn

from hf_graphattn import GraphAttentionError, backends
from hf_graphattn.interface.graph_attn import NAME, graph_attn

# What is lost at most: of the largest number of the output, or of all gradients.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 16 * torch.finfo(torch.float16).eps,
    torch.bfloat16: 16 * torch.finfo(torch.bfloat16).eps,
}
LEAST = torch.finfo(torch.float32).min


def runs(name: str) -> bool:
    try:
        backends.check(name, [name])
    except GraphAttentionError:
        return False
    return True


PAIRS = [
    (variant, backend)
    for variant, case in VARIANT_CASES.items()
    for backend in ("auto", *filter(runs, case.config.build(1).backends))
    if backend != backends.DELEGATE  # which calls an architecture's own attention
]
SLOW = {"flex_attention": 10, "triton": 10}  # how many times fewer calls are drawn


@dataclass(frozen=True)
class Call:
    """What a call of the attention function is made of; tensors are drawn from `seed`.

    mask: the shape, and how hidden keys are marked: False, -inf, or the least number of float32.
    bias: the batch of a position bias. layout: how states lie in memory.
    """

    backend: str
    dtype: torch.dtype
    batch: int
    heads: int
    groups: int
    length: int
    width: int
    causal: bool
    scaling: float | None
    mask: tuple[tuple[int, ...], float | bool, float] | None
    bias: int | None
    layout: str
    extra_keys: int
    seed: int


@st.composite
def calls(draw: Any, variant: str, backend: str) -> Call:
    fewest = 1 if backend == "flex_attention" else 0  # torch's takes no empty batch under a mask
    batch, length = draw(st.integers(fewest, 3)), draw(st.integers(1, 20))
    groups, kv_heads = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(1, 3))
    heads = groups * kv_heads
    extra_keys = draw(st.sampled_from([0] * 9 + [1, 5]))
    whole = (batch, heads, length, length + extra_keys)
    shape = tuple(draw(st.sampled_from([1, size])) for size in whole)
    mask = (
        shape[draw(st.sampled_from([0, 0, 0, 1, 2])) :],
        draw(st.sampled_from([False, -torch.inf, LEAST])),
        draw(st.sampled_from([0.0, 0.2, 0.7, 1.0])),
    )
    return Call(
        backend=backend,
        dtype=draw(st.sampled_from(list(TOLERANCE))),
        batch=batch,
        heads=heads,
        groups=groups,
        length=length,
        # p-LaT takes values for equal that are nearer than their rounding; of width 1 many are. Of
        # width 1 the gradients of XSA are differences of large numbers that cancel.
        width=draw(st.integers(3 if variant in ("plat", "xsa") else 1, 9)),
        causal=draw(st.booleans()),
        scaling=draw(st.sampled_from([None, 1.0, 0.3])),
        mask=draw(st.sampled_from([None, mask, mask])),
        bias=draw(st.sampled_from([None, None, None, 1, batch])),
        layout=draw(st.sampled_from(["whole", "transposed", "strided", "expanded"])),
        extra_keys=extra_keys,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def states(call: Call, heads: int, length: int) -> Tensor:
    batch, width = call.batch, call.width
    if call.layout == "transposed":
        found = torch.randn(batch, length, heads, width).transpose(1, 2)
    elif call.layout == "strided":
        found = torch.randn(batch, heads, 2 * length, width + 1)[:, :, ::2, 1:]
    elif call.layout == "expanded":
        found = torch.randn(1, heads, length, width).expand(batch, -1, -1, -1)
    else:
        found = torch.randn(batch, heads, length, width)
    return found.to(call.dtype)


def mask_of(call: Call) -> Tensor | None:
    if call.mask is None:
        return None
    shape, hidden, share = call.mask
    hides = torch.rand(shape) < share
    if hidden == LEAST or call.bias is not None:
        # Of a row that is hidden by a finite number alone torch's fused kernels have no gradient.
        hides[..., 0] = False
    if hidden is False:
        return ~hides
    return torch.randn(shape).masked_fill(hides, hidden).to(call.dtype)


def expected(call: Call, case: Any, tensors: dict[str, Any], scalars: dict[str, Tensor]) -> Tensor:
    """The formula on (query, key, value, mask, bias), all in float64."""
    query, mask, bias = tensors["query"], tensors["mask"], tensors["bias"]
    causal = call.causal and mask is None
    key, value = (tensors[n].repeat_interleave(call.groups, 1) for n in ("key", "value"))
    if bias is not None and mask is not None:
        added = mask if mask.dtype != torch.bool else torch.zeros(()).masked_fill(~mask, LEAST)
        bias = bias + added
    scaling = call.width**-0.5 if call.scaling is None else call.scaling
    both = mask if bias is None else bias
    return case.output(query, key, scaling, both, causal, value=value, scalars=scalars)


class Layer(nn.Module):
    """An attention module, as far as the attention function knows it."""

    def __init__(self, graph_filter: nn.Module, is_causal: bool) -> None:
        super().__init__()
        self.graph_filter, self.is_causal = graph_filter, is_causal
        self.config = SimpleNamespace(_attn_implementation=NAME)


@pytest.mark.parametrize(("variant", "backend"), PAIRS)
def test_a_call_is_its_formula(variant: str, backend: str) -> None:
    @settings(max_examples=max(settings.default.max_examples // SLOW.get(backend, 1), 5))
    @given(calls(variant, backend))
    def each(call: Call) -> None:
        check(call, variant)

    each()


def check(call: Call, variant: str) -> None:
    torch.manual_seed(call.seed)
    case = VARIANT_CASES[variant]
    graph_filter = built(case, call.heads)
    graph_filter.backend = call.backend
    if call.dtype == torch.float64:
        graph_filter.double()
    keys = call.length + call.extra_keys
    tensors: dict[str, Any] = {
        "query": 2 * states(call, call.heads, call.length),
        "key": states(call, call.heads // call.groups, keys),
        "value": states(call, call.heads // call.groups, keys),
        "mask": mask_of(call),
        "bias": None
        if call.bias is None
        else torch.randn(call.bias, call.heads, call.length, keys).to(call.dtype),
    }
    learns = call.backend != "flex_attention"  # which has no backward on the CPU
    for name in ("query", "key", "value", "bias") if learns else ():
        if tensors[name] is not None:
            tensors[name].requires_grad_()
    graph_filter.requires_grad_(learns)
    layer = Layer(graph_filter, call.causal)

    def attend() -> Tensor:
        query, key, value, mask, bias = tensors.values()
        return graph_attn(layer, query, key, value, mask, scaling=call.scaling, position_bias=bias)[
            0
        ]

    got = outcome(attend)
    assert (got is REFUSED) == (call.extra_keys > 0 or refuses(call, variant)), call
    if got is REFUSED:
        return
    got = got.transpose(1, 2)
    assert got.dtype == call.dtype
    assert got.shape == (call.batch, call.heads, call.length, call.width)
    exact = {
        n: x if x is None or x.dtype == torch.bool else x.detach().double().requires_grad_()
        for n, x in tensors.items()
    }
    scalars = {n: x.detach().double().requires_grad_() for n, x in graph_filter.named_parameters()}
    wanted = expected(call, case, exact, scalars)
    compare([got], [wanted], call)
    if learns:
        upstream = torch.randn(wanted.shape, dtype=torch.float64).to(call.dtype)
        names = [name for name in ("query", "key", "value", "bias") if tensors[name] is not None]
        own = [*(tensors[name] for name in names), *graph_filter.parameters()]
        leaves = [*(exact[name] for name in names), *scalars.values()]
        compare(gradients(got, own, upstream), gradients(wanted, leaves, upstream.double()), call)


def gradients(out: Tensor, leaves: list[Tensor], upstream: Tensor) -> Any:
    """Those of an empty batch are zero, whether a formula has met the leaves or not."""
    if not out.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(out, leaves, upstream, allow_unused=True, materialize_grads=True)


def refuses(call: Call, variant: str) -> bool:
    """Whether the kernel takes no such dtype, or no learned bias."""
    if variant == "sink":
        return call.backend == "sdpa" and call.bias is not None
    beyond = call.dtype == torch.float64 or call.bias is not None
    return call.backend == "triton" and beyond


def compare(got: Any, wanted: Any, call: Call) -> None:
    largest = max([each.abs().max().item() for each in wanted if each.numel()], default=0.0)
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        error = (one.double() - other).abs().max().item() if one.numel() else 0.0
        assert error <= TOLERANCE[call.dtype] * largest, (error / largest, call)
