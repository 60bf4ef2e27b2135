"""Settings of any variant: refused, or filters that are saved, loaded and taken out again."""

from __future__ import annotations

import inspect
import json
import tempfile
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from outcomes import REFUSED, outcome
from saved import CONFIGS
from tiny import MODELS, inputs

import hf_graphattn as ga

VALUES = (
    None, True, 0, 1, 2, 4, -3, 0.3, -0.7, 1.5, 1e-3, 1e30, 1e39, 10**6, 10**30, float("nan"),
    float("inf"), "", "x", b"1", (), (0,), (-1,), (2,), (0, 1), (1.5, 2.5), (0.2, 0.9, -0.3),
    [0.1, 0.2], {1, 2}, range(2), np.float32(0.3), np.int64(3), Fraction(1, 3),
    *((name,) for config in CONFIGS.values() for name in config.scalars),
)  # fmt: skip
BACKENDS = ("auto", "auto", "eager", "sdpa", "shared", "blockwise", "flex_attention", "x")
ARCHITECTURES = ("BERT", "GPT-2", "T5")


@pytest.mark.parametrize("variant", CONFIGS)
def test_settings_are_right_or_refused(variant: str) -> None:
    config = type(CONFIGS[variant])
    names = inspect.signature(config).parameters
    settings = st.fixed_dictionaries({}, optional=dict.fromkeys(names, st.sampled_from(VALUES)))

    @given(settings, st.sampled_from(BACKENDS), st.sampled_from(ARCHITECTURES))
    def each(settings: dict[str, Any], backend: str, architecture: str) -> None:
        check(config, settings, backend, MODELS[architecture]())

    each()


@torch.no_grad()
def check(config: Any, settings: dict[str, Any], backend: str, model: Any) -> None:
    made = outcome(lambda: config(**settings))
    if made is REFUSED:
        return
    assert config.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    batch = inputs(model, "right")
    plain = model(**batch)[0]
    if outcome(lambda: ga.patch_model(model, made, backend=backend)) is REFUSED:
        assert not ga.is_patched(model)
        assert torch.equal(model(**batch)[0], plain)
        return
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = ga.from_pretrained(folder, backend=backend)
    found = loaded(**batch)[0]
    torch.testing.assert_close(found, model(**batch)[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ga.unpatch_model(model)(**batch)[0], plain)
    assert torch.equal(ga.unpatch_model(loaded)(**batch)[0], plain)
