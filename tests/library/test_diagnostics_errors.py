"""What `diagnose` refuses, and the model after an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diagnosing import QUICK, assert_unchanged, state, whole
from tiny import build
from transformers import SwinConfig, SwinModel

import hf_graphattn as ga
from hf_graphattn.diagnostics import diagnose

NINE = {"input_ids": torch.ones(1, 9, dtype=torch.long)}


@pytest.mark.parametrize("patched", [False, True])
def test_after_an_error_the_model_is_as_it_was(patched: bool) -> None:
    model = build("BERT").train()
    if patched:
        ga.patch_model(model, ga.GFSAConfig(layers=(0,)))
    batch = whole(model)
    before = state(model, batch)
    with pytest.raises(IndexError):
        diagnose(model, [batch, {"input_ids": batch["input_ids"] + 1000}], **QUICK)
    assert_unchanged(before, model, batch)


@pytest.mark.parametrize(
    ("data", "how", "words"),
    [
        ([], {}, r"without a sequence of two tokens"),
        ({"input_ids": torch.tensor([[3]])}, {}, r"Give longer texts"),
        (NINE, {"max_tokens": 8}, r"length is 9; allowed: at most max_tokens=8"),
        (NINE, {"max_sequences": 0}, r"max_sequences is 0"),
        (NINE, {"orders": (2, 0)}, r"orders is 0; allowed: .* above 0"),
        (
            {**NINE, "attention_mask": torch.tensor([[1.0] * 8 + [float("nan")]])},
            {},
            r"a value of attention_mask is nan; allowed: 1 at real tokens and 0 at padding",
        ),
        (NINE, {"powers": (-1.0,)}, r"powers is -1\.0; allowed: .* above 0"),
        (
            {**NINE, "attention_mask": torch.ones(1, 1, 9, 9)},
            {},
            r"shape of attention_mask is \(1, 1, 9, 9\); allowed: \(1, 9\)",
        ),
    ],
)
def test_refusals(data: Any, how: dict[str, Any], words: str) -> None:
    with pytest.raises(ga.GraphAttentionError, match=words):
        diagnose(build("BERT"), data, **how)


@pytest.mark.parametrize("stages", [1, 2])
def test_windows_of_a_sequence_are_no_sequences(stages: int) -> None:
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "window_size": 4}
    swin = SwinModel(SwinConfig(**sizes, depths=[1] * stages, num_heads=[2] * stages))
    with pytest.raises(ga.GraphAttentionError, match=r"SwinModel'; allowed: one .* no windows"):
        diagnose(swin, {"pixel_values": torch.randn(2, 3, 16, 16)})
