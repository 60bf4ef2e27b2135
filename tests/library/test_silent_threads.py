"""Patching is one at a time, and never under a running model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from refusals import refused
from tiny import MODELS, inputs

import hf_graphattn as ga
from hf_graphattn import patch as patching
from hf_graphattn.patching import place as placing

CONFIGS = (ga.GFSAConfig(w_K=0.3), ga.LaplacianConfig(step=0.4))


def outcome(call: Callable[[], Any], barrier: threading.Barrier) -> str:
    barrier.wait(timeout=60)
    try:
        call()
    except ga.GraphAttentionError as error:
        return str(error)
    return "done"


@pytest.mark.parametrize("trial", range(5))
def test_of_two_threads_that_patch_a_model_one_is_refused(
    trial: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are past the first check when the first filter is built, unless a lock is held."""
    build = placing._build
    monkeypatch.setattr(placing, "_build", lambda *args: time.sleep(0.01) or build(*args))
    model = MODELS["BERT"]()
    batch = inputs(model)
    plain = model(**batch)[0]
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        tried = [
            pool.submit(outcome, lambda c=config: ga.patch_model(model, c), barrier)
            for config in CONFIGS
        ]
        found = [each.result(timeout=60) for each in tried]
    assert found.count("done") == 1
    assert any("patched already" in text for text in found)
    variants = {each.variant_config for each in ga.graph_filters(model).values()}
    assert variants == {CONFIGS[found.index("done")]}

    with ThreadPoolExecutor(2) as pool:
        tried = [pool.submit(outcome, lambda: ga.unpatch_model(model), barrier) for _ in CONFIGS]
        found = [each.result(timeout=60) for each in tried]
    assert found.count("done") == 1
    assert torch.equal(model(**batch)[0], plain)


@pytest.mark.parametrize("patched", [False, True])
def test_a_running_model_is_neither_patched_nor_unpatched(patched: bool) -> None:
    """A forward that waits in its second layer, in another thread."""
    model = MODELS["BERT"]()
    batch = inputs(model)
    if patched:
        ga.patch_model(model, CONFIGS[0])
    expected = model(**batch)[0]
    inside, leave = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        inside.set()
        assert leave.wait(timeout=60)

    handle = model.bert.encoder.layer[1].register_forward_pre_hook(wait)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: model(**batch)[0])
        assert inside.wait(timeout=60)
        try:
            with refused("is running", "Wait"):
                ga.unpatch_model(model) if patched else ga.patch_model(model, CONFIGS[0])
            ga.patch_model(MODELS["BERT"](), CONFIGS[0])  # another model may be
        finally:
            leave.set()
        assert torch.equal(running.result(timeout=60), expected)
    handle.remove()
    assert ga.is_patched(model) == patched
    ga.unpatch_model(model) if patched else ga.patch_model(model, CONFIGS[0])


def test_a_model_is_not_patched_from_inside_its_own_forward() -> None:
    model = MODELS["BERT"]()
    batch = inputs(model)
    plain = model(**batch)[0]
    layer = model.bert.encoder.layer[1]
    handle = layer.register_forward_pre_hook(lambda *_: ga.patch_model(model, CONFIGS[0]) and None)
    with refused("is running"):
        model(**batch)
    handle.remove()
    assert torch.equal(model(**batch)[0], plain)


def test_a_forward_that_begins_while_the_model_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noticed afterwards: the filters are taken out again."""
    model = MODELS["BERT"]()
    batch = inputs(model)
    plain = model(**batch)[0]
    seen = iter([None, ga.GraphAttentionError("is running")])

    def running(*_: object) -> None:
        if error := next(seen):
            raise error

    monkeypatch.setattr(patching, "refuse_running", running)
    with refused("is running"):
        ga.patch_model(model, CONFIGS[0])
    assert not ga.is_patched(model)
    assert torch.equal(model(**batch)[0], plain)
