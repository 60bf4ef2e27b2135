"""Saved folders that were damaged or edited: the same model, or an error that names the folder."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from outcomes import REFUSED, outcome
from peft import LoraConfig, get_peft_model
from refusals import edit_json, edit_tensors, untouched
from safetensors.torch import load_file
from saved import CONFIGS, patched
from tiny import MODELS, inputs
from torch import nn

import hf_graphattn as ga
from hf_graphattn.model.filters import original_filter

# No number above 100: plain transformers would build a model of so many layers.
VALUES = (
    None, True, 0, -1, 1, 7, 0.5, float("nan"), "", "x", "7", [], [[]], [0], ["x"], {}, {"a": 1},
    "gfsa", "plat", "gelu", "float16",
)  # fmt: skip
Way = tuple[Any, ...]  # to a value in a JSON tree, or the name of a tensor
Tampering = tuple[Callable[[Path], None], Way]


def nodes(tree: Any, path: Way = ()) -> Iterator[Way]:
    """The paths of all values below the root of a tree."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield (*path, key)
            yield from nodes(value, (*path, key))


def change(tree: Any, path: Way, how: str, value: Any) -> None:
    """Replace, drop or rename a value, or put another beside it."""
    for key in path[:-1]:
        tree = tree[key]
    key, old = path[-1], copy.deepcopy(tree[path[-1]])
    if how in ("dropped", "renamed"):
        del tree[key]
    elif how == "replaced":
        tree[key] = value
    if how in ("renamed", "joined") and isinstance(tree, dict):
        tree[f"{key}x"] = old if how == "renamed" else value


@st.composite
def in_json(draw: Any, file: Path) -> Tampering:
    path = draw(st.sampled_from([*nodes(json.loads(file.read_text()))]))
    how = draw(st.sampled_from(["replaced", "dropped", "renamed", "joined"]))
    value = draw(st.sampled_from(VALUES))
    return edit_json(file.name, lambda tree: change(tree, path, how, value)), path


TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "longer": lambda tensor: torch.cat([tensor, tensor]),
    "deeper": lambda tensor: tensor[None],
    "empty": lambda tensor: tensor[:0],
    "NaN": lambda tensor: torch.full_like(tensor, torch.nan),
    "zero": torch.zeros_like,
    "float64": torch.Tensor.double,
    "float16": torch.Tensor.half,
    "integers": torch.Tensor.long,
    "complex": lambda tensor: tensor.to(torch.complex64),
}


@st.composite
def in_tensors(draw: Any, file: Path) -> Tampering:
    names = sorted(load_file(file))
    filters = [name for name in names if "graph_filter" in name]
    name = draw(st.sampled_from(filters or names) | st.sampled_from(names))
    how = draw(st.sampled_from(["dropped", "renamed", "joined", *TENSORS]))

    def edit(folder: Path) -> None:
        def each(tensors: dict[str, torch.Tensor]) -> None:
            value = TENSORS.get(how, torch.clone)(tensors[name])
            change(tensors, (name,), "replaced" if how in TENSORS else how, value)

        edit_tensors(folder / file.name, each)

    return edit, (name,)


def tamperings(folder: Path) -> st.SearchStrategy[Tampering]:
    """One change of a folder's JSON or tensors."""
    makers = {".json": in_json, ".safetensors": in_tensors}
    files = [file for file in sorted(folder.iterdir()) if file.suffix in makers]
    return st.sampled_from(files).flatmap(lambda file: makers[file.suffix](file))


PARENT = tempfile.TemporaryDirectory()  # is removed at the end of the process


def base() -> nn.Module:
    """The plain model that filters and adapters are loaded onto; the same at each call."""
    torch.manual_seed(1)
    return MODELS["BERT"]()


def save_model(folder: Path) -> None:
    patched("BERT").save_pretrained(folder)


def save_shards(folder: Path) -> None:
    patched("ViT", "polynomial").save_pretrained(folder, max_shard_size="40KB")


def save_filters(folder: Path) -> None:
    model = ga.patch_model(base(), CONFIGS["gfsa"])
    with torch.no_grad():
        for _, scalar in ga.filter_parameters(model):
            scalar.copy_(torch.rand_like(scalar))
    ga.save_filters(model, folder)


def save_adapter(folder: Path) -> None:
    model = ga.patch_model(base(), CONFIGS["gfsa"])
    own = ga.peft_modules(model)
    settings = LoraConfig(target_modules=["query"], init_lora_weights=False, modules_to_save=own)
    get_peft_model(model, settings).save_pretrained(folder)


def save_both(folder: Path) -> None:
    save_adapter(folder)
    ga.save_filters(ga.patch_model(base(), CONFIGS["gfsa"]), folder)


def load_model(folder: Path, _: nn.Module) -> nn.Module:
    return ga.from_pretrained(folder)


def load_filters(folder: Path, model: nn.Module) -> nn.Module:
    return ga.load_filters(model, folder)


def load_adapter(folder: Path, model: nn.Module) -> nn.Module:
    return ga.load_peft(model, folder)


def is_entry(path: tuple[Any, ...]) -> bool:
    return "graph_attn" in path or any("graph_filter" in str(key) for key in path)


@dataclass(frozen=True)
class Kind:
    """How a folder is saved and loaded.

    is_known: whether the library knows that what is at this path of a tree was changed. Nothing
    says what the tensors or settings of a plain model, or of an adapter, were.
    """

    save: Callable[[Path], None]
    load: Callable[[Path, nn.Module], nn.Module]
    is_known: Callable[[tuple[Any, ...]], bool]


KINDS = {
    "model": Kind(save_model, load_model, is_entry),
    "shards": Kind(save_shards, load_model, is_entry),
    "filters": Kind(save_filters, load_filters, lambda path: True),
    "adapter": Kind(save_adapter, load_adapter, lambda path: False),
    "adapter and filters": Kind(save_both, load_adapter, lambda path: False),
}


@cache
def whole(kind: str) -> Path:
    torch.manual_seed(0)
    folder = Path(PARENT.name) / kind
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
    row, model, (edit, path) = KINDS[kind], start(kind), tampering
    expected = row.load(whole(kind), start(kind))
    edit(folder)
    with contextlib.ExitStack() as after:
        after.enter_context(untouched(model))
        loaded = outcome(lambda: row.load(folder, model), folder)
        if loaded is REFUSED:
            return
        after.pop_all()
    assert filters_of(loaded) == filters_of(expected)
    if row.is_known(path):
        batch = inputs(expected, "right")
        assert torch.equal(loaded(**batch).logits, expected(**batch).logits)


def start(kind: str) -> nn.Module:
    return ga.patch_model(base(), CONFIGS["gfsa"]) if kind == "adapter" else base()


def filters_of(model: nn.Module) -> dict[str, Any]:
    """The model's own filters, not an adapter's copies of them."""
    own = {name: original_filter(each) for name, each in ga.graph_filters(model).items()}
    return {
        name: (each.variant_config, {n: x.tolist() for n, x in each.named_parameters()})
        for name, each in own.items()
    }
