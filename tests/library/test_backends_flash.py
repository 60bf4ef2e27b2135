"""`flash_attention_2`: what flash_attn is called with, and which masks it can serve.

With a stand-in for the package; see flash_attn_stand_in.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from flash_attn_stand_in import StandIn, install
from refusals import refused
from tensors import states
from tiny import MODELS, inputs
from torch import Tensor

import hf_graphattn as ga
from hf_graphattn.backends import AttentionInputs, flash, make

FLASH = "flash_attention_2"
CONFIG = ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.3)


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return install(monkeypatch)


@pytest.mark.parametrize(
    ("architecture", "padding", "a_pass"),
    [
        ("BERT", "none", ["dense"]),
        ("BERT", "right", ["packed"]),
        ("GPT-2", "none", ["dense causal"]),
        ("GPT-2", "left", ["packed causal"]),
        ("GPT-2", "right", ["packed causal", "packed"]),  # the padded positions see every key
    ],
)
def test_what_flash_attn_is_called_with(
    architecture: str,
    padding: str,
    a_pass: list[str],
    flash_attn: StandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two passes a layer for GFSA, the mask looked at once, dropout in training alone."""
    looked = []
    own = flash.passes
    monkeypatch.setattr(flash, "passes", lambda *given: looked.append(given) or own(*given))
    rate = {"BERT": "attention_probs_dropout_prob", "GPT-2": "attn_pdrop"}[architecture]
    model = MODELS[architecture](**{rate: 0.25})
    ga.patch_model(model, CONFIG, backend=FLASH)
    batch = inputs(model, padding)
    for training, dropout in ((True, 0.25), (False, 0.0)):
        flash_attn.calls.clear()
        looked.clear()
        model.train(training)(**batch)
        kinds = [
            ("packed" if call["packed"] else "dense") + (" causal" if call["causal"] else "")
            for call in flash_attn.calls
        ]
        assert kinds == 2 * 2 * a_pass
        assert {call["dropout_p"] for call in flash_attn.calls} == {dropout}
        assert len(looked) == (padding != "none")


def test_a_mask_that_is_written_to_is_looked_at_again(flash_attn: StandIn) -> None:
    torch.manual_seed(0)
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    query, key, x = states(3, 7)
    for hidden in range(3):
        mask[0, ..., :hidden] = False
        own = AttentionInputs(query, key, mask, False, 0.7, 0.0)
        torch.testing.assert_close(make(FLASH, own)(x), make("eager", own)(x))
    with torch.inference_mode():
        mask = mask.clone()
        for hidden in range(3, 5):
            mask[0, ..., :hidden] = False
            own = AttentionInputs(query, key, mask, False, 0.7, 0.0)
            torch.testing.assert_close(make(FLASH, own)(x), make("eager", own)(x))


def test_flash_attn_runs_in_the_dtype_of_autocast(flash_attn: StandIn) -> None:
    query, key, x = states(3, 7)
    own = AttentionInputs(query, key, None, False, 0.7, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert make(FLASH, own)(x).dtype == make("sdpa", own)(x).dtype == torch.bfloat16


def every_order(length: int) -> Iterator[tuple[Tensor, tuple[int, int, int]]]:
    """Every boolean mask of one sequence of this length."""
    for bits in range(2 ** (length * length)):
        rows = [[bool(bits >> (i * length + j) & 1) for j in range(length)] for i in range(length)]
        yield torch.tensor(rows)[None, None], (1, length, length)


def test_every_small_mask_is_computed_exactly_or_refused(flash_attn: StandIn) -> None:
    """All 512 masks of three positions; padding and causality are never among the refused, a
    window, two texts in one and attention to what comes later always."""
    torch.manual_seed(0)
    query, key, x = (each.double() for each in states(1, 3, width=2, batch=1))
    taken = set()
    for mask, shape in every_order(3):
        own = AttentionInputs(query, key, mask, False, 0.7, 0.0)
        try:
            flash.passes(mask, shape)
        except ga.GraphAttentionError:
            continue
        taken.add(tuple(mask.flatten().tolist()))
        torch.testing.assert_close(make(FLASH, own)(x), make("eager", own)(x))
    for keep in [torch.tensor([a, b, c]).bool() for a in (0, 1) for b in (0, 1) for c in (0, 1)]:
        both_ways = keep.expand(3, 3)
        assert tuple(both_ways.flatten().tolist()) in taken
        if keep.tolist() != [True, False, True]:  # a hole: its own row sees some of the keys
            assert tuple((both_ways.tril()).flatten().tolist()) in taken
    window, texts = [[1, 0, 0], [1, 1, 0], [0, 1, 1]], [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    for rows in (window, texts, [[1, 1, 1], [0, 1, 1], [0, 0, 1]]):
        assert tuple(bool(each) for row in rows for each in row) not in taken


def test_flash_attention_refuses_other_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package in place: its own condition, as it is."""
    monkeypatch.setitem(sys.modules, "flash_attn", StandIn())
    model = ga.patch_model(MODELS["BERT"](), CONFIG, backend=FLASH)
    with refused(FLASH, "dtype", "torch.float32", "torch.bfloat16", "'sdpa'"):
        model(**inputs(model))
    model.bfloat16()(**inputs(model))  # the remedy that it names


@pytest.mark.parametrize(
    ("architecture", "why"),
    [("Mistral", "sliding window"), ("T5", "position bias")],
)
def test_flash_attention_refuses_other_masks(
    architecture: str, why: str, flash_attn: StandIn
) -> None:
    model = ga.patch_model(MODELS[architecture](), CONFIG, backend=FLASH)
    batch = inputs(model)
    with refused("mask", why, FLASH, "backend='sdpa'"):
        model(**batch)
    ga.patch_model(ga.unpatch_model(model), CONFIG, backend="sdpa")(**batch)


def test_flash_attention_refuses_a_mask_a_head(flash_attn: StandIn) -> None:
    query, key, x = states(3, 7)
    mask = torch.ones(2, 3, 7, 7, dtype=torch.bool)
    with refused("mask", "between heads", "(2, 3, 7, 7)"):
        make(FLASH, AttentionInputs(query, key, mask, False, 0.7, 0.0))(x)
