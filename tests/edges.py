"""Products of two axes that are orthogonal by contract: `make test` runs their edges alone."""

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
            pairs.append(pytest.param(*values, marks=() if behind < EACH else pytest.mark.full))
    return pairs
