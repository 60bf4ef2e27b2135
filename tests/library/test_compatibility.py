"""Every cell of docs/compatibility.md, and that the page says what the cells say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from features import FEATURES, Feature
from tiny import MODELS, ROWS, inputs
from torch._dynamo.exc import Unsupported

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
CELLS = [
    pytest.param(architecture, feature, id=f"{architecture}-{feature.name}")
    for architecture, row in ROWS.items()
    for feature in FEATURES
    if feature.applies(row)
]


@pytest.mark.parametrize(("architecture", "feature"), CELLS)
def test_cell(architecture: str, feature: Feature) -> None:
    try:
        feature.check(architecture)
    except Unsupported as error:  # torch's compiler gave up, as it may on the plain model too
        with pytest.raises(Unsupported):
            torch.compile(MODELS[architecture](), fullgraph=True)(**inputs(MODELS[architecture]()))
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        pytest.skip(f"{versions}: the plain model does not compile either: {error}")


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
