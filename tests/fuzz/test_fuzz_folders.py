"""Saved folders that were damaged or edited: the same model, or an error that names the folder."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from outcomes import REFUSED, outcome
from peft import LoraConfig, get_peft_model
from refusals import untouched
from saved import CONFIGS, patched
from tampering import Tampering, tamperings
from tiny import MODELS, inputs
from torch import nn

import hf_graphattn as ga
from hf_graphattn.adapters import original_filter


def base() -> nn.Module:
    """The plain model that filters and adapters are loaded onto; the same at each call."""
    torch.manual_seed(1)
    return MODELS["BERT"]()


def _model(folder: Path, **how: Any) -> None:
    patched("BERT").save_pretrained(folder, **how)


def _adapter(folder: Path, file: bool) -> None:
    model = ga.patch_model(base(), CONFIGS["gfsa"])
    own = ga.peft_modules(model)
    settings = LoraConfig(target_modules=["query"], init_lora_weights=False, modules_to_save=own)
    if file:
        ga.save_filters(model, folder)
    get_peft_model(model, settings).save_pretrained(folder)


def _filters(folder: Path) -> None:
    model = ga.patch_model(base(), CONFIGS["gfsa"])
    with torch.no_grad():
        for _, scalar in ga.filter_parameters(model):
            scalar.copy_(torch.rand_like(scalar))
    ga.save_filters(model, folder)


@dataclass(frozen=True)
class Kind:
    """How a folder is saved and loaded, and what of it nobody can tell from another model's.

    Of a plain model and of an adapter nothing says what its tensors or settings were.
    """

    save: Callable[[Path], None]
    load: Callable[[Path, nn.Module], nn.Module]
    keeps: Callable[[tuple[Any, ...]], bool]


def is_entry(path: tuple[Any, ...]) -> bool:
    return "graph_attn" in path or any("graph_filter" in str(key) for key in path)


def onto_patched(folder: Path, model: nn.Module) -> nn.Module:
    return ga.load_peft(model, folder)


KINDS = {
    "model": Kind(_model, lambda folder, _: ga.from_pretrained(folder), is_entry),
    "shards": Kind(
        lambda folder: _model(folder, max_shard_size="40KB"),
        lambda folder, _: ga.from_pretrained(folder),
        is_entry,
    ),
    "filters": Kind(_filters, lambda folder, model: ga.load_filters(model, folder), lambda _: True),
    "adapter": Kind(lambda folder: _adapter(folder, file=False), onto_patched, lambda _: False),
    "adapter and filters": Kind(
        lambda folder: _adapter(folder, file=True),
        lambda folder, model: ga.load_peft(model, folder),
        lambda _: False,
    ),
}


@cache
def whole(kind: str) -> Path:
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp())
    KINDS[kind].save(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_what_was_saved_or_refused(kind: str) -> None:
    @given(tamperings(whole(kind)))
    def each(tampering: Tampering) -> None:
        with tempfile.TemporaryDirectory() as parent:
            check(kind, tampering, shutil.copytree(whole(kind), Path(parent) / "folder"))

    each()


def check(kind: str, tampering: Tampering, folder: Path) -> None:
    model, expected = start(kind), start(kind)
    row = KINDS[kind]
    expected = row.load(whole(kind), expected)
    tampering.edit(folder)
    with contextlib.ExitStack() as after:
        after.enter_context(untouched(model))
        loaded = outcome(lambda: row.load(folder, model), folder)
        if loaded is REFUSED:
            return
        after.pop_all()
    assert filters_of(loaded, kind) == filters_of(expected, kind)
    if row.keeps(tampering.path):
        batch = inputs(expected, "right")
        assert torch.equal(loaded(**batch).logits, expected(**batch).logits)


def start(kind: str) -> nn.Module:
    model = base()
    return ga.patch_model(model, CONFIGS["gfsa"]) if kind == "adapter" else model


def filters_of(model: nn.Module, kind: str) -> dict[str, Any]:
    """Their configs, and their scalars where a checksum is beside them."""
    found = {}
    for name, graph_filter in ga.graph_filters(model).items():
        own = original_filter(graph_filter)
        values = {n: x.tolist() for n, x in own.named_parameters()}
        found[name] = (own.variant_config, values)
    return found
