"""Every cell of docs/compatibility.md, and that the page says what the cells say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from cases import VARIANT_CASES
from features import FEATURES, Feature, compiled
from tiny import MODELS, ROWS, inputs
from torch._dynamo.exc import Unsupported

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
# They try each variant: `make test` has the edges, below and in test_saving.py.
WHOLE = ("compile", "save and load")
KINDS = ("GPT-2", "Llama", "T5", "ViT")
CELLS = [
    pytest.param(
        architecture,
        feature,
        id=f"{architecture}-{feature.name}",
        marks=pytest.mark.full if feature.name in WHOLE else (),
    )
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


@pytest.mark.parametrize("place", range(len(KINDS)), ids=KINDS)
def test_an_architecture_of_each_kind_compiles_with_four_variants(place: int) -> None:
    """Each variant in two of them."""
    four = (list(VARIANT_CASES) * 2)[4 * place : 4 * place + 4]
    compiled(KINDS[place], {name: VARIANT_CASES[name] for name in four})


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
