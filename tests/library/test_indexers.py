"""Sparse attention: models whose indexer chooses the keys of each query, where it leaves some out.

The reference is the plain model, whose own eager function is told to use H for A.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refused, untouched
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.qwen2 import modeling_qwen2
from zoo.batches import inputs
from zoo.models import build

import hf_graphattn as ga
from hf_graphattn.architectures import eager_attention, find
from hf_graphattn.patching import insert_filters, remove_filters
from hf_graphattn.patching.check import TOLERANCES

TYPES = (
    "axk2",
    "deepseek_v32",
    "dots3_note",
    "dots3_note_text",
    "glm_moe_dsa",
    "hy_v4",
    "minimax_m3_vl",
    "minimax_m3_vl_text",
    "mistral_large4",
    "mistral_large4_text",
)
# One's images are float32 in any model; the other's eager attention gives NaN in float64.
IN_FLOAT32 = ("dots3_note", "minimax_m3_vl_text")
GFSA = ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.3)


def sparse(model_type: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    dtype = torch.float32 if model_type in IN_FLOAT32 else torch.float64
    model = build(model_type).to(dtype)
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")  # the others have no float64
    batch = inputs(model, "right") | {"use_cache": False}
    floating = {n: x for n, x in batch.items() if isinstance(x, Tensor) and x.is_floating_point()}
    return model, batch | {name: each.to(dtype) for name, each in floating.items()}


def logits(model: PreTrainedModel, batch: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        return model(**batch)[0][batch["attention_mask"].bool()]


def difference(found: Tensor, expected: Tensor) -> float:
    """Relative to the largest, and to what rounding allows."""
    error = (found - expected).abs().max() / expected.abs().max()
    return float(error) / TOLERANCES[found.dtype]


def with_gfsa(eager: Callable[..., Any]) -> Callable[..., Any]:
    """An eager attention function that makes H of its A, and applies it."""

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args, **kwargs):
        _, a = eager(module, query, key, value, *args, **kwargs)
        h = GFSA.w_0 * torch.eye(a.shape[-1], dtype=a.dtype) + a
        h = h + GFSA.w_K * (a + (GFSA.order - 1) * (a @ a - a))
        groups = query.shape[1] // value.shape[1]
        return (h @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), h

    return attention


@pytest.mark.parametrize("backend", ["auto", "delegate"])
@pytest.mark.parametrize("model_type", TYPES)
def test_neutral_filters_leave_the_model_as_it_is(model_type: str, backend: str) -> None:
    """Those of one layer too: the others stay plain, and keep their masks."""
    model, batch = sparse(model_type)
    plain = logits(model, batch)
    for layers in (None, (0,)):
        insert_filters(find(model), ga.GFSAConfig(w_K=0.0, layers=layers), backend)
        assert difference(logits(model, batch), plain) <= 1.0
        remove_filters(model)


@pytest.mark.parametrize("model_type", TYPES)
def test_gfsa_is_of_the_keys_that_were_chosen(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = sparse(model_type)
    found = {}
    for backend in ("auto", "delegate"):
        insert_filters(find(model), GFSA, backend)
        found[backend] = logits(model, batch)
        remove_filters(model)
    functions = {eager_attention(each.module) for each in find(model).self_attention}
    for function in functions:
        file = sys.modules[function.__module__]
        monkeypatch.setattr(file, function.__name__, with_gfsa(function))
    expected = logits(model, batch)
    for each in found.values():
        assert difference(each, expected) <= 1.0


class Tells(modeling_qwen2.Qwen2Attention):
    """It gives its attention function an argument that the eager one does not name."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs, block_table=torch.zeros(1))


@pytest.mark.parametrize("layers", [None, (0,)])
def test_an_argument_that_eager_attention_swallows_is_refused(
    layers: tuple[int, ...] | None,
) -> None:
    model = build("qwen2")
    batch = inputs(model)
    model.model.layers[1].self_attn.__class__ = Tells
    config = ga.GFSAConfig(w_K=0.3, layers=layers)
    with untouched(model, batch), refused("Tells", "block_table", "does not read"):
        ga.patch_model(model, config, check=batch)
