"""Saved folders in which something is changed: JSON, tensors, or a file's bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

# No number above 100: plain transformers would build a model of so many layers.
VALUES = (
    None, True, False, 0, -1, 1, 7, 0.5, float("nan"), float("inf"), "", "x", "7", "\ud800", "a\nb",
    [], [[]], [0], ["x"], [None], {}, {"a": 1}, "gfsa", "plat", "gelu", "float16",
)  # fmt: skip
Edit = Callable[[Path], None]


@dataclass(frozen=True)
class Tampering:
    """What is done to a folder: in words, as a function of it, and where: a path in a JSON tree,
    the name of a tensor, or that of a file."""

    words: str
    edit: Edit
    path: tuple[Any, ...]


def json_file(folder: Path, name: str) -> tuple[Any, Callable[[Any], None]]:
    """A file's tree, and what writes another one."""
    file = folder / name
    return json.loads(file.read_text()), lambda tree: file.write_text(json.dumps(tree))


def header(folder: Path, name: str) -> tuple[Any, Callable[[Any], None]]:
    """The same of a safetensors file's header; JSON inside its metadata is part of the tree."""
    data = (folder / name).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    tree = json.loads(data[8:end])
    inner = tree.get("__metadata__", {})
    inner.update({k: json.loads(text) for k, text in inner.items() if text.startswith("{")})

    def write(tree: Any) -> None:
        tree = copy.deepcopy(tree)
        metadata = tree.get("__metadata__") if isinstance(tree, dict) else None
        for key, value in metadata.items() if isinstance(metadata, dict) else ():
            if key in ("graph_attn", "shape"):
                metadata[key] = json.dumps(value)
        text = json.dumps(tree).encode()
        (folder / name).write_bytes(len(text).to_bytes(8, "little") + text + data[end:])

    return tree, write


def nodes(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a tree, its root's first."""
    yield path
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from nodes(value, (*path, key))


def changed(tree: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    """The tree with one value replaced, dropped or renamed, or with another beside it."""
    if not path:
        return value
    tree = copy.deepcopy(tree)
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    if how == "replaced":
        parent[key] = value
    elif how == "dropped" or isinstance(parent, list):
        del parent[key]
    elif how == "renamed":
        parent[f"{key}x"] = parent.pop(key)
    else:
        parent[f"{key}x"] = value
    return tree


@st.composite
def in_tree(draw: Any, whole: Path, name: str, read: Any) -> Tampering:
    tree, _ = read(whole, name)
    path = draw(st.sampled_from(list(nodes(tree))))
    how = draw(st.sampled_from(["replaced", "dropped", "renamed", "joined"]))
    value = draw(st.sampled_from(VALUES))

    def edit(folder: Path) -> None:
        found, write = read(folder, name)
        write(changed(found, path, how, value))

    return Tampering(f"{name}: {path} {how}, {value!r}", edit, path)


TENSORS: dict[str, Callable[[dict[str, torch.Tensor], str], Any]] = {
    "dropped": lambda tensors, name: tensors.pop(name),
    "renamed": lambda tensors, name: tensors.update({f"{name}x": tensors.pop(name)}),
    "joined": lambda tensors, name: tensors.update({f"{name}x": tensors[name].clone()}),
    "longer": lambda tensors, name: tensors.update({name: torch.cat([tensors[name]] * 2)}),
    "deeper": lambda tensors, name: tensors.update({name: tensors[name][None]}),
    "empty": lambda tensors, name: tensors.update({name: tensors[name][:0]}),
    "NaN": lambda tensors, name: tensors[name].fill_(float("nan")),
    "infinite": lambda tensors, name: tensors[name].fill_(float("inf")),
    "zero": lambda tensors, name: tensors[name].fill_(0.0),
    "float64": lambda tensors, name: tensors.update({name: tensors[name].double()}),
    "float16": lambda tensors, name: tensors.update({name: tensors[name].half()}),
    "integers": lambda tensors, name: tensors.update({name: tensors[name].long()}),
    "booleans": lambda tensors, name: tensors.update({name: tensors[name].bool()}),
    "complex": lambda tensors, name: tensors.update({name: tensors[name].to(torch.complex64)}),
}


def _named(whole: Path, name: str) -> list[str]:
    with safe_open(whole / name, framework="pt") as opened:
        return sorted(opened.keys())


@st.composite
def in_tensors(draw: Any, whole: Path, name: str) -> Tampering:
    keys = _named(whole, name)
    filters = [key for key in keys if "graph_filter" in key]
    key = draw(st.sampled_from(filters or keys) | st.sampled_from(keys))
    how = draw(st.sampled_from(list(TENSORS)))

    def edit(folder: Path) -> None:
        tensors = load_file(folder / name)
        with safe_open(folder / name, framework="pt") as opened:
            metadata = opened.metadata()
        TENSORS[how](tensors, key)
        save_file(tensors, folder / name, metadata=metadata)

    return Tampering(f"{name}: {key} {how}", edit, (key,))


def _bit(file: Path, position: float) -> None:
    data = bytearray(file.read_bytes())
    bit = int(position * len(data) * 8)
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def _folder(file: Path, _: float) -> None:
    file.unlink()
    file.mkdir()


FILES: dict[str, Callable[[Path, float], Any]] = {
    "truncated": lambda file, where: file.write_bytes(
        file.read_bytes()[: int(where * file.stat().st_size)]
    ),
    "empty": lambda file, _: file.write_bytes(b""),
    "longer": lambda file, _: file.write_bytes(file.read_bytes() + b"\0x"),
    "in UTF-16": lambda file, _: file.write_bytes(b"\xff\xfe" + file.read_bytes()),
    "no JSON": lambda file, _: file.write_text("no"),
    "a list": lambda file, _: file.write_text("[1]"),
    "a folder": _folder,
    "gone": lambda file, _: file.unlink(),
    "with another bit": _bit,
}


@st.composite
def in_bytes(draw: Any, name: str) -> Tampering:
    how = draw(st.sampled_from(list(FILES)))
    where = draw(st.floats(0, 1, exclude_max=True))
    words = f"{name}: {how}, {where}"
    return Tampering(words, lambda folder: FILES[how](folder / name, where), (name,))


def tamperings(whole: Path) -> st.SearchStrategy[Tampering]:
    """One change of a folder, of any kind."""
    found = []
    for file in sorted(whole.iterdir()):
        if file.suffix == ".json":
            found += [in_tree(whole, file.name, json_file)] * 2
        elif file.suffix == ".safetensors":
            found += [in_tree(whole, file.name, header), in_tensors(whole, file.name)]
        found.append(in_bytes(file.name))
    return st.sampled_from(found).flatmap(lambda strategy: strategy)
