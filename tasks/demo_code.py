"""The demo task for code asks: does this function of the standard library hold an injected bug?

It stands in for Devign (Zhou et al., arXiv 1909.03496) where there is no network, and has its
columns: func, target (true is defective), project, commit_id. Half of the functions are as they
are, and half got one bug: a swapped operator, an off-by-one, a dropped `not` or a misused variable.
All are written anew from their syntax trees, without comments, docstrings and decorators, so that
layout gives nothing away, and all have a place where a bug could be.

The split is that of `tasks.corpus`, by module. Source: the Python standard library, under the PSF
licence. None of its code is stored here.
"""

from __future__ import annotations

import ast
import functools
import platform
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from datasets import Dataset, DatasetDict, Features, Value

from tasks import corpus
from tasks.refusals import refusal

TRAIN_ROWS, VALIDATION_ROWS, TEST_ROWS = 4000, 500, 200
MIN_CHARACTERS, MAX_CHARACTERS = 80, 320
MAX_LINES = 40  # longer functions would cost most of the time and are not needed
FEATURES = Features(
    {
        "id": Value("int32"),
        "func": Value("string"),
        "target": Value("bool"),
        "project": Value("string"),
        "commit_id": Value("string"),
    }
)

# They are swapped in both directions, so that no operator gives a bug away by itself.
_OPPOSITES = (
    (ast.Add, ast.Sub),
    (ast.Mult, ast.FloorDiv),
    (ast.BitAnd, ast.BitOr),
    (ast.LShift, ast.RShift),
    (ast.And, ast.Or),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Lt, ast.Gt),
    (ast.LtE, ast.GtE),
)
_NEIGHBOURS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE))
_SWAPPED = dict(_OPPOSITES) | {second: first for first, second in _OPPOSITES}
_SHIFTED = dict(_NEIGHBOURS) | {second: first for first, second in _NEIGHBOURS}
_REPLACED = (*_SWAPPED, ast.Constant, ast.UnaryOp, ast.Name)
_COUNTING = (ast.Subscript, ast.Slice, ast.Compare, ast.BinOp, ast.UnaryOp)


@dataclass(frozen=True)
class Function:
    """This is a function of the standard library, written from its syntax tree."""

    module: str
    source: str


@dataclass(frozen=True)
class Place:
    """A place is a node's field, or one position in the list there, and what stands in it."""

    node: ast.AST
    field: str
    index: int | None
    value: Any

    def put(self, value: Any) -> None:
        """Put the value there."""
        if self.index is None:
            setattr(self.node, self.field, value)
        else:
            getattr(self.node, self.field)[self.index] = value


@functools.cache
def functions() -> tuple[Function, ...]:
    """Return the functions of this Python's standard library, each once and in a fixed order.

    Two functions that differ in their names alone count as one; if one of them is on the train
    side, that one is kept. Those of more than `MAX_LINES` lines are left out.
    """
    with corpus.paused_garbage_collection():
        found = [
            Function(module, text)
            for module, _, tree in corpus.modules()
            for node in corpus.definitions(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := _written(node))
        ]
    found.sort(key=lambda function: corpus.SIDES.index(corpus.side_of(function.module)))
    unique: dict[str, Function] = {}
    for function in found:
        unique.setdefault(nameless(function.source), function)
    return tuple(unique.values())


def nameless(source: str) -> str:
    """Return a function's source from its parameters on."""
    return source.partition("(")[2]


def build(*, seed: int = 0) -> DatasetDict:
    """Return the train, validation and test split, each half with a bug and half without.

    A function is used once, whole or with a bug, so no split shares one with another, and none
    holds both a function and its mutant. The rows are the same for the same seed on the same
    Python; other Pythons have other functions.

    Raises:
        ValueError: if this Python's standard library has too few functions.
    """
    generator = random.Random(seed)
    train = rows("train", TRAIN_ROWS, generator)
    held_out = rows("validation", VALIDATION_ROWS + TEST_ROWS, generator)
    return DatasetDict(
        train=Dataset.from_list(train, features=FEATURES),
        validation=Dataset.from_list(held_out[:VALIDATION_ROWS], features=FEATURES),
        test=Dataset.from_list(held_out[VALIDATION_ROWS:], features=FEATURES),
    )


def mutate(source: str, generator: random.Random) -> str | None:
    """Return the function with one bug injected: valid Python with another syntax tree.

    Args:
        source: one function, as `ast.unparse` writes it.
        generator: chooses the bug; each kind that has a place is equally likely.

    Returns:
        None if no bug of any kind has a place, or each would make another function of the library.
    """
    tree = ast.parse(source)
    found = bugs(tree)
    while kinds := [of_kind for of_kind in found.values() if of_kind]:
        of_kind = generator.choice(kinds)
        place, bug = of_kind.pop(generator.randrange(len(of_kind)))
        mutant = written_with(tree, place, bug)
        if mutant != source and nameless(mutant) not in _known():
            return mutant
    return None


def bugs(tree: ast.AST) -> dict[str, list[tuple[Place, ast.AST]]]:
    """Return all places of each kind of bug, each with what the bug puts there."""
    nodes = list(ast.walk(tree))
    places, names = list(_places(nodes)), _local_names(nodes)
    return {
        name: [(place, bug) for place in places for bug in kind(place, names)]
        for name, kind in KINDS.items()
    }


def written_with(tree: ast.AST, place: Place, bug: ast.AST) -> str:
    """Return the source with the bug in its place, and leave the tree as it is."""
    place.put(bug)
    text = ast.unparse(tree)
    place.put(place.value)
    return text


def swapped_operator(place: Place, names: list[str]) -> list[ast.AST]:
    """Return the opposite of an operator."""
    opposite = _SWAPPED.get(type(place.value))
    return [opposite()] if opposite else []


def off_by_one(place: Place, names: list[str]) -> list[ast.AST]:
    """Return a bound with or without its end, or the numbers next to one that counts."""
    value = place.value
    if type(value) in _SHIFTED:
        return [_SHIFTED[type(value)]()]
    if not isinstance(value, ast.Constant) or type(value.value) is not int:
        return []
    is_range = isinstance(place.node, ast.Call) and getattr(place.node.func, "id", "") == "range"
    if not is_range and not isinstance(place.node, _COUNTING):
        return []
    return [ast.Constant(n) for n in (value.value - 1, value.value + 1) if n >= 0]


def dropped_not(place: Place, names: list[str]) -> list[ast.AST]:
    """Return what a `not` negates."""
    value = place.value
    is_not = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    return [value.operand] if is_not else []


def misused_variable(place: Place, names: list[str]) -> list[ast.AST]:
    """Return each other variable of the function, where one of them is read."""
    value = place.value
    if not isinstance(value, ast.Name) or not isinstance(value.ctx, ast.Load):
        return []
    if value.id not in names:
        return []
    return [ast.Name(name, ast.Load()) for name in names if name != value.id]


KINDS: dict[str, Callable[[Place, list[str]], list[ast.AST]]] = {
    kind.__name__: kind for kind in (swapped_operator, off_by_one, dropped_not, misused_variable)
}


def rows(side: corpus.Side, count: int, generator: random.Random) -> list[dict[str, Any]]:
    """Return that many rows of one side in a random order, whole and defective in turn."""
    suitable = [
        function
        for function in functions()
        if corpus.side_of(function.module) == side
        and MIN_CHARACTERS <= len(function.source) <= MAX_CHARACTERS
    ]
    generator.shuffle(suitable)
    pairs = ((function, mutate(function.source, generator)) for function in suitable)
    with corpus.paused_garbage_collection():
        chosen = list(islice(((f, mutant) for f, mutant in pairs if mutant is not None), count))
    if len(chosen) < count:
        raise refusal(
            f"number of suitable functions on the {side} side of the standard library",
            len(chosen),
            f"at least {count}",
            "Use a Python whose standard library is installed whole, with its source.",
        )
    return [
        {
            "id": number,
            "func": mutant if number % 2 else function.source,
            "target": bool(number % 2),
            "project": function.module,
            "commit_id": platform.python_version(),
        }
        for number, (function, mutant) in enumerate(chosen)
    ]


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(nameless(function.source) for function in functions())


def _written(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the function's source without docstring and decorators, or "" if it is too long."""
    if (node.end_lineno or 0) - node.lineno >= MAX_LINES:
        return ""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return ""
    node.body, node.decorator_list = body, []
    return ast.unparse(node)


def _places(nodes: list[ast.AST]) -> Iterator[Place]:
    """Yield the fields of these nodes that hold a node of a kind that bugs replace."""
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, _REPLACED):
                yield Place(node, name, None, value)
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, _REPLACED):
                        yield Place(node, name, index, item)


def _local_names(nodes: list[ast.AST]) -> list[str]:
    """Return the names of parameters and assigned variables, sorted."""
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    return sorted(parameters | {node.id for node in names if isinstance(node.ctx, ast.Store)})
