"""The demo task for code asks: does this function lose a value that it should return?

It stands in for Devign (Zhou et al., arXiv 1909.03496) where there is no network, and has its
columns ``func`` and ``target`` (true is defective). The functions are the standard library's,
written from their syntax trees, without comments, docstrings and decorators; in every second one a
`return x` became `x`. The split is that of `tasks.corpus`, by module. Source: the Python standard
library, under the PSF licence. None of its code is stored here.
"""

from __future__ import annotations

import ast
import functools
import random
from typing import Any

from datasets import Dataset, DatasetDict, Features, Value

from tasks import corpus
from tasks.refusals import refusal

TRAIN_ROWS, VALIDATION_ROWS, TEST_ROWS = 3000, 400, 200
MIN_CHARACTERS, MAX_CHARACTERS = 60, 400
FEATURES = Features({"func": Value("string"), "target": Value("bool"), "project": Value("string")})


def build(*, seed: int = 0) -> DatasetDict:
    """Return the splits, each half with a lost value and half without.

    A function is in one row, whole or defective. Two functions that differ in their names alone
    count as one. The rows are the same for the same seed on the same Python.

    Raises:
        ValueError: if this Python's standard library has too few functions.
    """
    train = _rows("train", TRAIN_ROWS, seed)
    held_out = _rows("validation", VALIDATION_ROWS + TEST_ROWS, seed)
    return DatasetDict(
        train=train,
        validation=held_out.select(range(VALIDATION_ROWS)),
        test=held_out.select(range(VALIDATION_ROWS, len(held_out))),
    )


def defective(source: str, generator: random.Random) -> str | None:
    """Return the function without one of its `return`s; None if it returns no value."""
    tree = ast.parse(source)
    blocks = [getattr(node, name, None) for node in ast.walk(tree) for name in ("body", "orelse")]
    places = [
        (block, i, statement.value)
        for block in blocks
        if isinstance(block, list)
        for i, statement in enumerate(block)
        if isinstance(statement, ast.Return) and statement.value is not None
    ]
    if not places:
        return None
    block, i, value = generator.choice(places)
    block[i] = ast.Expr(value)
    return ast.unparse(tree)


@functools.cache
def functions() -> tuple[tuple[str, str], ...]:
    """Return module and source of each function of fitting length that returns a value."""
    unique: dict[str, tuple[str, str]] = {}
    with corpus.paused_garbage_collection():
        # The train side comes first, so that a function of both sides stays there.
        for module, _, tree in sorted(
            corpus.modules(), key=lambda found: corpus.SIDES.index(corpus.side_of(found[0]))
        ):
            for node in corpus.definitions(tree):
                text = _written(node)
                if MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS and "return " in text:
                    unique.setdefault(text.partition("(")[2], (module, text))
    return tuple(unique.values())


def _written(node: ast.AST) -> str:
    """A function's source without docstring and decorators; "" of any other definition."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    has_docstring = ast.get_docstring(node) is not None
    node.body, node.decorator_list = node.body[has_docstring:] or [ast.Pass()], []
    return ast.unparse(node)


def _rows(side: corpus.Side, count: int, seed: int) -> Dataset:
    generator = random.Random(f"{side} {seed}")
    suitable = [found for found in functions() if corpus.side_of(found[0]) == side]
    generator.shuffle(suitable)
    rows: list[dict[str, Any]] = []
    for module, source in suitable:
        is_defective = len(rows) % 2 == 1
        changed = defective(source, generator)
        if changed is not None and len(rows) < count:
            text = changed if is_defective else source
            rows.append({"func": text, "target": is_defective, "project": module})
    if len(rows) < count:
        raise refusal(
            f"number of suitable functions on the {side} side of the standard library",
            len(rows),
            f"at least {count}",
            "Use a Python whose standard library is installed whole, with its source.",
        )
    return Dataset.from_list(rows, features=FEATURES)
