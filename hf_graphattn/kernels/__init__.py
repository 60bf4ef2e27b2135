"""Kernels of variants that fused attention cannot compute: a reference (`naive`) beside each.

Here is what they share: how a variant names one, sums of states, and how a call is divided. Axes
are named as in `backends`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hf_graphattn.backends import AttentionInputs, one_per_query_head
from hf_graphattn.errors import GraphAttentionError

Scalar = float | Tensor  # a number, (H, 1, 1) or (B, H, N, 1)
Term = tuple[Scalar, Tensor]  # times (B, H, N, D)
Part = tuple[slice, slice]  # sequences of the batch, and heads


@dataclass(frozen=True)
class Kernel:
    """One way to compute a variant that fused attention cannot compute.

    Attributes:
        compute: gives the filter's output; the variant's arguments follow the inputs.
        fits: tells whether "auto" may use the kernel for this call.
    """

    compute: Callable[..., Tensor]
    fits: Callable[[AttentionInputs], bool] = lambda inputs: True


def refuse_second_derivatives(kernel: str) -> None:
    """Refuse to be differentiated, in a backward that is written by hand.

    torch's `once_differentiable` lets a gradient that is constant pass, and its derivative is lost.

    Raises:
        GraphAttentionError: the gradients are to have a graph.
    """
    if torch.is_grad_enabled():
        raise GraphAttentionError(
            f"backend {kernel!r} has first derivatives alone, and the backward was called with "
            f"create_graph=True. Patch with backend='eager'."
        )


def combination(first: Term, *others: Term) -> Tensor:
    """`c_1 x_1 + c_2 x_2 + ...` in the dtype of x_1, by one elementwise pass for each term.

    Half precision times a float32 scalar is computed in float32 and rounded once, at the end.

    Args:
        first: c_1 and x_1: a number, (H, 1, 1) or (B, H, N, 1), and (B, H, N, D).
        others: the other terms, alike; query heads may share theirs.

    Returns:
        The sum, (B, H, N, D).
    """
    terms = (first, *((scalar, one_per_query_head(x, first[1])) for scalar, x in others))
    learns = torch.is_grad_enabled() and any(
        isinstance(scalar, Tensor) and scalar.requires_grad for scalar, _ in terms
    )
    return _Combination.apply(*chain(*terms)) if learns and not traced() else _sum(*terms)


def traced() -> bool:
    """Whether torch compiles, traces or transforms the call: no gradient is then made by hand."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


def _sum(first: Term, *others: Term) -> Tensor:
    scalar, x = first
    out = x if isinstance(scalar, float) and scalar == 1.0 else scalar * x
    for scalar, other in others:
        if isinstance(scalar, Tensor):
            out = torch.addcmul(out, other, scalar)
        elif scalar != 0.0:
            out = torch.add(out, other, alpha=scalar)
    return out.to(x.dtype)


class _Combination(torch.autograd.Function):
    """`_sum` of c_1, x_1, c_2, x_2 ...; autograd's own backward takes twice as many passes."""

    @staticmethod
    def forward(ctx: Any, *terms: Any) -> Tensor:
        ctx.save_for_backward(*(term for term in terms if isinstance(term, Tensor)))
        ctx.numbers = [None if isinstance(term, Tensor) else term for term in terms]
        return _sum(*zip(terms[::2], terms[1::2], strict=True))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, grads = iter(ctx.saved_tensors), []
        terms = [next(saved) if number is None else number for number in ctx.numbers]
        grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
        for i in range(0, len(terms), 2):
            scalar, x = terms[i : i + 2]
            d_scalar = d_x = None
            if ctx.needs_input_grad[i]:
                total = grad * x
                if scalar.shape == (x.shape[1], 1, 1):  # faster in two steps
                    total = total.sum((0, 2), keepdim=True)
                d_scalar = total.sum_to_size(scalar.shape).to(scalar.dtype)
            if ctx.needs_input_grad[i + 1]:
                d_x = (grad * scalar).sum_to_size(x.shape).to(x.dtype)
            grads += [d_scalar, d_x]
        return tuple(grads)


def parts(batch: int, heads: int, at_once: int) -> list[Part]:
    """Divide a call into parts of `at_once` heads, of one sequence or of several whole ones."""
    at_once = max(1, at_once)
    sequences = max(1, at_once // heads)
    return [
        (slice(b, b + sequences), slice(h, h + at_once))
        for b in range(0, batch, sequences)
        for h in range(0, heads, at_once)
    ]


def part_of(x: Any, part: Part) -> Any:
    """A view of one part of states, or of what broadcasts to (B, H, N, N); None of None.

    A dimension of size 1, which all sequences or heads share, stays whole.
    """
    if x is None:
        return None
    sizes = zip(part, x.shape[:2], strict=True)
    return x[tuple(indices if size > 1 else slice(None) for indices, size in sizes)]


def row_blocks(length: int, rows: int) -> list[slice]:
    """Blocks of `rows` rows; the last one may have fewer."""
    return [slice(start, min(start + rows, length)) for start in range(0, length, rows)]
