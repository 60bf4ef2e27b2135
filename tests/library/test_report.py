"""`ga.report`: rows, their values, text and HTML."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
import torch
from tiny import MODELS, ROWS

import hf_graphattn as ga


@pytest.mark.parametrize("architecture", MODELS)
def test_one_row_a_self_attention_module_in_the_order_of_layers(architecture: str) -> None:
    last = ROWS[architecture].modules - 1
    model = ga.patch_model(MODELS[architecture](), ga.GFSAConfig(w_0=-0.25, layers=(last,)))
    report = ga.report(model)
    assert [row.layer for row in report.rows] == list(range(last + 1))
    assert [row.variant for row in report.rows] == ["plain"] * last + ["gfsa"]
    (name,) = ga.graph_filters(model)
    row = report.rows[-1]
    assert (row.module, row.heads, row.learned) == (name, 4, ("w_K",))
    assert row.scalars == {"w_0": -0.25, "w_1": 1.0, "w_K": [0.0] * 4}


def test_values_backends_and_reasons_are_printed() -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    with torch.no_grad():
        for _, parameter in ga.filter_parameters(model):
            parameter.copy_(torch.tensor([0.5, -0.25, 0.125, 0.0]))
    text = str(ga.report(model))
    assert "2 of 2 self-attention modules filtered, 8 learned scalars" in text
    assert "w_K* 0.5 -0.25 0.125 0" in text
    assert "shared: auto; else sdpa, eager" in text
    assert len({len(line) for line in text.splitlines()[1:3]}) <= 2
    model = ga.patch_model(MODELS["BERT"](), ga.PLaTConfig(), backend="eager")
    text = str(ga.report(model))
    assert "eager: as requested" in text
    assert "p 1.5 1.5 2.5 2.5" in text
    many = ga.patch_model(
        MODELS["BERT"](hidden_size=48, num_attention_heads=12), ga.PLaTConfig(p=(1.0, 3.0))
    )
    assert "p 1 .. 3, mean 2" in str(ga.report(many))


@pytest.mark.parametrize(
    ("config", "passes", "cost"),
    [
        (ga.GainConfig(), "2 passes of attention (plain: 2)", "0.0011 s and 4 MB for 1024"),
        (ga.GFSAConfig(), "4 passes of attention (plain: 2)", "0.019 s and 37 MB for 1024"),
        (ga.PLaTConfig(layers=(0,)), "1 passes of attention (plain: 1)", "0.023 s and 25 MB for"),
        (ga.FeatScaleConfig(), "filtered, 128 learned scalars\nlayer", ""),  # not estimated
    ],
)
def test_the_cost_follows_passes_heads_and_layers(
    config: ga.VariantConfig, passes: str, cost: str
) -> None:
    """A layer has four heads, a third of those that were measured."""
    text = str(ga.report(ga.patch_model(MODELS["BERT"](), config)))
    assert passes in text
    assert cost in text


def test_html_has_the_same_cells() -> None:
    report = ga.report(ga.patch_model(MODELS["T5"](), ga.LaplacianConfig(trainable=("step",))))
    cells: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            cells.append(data)

    Reader().feed(report._repr_html_())
    expected = [cell for row in report.cells for cell in row if cell]
    assert cells[0] == report.title
    assert cells[7:] == expected


def test_a_plain_model_has_no_report() -> None:
    with pytest.raises(ga.GraphAttentionError, match=r"not patched.*patch_model"):
        ga.report(MODELS["BERT"]())
