"""The gradients of a tiny model with and without filters, and how far they are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_graphattn.architectures import find
from hf_graphattn.patching.check import MASKS

# Relative. Many architectures round to float32 inside, in float64 too.
TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-3}
SMALL = 1e-3  # of the model's largest gradient, with which tensors of smaller ones are compared


def differentiable(
    model: PreTrainedModel, batch: dict[str, Any]
) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """(The model with its own eager attention, in float64 if it runs so; its gradients)."""
    model.set_attn_implementation("eager")
    for dtype in TOLERANCES:
        model.to(dtype)
        try:
            found = backward(model, batch)
            if not any(each.isnan().any() for each in found.values()):
                break
        except (RuntimeError, TypeError, ValueError):
            if dtype == torch.float32:
                raise
    return model, found


def backward(model: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
    """The gradients of a random sum of what the model returns of tokens, by parameters' names."""
    given = {
        name: each.to(model.dtype)
        if isinstance(each, Tensor) and each.is_floating_point()
        else each
        for name, each in batch.items()
    }
    model.zero_grad()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = of_tokens(model(**given), batch)
        finite = [torch.where(each.isfinite(), each, 0) for each in made]
        total = sum((each * torch.randn_like(each)).sum() for each in finite)
    if getattr(total, "requires_grad", False):
        total.backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def of_tokens(output: Any, batch: dict[str, Any]) -> list[Tensor]:
    """The floating-point tensors of what a model returns of tokens; all, where none is told apart.

    What is pooled may be of padding, which means nothing.
    """
    masks = [batch[name].bool() for name in MASKS if isinstance(batch.get(name), Tensor)]
    made = list(floats(output))
    found = [each[mask] for each in made for mask in masks if each.shape[:2] == mask.shape]
    return found or made


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest, relative to its tensor's largest; infinite for NaN or where one is missing."""
    expected = {name: each for name, each in expected.items() if each.numel()}
    if not found.keys() >= expected.keys():
        return float("inf")
    least = SMALL * max(_largest(each) for each in expected.values())
    errors = [0.0]
    for name, each in expected.items():
        differs = found[name] != each  # not so where both are infinite, as masked logits are
        if differs.any():
            error = float((found[name] - each)[differs].abs().max()) / max(_largest(each), least)
            errors.append(float("inf") if math.isnan(error) else error)
    return max(errors)


def _largest(tensor: Tensor) -> float:
    """The largest finite one."""
    finite = tensor[~tensor.isinf()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def without_gradient(model: nn.Module, found: dict[str, Tensor]) -> set[str]:
    """Attention classes of which no filter's scalars have a gradient, though parameters have."""
    reached = [name for name, each in found.items() if each.numel() and each.abs().max() > 0]
    trained, filtered = set(), set()
    for attention in find(model).self_attention:
        name = type(attention.module).__name__
        trained |= {name for each in reached if each.startswith(f"{attention.name}.")}
        prefix = f"{attention.name}.graph_filter."
        filtered |= {name for each in reached if each.startswith(prefix)}
    return trained - filtered


def floats(output: Any) -> Iterator[Tensor]:
    """The floating-point tensors of what a model returns."""
    if isinstance(output, Tensor) and output.is_floating_point():
        yield output
    elif isinstance(output, (list, tuple, dict)):
        for each in output.values() if isinstance(output, dict) else output:
            yield from floats(each)
