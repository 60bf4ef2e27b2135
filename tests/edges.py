"""What `make test` leaves to `make test-full`: of products of orthogonal axes all but the edges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

EACH = 2  # how many values of the other axis each value meets


def product(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Every pair, as pytest's parameters; all but a band along the diagonal are marked `full`.

    A pair's tuples are spread out, so that an axis may stand for several parameters.
    """
    rows, columns = list(first), list(second)
    turned = len(rows) < len(columns)  # the longer axis leads: the band reaches all of the shorter
    pairs = []
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            behind = (i - j) % len(rows) if turned else (j - i) % len(columns)
            values = [x for x in (row, column) for x in (x if isinstance(x, tuple) else (x,))]
            pairs.append(_parameter(*values, is_edge=behind < EACH))
    return pairs


def leading(count: int, values: Iterable[Any]) -> list[Any]:
    """The values as pytest's parameters; all but the first `count` are marked `full`."""
    return [_parameter(value, is_edge=i < count) for i, value in enumerate(values)]


def _parameter(*values: Any, is_edge: bool) -> Any:
    return pytest.param(*values, marks=() if is_edge else pytest.mark.full)
