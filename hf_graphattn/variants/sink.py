"""A learned attention sink, the off-by-one softmax of gpt-oss (arXiv 2508.10925).

    A_xy = exp(s_xy) / (sum_z exp(s_xz) + sink),    s the scores

A head may attend to nothing: its weights sum to less than 1. The published models learn the logit
log(sink) of each head from nothing. Learning `sink` itself, so that it can start at 0, plain
attention, is ours; so is reading it by its magnitude once it is learned, where a negative one would
divide by zero. With lse_x = log sum_y exp(s_xy) and y = softmax attention's output,

    out_x = r_x y_x,    r_x = 1 / (1 + sink exp(-lse_x))

How much a `sink` does depends on the size of a head's scores, which softmax itself does not see.

`fused` is one pass of the fused kernel that torch has for the CPU, which returns lse. Its backward
is that kernel's too: with r y for the output and log(exp(lse) + sink) for lse it computes the
gradients of this softmax, since the sink's own value is 0. On other devices, and under attention
dropout, which acts on softmax before r, A is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_graphattn.backends import EAGER, SDPA, AttentionInputs, log_sum_exp, one_per_query_head
from hf_graphattn.errors import refusal
from hf_graphattn.kernels import Kernel, refuse_second_derivatives

from .base import (
    TRAINABLE_HELP,
    Attend,
    GraphFilter,
    VariantConfig,
    combination,
    every_value,
    register,
    setting,
)

# exp(-lse) is held by float32, with room for gradients, down to this lse; below it counts as this.
LEAST = -60.0


@register("sink")
@dataclass(frozen=True)
class SinkConfig(VariantConfig):
    """A learned sink (gpt-oss, arXiv 2508.10925): softmax whose denominator has `+ sink`.

    It is plain attention at sink = 0, where it starts by default, learned. At 1 it is the
    off-by-one softmax. A learned value below zero counts as its magnitude.
    """

    title: ClassVar[str] = "sink"
    colour: ClassVar[int | None] = 16
    scalars: ClassVar[tuple[str, ...]] = ("sink",)
    neutral: ClassVar[tuple[float, ...]] = (0.0,)

    sink: float = setting(0.0, "what the softmax's denominator has beside the keys, 0 or more")
    trainable: tuple[str, ...] = setting(("sink",), TRAINABLE_HELP, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sink < 0.0:
            raise refusal("sink", self.sink, "0 or more")

    def build(self, num_heads: int) -> GraphFilter:
        return SinkFilter(self, num_heads)


def fits(inputs: AttentionInputs) -> bool:
    """Whether `fused` computes the call."""
    learns_mask = inputs.mask is not None and inputs.mask.requires_grad
    traced = torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
    on_cpu = inputs.query.device.type == "cpu"
    return on_cpu and inputs.dropout == 0.0 and not learns_mask and not traced


def fused(inputs: AttentionInputs, value: Tensor, sink: Tensor) -> Tensor:
    """The output, (B, H, Nq, D), without a matrix A.

    Args:
        inputs: the attention's.
        value: V of all keys, (B, H, Nk, D), or of fewer heads, which query heads share evenly.
        sink: (H, 1, 1), float32 (float64 for float64 states).
    """
    dtype = inputs.query.dtype
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
    mask, width = inputs.mask, value.shape[-1]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)
    # The kernel has one width for all: columns of zeros change no score.
    widest = max(width, inputs.query.shape[-1])
    states: tuple[Tensor, ...] = (inputs.query, inputs.key, value)
    if value.shape[1] != inputs.key.shape[1]:  # the kernel has one number of heads for both
        states = tuple(one_per_query_head(x, inputs.query) for x in states)
    padded = (pad(x, (0, widest - x.shape[-1])) if x.shape[-1] < widest else x for x in states)
    if mask is not None:  # which the kernel takes of four dimensions
        mask = mask[(None,) * (4 - mask.dim())].to(dtype)
    options = {"is_causal": inputs.causal, "scale": inputs.scaling, "attn_mask": mask}
    return _Fused.apply(options, sink, *(x.to(dtype) for x in padded))[..., :width]


def kept(inputs: AttentionInputs, once: Tensor, sink: Tensor) -> Tensor:
    """The output from y, `once`, by a matrix of scores: the reference."""
    return combination((1.0 / (1.0 + _weight(sink, log_sum_exp(inputs))), once))


class SinkFilter(GraphFilter):
    """The filter of `SinkConfig`: one pass of attention, whose lse few backends give."""

    kernels: ClassVar = {SDPA: Kernel(fused, fits)}
    groups = True
    backends = (SDPA, EAGER)

    def forward(self, attend: Attend, value: Tensor) -> Tensor:
        """The output, (B, H, Nq, D).

        Raises:
            GraphAttentionError: backend "sdpa" was asked for where the fused pass gives no lse.
        """
        inputs, sink = attend.inputs, self.scalar("sink")
        if not isinstance(sink, Tensor):
            precise = torch.promote_types(value.dtype, torch.float32)
            sink = torch.full((1, 1, 1), sink, dtype=precise, device=value.device)
        sink = torch.where(sink < 0.0, -sink, sink)  # not abs, which has no gradient at 0
        if attend.name != SDPA:
            return kept(inputs, attend(value), sink)
        if not fits(inputs):
            raise refusal(
                "backend",
                SDPA,
                "auto or eager for this call: the log-sum-exp that variant 'sink' needs comes of "
                "torch's kernel for the CPU, without attention dropout, a position bias that is "
                "learned, or a graph of torch.func",
            )
        return fused(inputs, every_value(attend, value), sink)


def _weight(sink: float | Tensor, lse: Tensor) -> Tensor:
    """`sink exp(-lse)`, (B, H, N, 1)."""
    return sink * lse.clamp_min(LEAST).neg().exp()


class _Fused(torch.autograd.Function):
    """(options, sink, query, key, value) -> `r y`."""

    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], sink: Tensor, *states: Tensor) -> Tensor:
        once, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*states, **options)
        lse = lse.unsqueeze(-1)
        out = once.mul_((1.0 + _weight(sink, lse)).reciprocal())
        ctx.options = options
        ctx.save_for_backward(sink, lse, out, *states)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives(SDPA)
        sink, lse, out, *states = ctx.saved_tensors
        weight = _weight(sink, lse)
        total = (lse + weight.log1p()).squeeze(-1)
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads = backward(grad, *states, out, total, 0.0, **ctx.options)
        if not ctx.needs_input_grad[1]:
            return None, None, *grads
        slope = _weight(-1.0, lse) / (1.0 + weight)
        along = (grad * out).sum(-1, keepdim=True, dtype=lse.dtype)
        return None, (along * slope).sum((0, 2)).view_as(sink), *grads
