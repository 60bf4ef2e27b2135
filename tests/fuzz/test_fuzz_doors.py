"""Every public function, with arguments of any kind: the right result, or a clear error and the
model as it was."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import OfflineModeIsEnabled
from hypothesis import given
from outcomes import REFUSED, outcome
from refusals import untouched
from saved import CONFIGS
from tiny import MODELS, inputs
from values import WHOLE, arguments

import hf_graphattn as ga
from hf_graphattn.variants import base as registry

# What is read or derived from, and not called.
NOT_CALLED = {"FILTERS_NAME", "GraphAttentionError", "GraphFilter", "VariantConfig", "__version__"}
# Their arguments are tensors, classes and torch's own: test_functional.py, test_own_attention.py.
NOT_CALLED |= {"MultiheadAttention", "attention", "register_architecture"}
# Classes whose arguments PEFT and transformers check: test_peft_method.py, test_trainer.py.
NOT_CALLED |= {"GraphFilterConfig", "TrainerMixin"}
DOORS = sorted({*dir(ga)} - NOT_CALLED)
# The model that they are given; saving notes the model's class in its config.
CHANGE = {"patch_model", "unpatch_model", "load_filters", "load_peft", "save_repository"}
COMPARED = {type(make()) for make in WHOLE}


@pytest.mark.parametrize("name", DOORS)
def test_a_public_function_is_right_or_refuses(name: str) -> None:
    door = getattr(ga, name)

    @given(arguments(door))
    def each(given: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as here, contextlib.chdir(here):
            check(door, given, name)

    each()


def check(door: Callable[..., Any], given: dict[str, Any], name: str) -> None:
    model = given.get("model")
    with contextlib.ExitStack() as after:
        if type(model) in COMPARED and model.device.type != "meta" and not model.training:
            after.enter_context(untouched(model))
        result = outcome(lambda: called(door, given))
        if result is REFUSED:
            assert not list(Path().iterdir())
            return
        if name in CHANGE:
            after.pop_all()
    HOLDS.get(name, lambda *_: None)(result, given)


def called(door: Callable[..., Any], given: dict[str, Any]) -> Any:
    try:
        result = door(**given)
    except OfflineModeIsEnabled:
        return None  # all was right but for the network
    return list(result) if inspect.isgenerator(result) else result


def same(one: Any, other: Any, batch: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        torch.testing.assert_close(
            other(**batch)[0], one(**batch)[0], rtol=0, atol=0, equal_nan=True
        )


def is_patched(model: Any, given: dict[str, Any]) -> None:
    """It is what is saved and loaded, and becomes plain again."""
    assert ga.is_patched(model)
    if type(model) not in COMPARED:
        return
    batch = inputs(model, "right")
    model.eval().save_pretrained("saved")
    loaded = ga.from_pretrained("saved", dtype="auto", backend=given.get("backend", "auto"))
    same(model, loaded, batch)
    with pytest.raises(ga.GraphAttentionError):
        ga.patch_model(model, ga.GFSAConfig())
    same(ga.unpatch_model(model), ga.unpatch_model(loaded), batch)


def is_plain(model: Any, _: Any) -> None:
    assert not ga.is_patched(model)
    if type(model) in COMPARED:
        ga.unpatch_model(ga.patch_model(model, ga.GFSAConfig()))


def is_a_config(config: Any, _: Any) -> None:
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert dataclasses.replace(config) == config
    model = outcome(lambda: ga.patch_model(MODELS["BERT"](), config))
    if model is not REFUSED:
        is_patched(model, {})


def is_registered(add: Any, given: dict[str, Any]) -> None:
    @dataclasses.dataclass(frozen=True)
    class HeatConfig(ga.VariantConfig):
        time: float = ga.setting(1.0, "how long the heat flows")

    known = ga.variant_configs()
    if outcome(lambda: add(HeatConfig)) is not REFUSED:
        assert ga.variant_configs() == {**known, given["name"]: HeatConfig}
        del registry._CONFIGS[given["name"]]
    assert ga.variant_configs() == known


def trains(groups: Any, given: dict[str, Any]) -> None:
    own = [parameter for group in groups for parameter in group["params"]]
    assert {*own} == {p for p in given["model"].parameters() if p.requires_grad}
    if own:
        torch.optim.AdamW(groups).step()


def is_numbers(diagnosis: Any, _: Any) -> None:
    assert json.loads(diagnosis.to_json())["parts"]


def is_a_folder(folder: Any, given: dict[str, Any]) -> None:
    assert (folder / "README.md").read_text("utf-8").startswith("---")
    loaded = ga.from_pretrained(folder)
    same(given["model"], loaded, inputs(loaded, "right"))


HOLDS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "diagnose": is_numbers,
    "from_pretrained": is_patched,
    "load_filters": is_patched,
    "optimizer_groups": trains,
    "patch_model": is_patched,
    "register": is_registered,
    "save_repository": is_a_folder,
    "unpatch_model": is_plain,
    **{type(config).__name__: is_a_config for config in CONFIGS.values()},
}
