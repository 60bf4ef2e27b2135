"""Imports run one way: no circle between any two files, and rooms import only rooms below them.

Imports inside functions and under `TYPE_CHECKING` count too: they are arrows as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from finetune.experiments.arms import families

ROOT = Path(__file__).parents[1]
HOUSE = ("hf_graphattn", "tasks", "finetune", "tools", "benchmarks")

# Each row may import the rows below it, and of its own row only its own room.
FLOORS = (
    ("tools", "benchmarks", "finetune.demo"),
    ("finetune.evidence",),
    ("finetune.studies",),
    ("finetune.compare", "finetune.sweep"),
    ("finetune.experiments",),
    tuple(f"finetune.{family}" for family in families()),
    ("finetune.engine",),
    ("finetune.objectives",),
    ("finetune.data", "finetune.models"),
    ("finetune.settings",),
    ("finetune.errors", "finetune.plurals", "finetune.terminal"),
    ("tasks", "hf_graphattn.diagnose"),
    ("hf_graphattn.shell", "hf_graphattn.remote", "hf_graphattn.trainer"),
    ("hf_graphattn.diagnostics", "hf_graphattn.loading"),
    ("hf_graphattn.patching", "hf_graphattn.sharing"),
    ("hf_graphattn.model",),
    ("hf_graphattn.interface",),
    ("hf_graphattn.variants",),
    ("hf_graphattn.kernels",),
    ("hf_graphattn.architectures", "hf_graphattn.backends"),
    ("hf_graphattn.errors", "hf_graphattn.version", "hf_graphattn"),
)


def name_of(path: Path) -> str:
    """The dotted name of a file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    name_of(path): path
    for package in HOUSE
    for path in sorted((ROOT / package).rglob("*.py"))
    if "fixtures" not in path.parts
}


def imported(name: str) -> Iterator[str]:
    """The modules of the house that a module imports."""
    path = FILES[name]
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found = inner & FILES.keys()
            yield from found
            # Of a package only what is no module of its own comes from the package's own file.
            if base in FILES and len(found) < len(node.names):
                yield base


GRAPH = {name: set(imported(name)) - {name} for name in FILES}


def floor_of(name: str) -> tuple[int, str]:
    """The number of a module's floor, counted from the top, and its room there."""
    for number, rooms in enumerate(FLOORS):
        for room in rooms:
            if name == room or name.startswith(f"{room}."):
                return number, room
    raise AssertionError(f"{name} is in no row of FLOORS: say where it belongs.")


def test_no_circle_of_imports() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(f"These import each other: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("name", [name for name in FILES if name != "finetune"])
def test_a_room_imports_only_rooms_below_it(name: str) -> None:
    floor, room = floor_of(name)
    for other in GRAPH[name] - {"finetune"}:
        below, its_room = floor_of(other)
        assert below > floor or its_room == room, f"{name} may not import {other}"


def test_the_graph_is_not_empty() -> None:
    """So that the two tests above do not pass by seeing nothing."""
    assert "finetune.engine.trainer" in GRAPH["finetune.glue"]
    assert "hf_graphattn.interface.graph_attn" in GRAPH["hf_graphattn.patching"]
    assert "tasks.metrics" in GRAPH["tasks.glue"]
