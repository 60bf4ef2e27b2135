"""Every cell of docs/compatibility.md, and that the page says what the cells say."""

from __future__ import annotations

from pathlib import Path

import pytest
from features import FEATURES, Feature
from tiny import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
CELLS = [
    pytest.param(architecture, feature, id=f"{architecture}-{feature.name}")
    for architecture, row in ROWS.items()
    for feature in FEATURES
    if feature.applies(row)
]


@pytest.mark.parametrize(("architecture", "feature"), CELLS)
def test_cell(architecture: str, feature: Feature) -> None:
    feature.check(architecture)


def test_the_page_has_these_cells() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("|") and not line.startswith("|--")
    ]
    assert rows[0] == ["architecture", *(feature.name for feature in FEATURES)]
    assert rows[1:] == [
        [name, *("yes" if feature.applies(row) else "-" for feature in FEATURES)]
        for name, row in ROWS.items()
    ]
