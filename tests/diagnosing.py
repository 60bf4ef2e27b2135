"""What the tests of `diagnose` share: quick settings, batches, and a model before and after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import inputs

from hf_graphattn.diagnostics import Diagnosis

QUICK = {"orders": (2, 3), "powers": (2.0,)}


def whole(model: Any, **how: Any) -> dict[str, torch.Tensor]:
    """A batch in which nothing is padded, encoder and decoder alike."""
    return inputs(model, "none", **how)


def assert_same(one: Diagnosis, other: Diagnosis, tolerance: float = 1e-9) -> None:
    for mine, theirs in zip(one.rows(), other.rows(), strict=True):
        where = {k: v for k, v in mine.items() if k not in ("mean", "std")}
        assert where == {k: v for k, v in theirs.items() if k not in ("mean", "std")}
        assert mine["mean"] == pytest.approx(theirs["mean"], rel=tolerance, abs=tolerance), where


def state(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """All of a model that `diagnose` touches on the way.

    The model runs first: transformers' own recording hooks come with the first call and stay.
    """
    with torch.no_grad():
        model(**batch, output_hidden_states=True)
    return {
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "training": [module.training for module in model.modules()],
        "modules": [name for name, _ in model.named_modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "attributes": [sorted(module.__dict__) for module in model.modules()],
        "configs": [m.config.to_dict() for m in model.modules() if hasattr(m, "config")],
        "attention": [
            m.config._attn_implementation for m in model.modules() if hasattr(m, "config")
        ],
    }


def assert_unchanged(before: dict[str, Any], model: Any, batch: dict[str, torch.Tensor]) -> None:
    after = state(model, batch)
    weights, other = before.pop("weights"), after.pop("weights")
    assert before == after
    assert weights.keys() == other.keys()
    assert all(tensor.equal(other[name]) for name, tensor in weights.items())
