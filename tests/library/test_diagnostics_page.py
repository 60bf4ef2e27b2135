"""Figures and the page; the page in a real browser where there is one."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import warm
from pages import Reader, assert_pictures
from tiny import build, inputs

import hf_graphattn as ga
from hf_graphattn.diagnostics import Diagnosis, diagnose, figures, save_html

pytest.importorskip("matplotlib")
from matplotlib.text import Text

from hf_graphattn.diagnostics.plots import FIGURES

NASTY = 'a<b>&"c'


@pytest.fixture(scope="module")
def diagnoses() -> dict[str, Diagnosis]:
    torch.manual_seed(0)
    model = build("BERT")
    plain = diagnose(model, inputs(model, "right"))
    ga.patch_model(model, ga.GFSAConfig(order=4, w_K=0.3))
    return {NASTY: plain, "gfsa": diagnose(model, inputs(model, "right"))}


def broken(diagnosis: Diagnosis) -> Diagnosis:
    """All numbers NaN."""

    def nan(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            fields = {f.name: nan(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return dataclasses.replace(value, **fields)  # type: ignore[type-var]
        if isinstance(value, dict):
            return {name: nan(item) for name, item in value.items()}
        return np.full_like(value, np.nan) if isinstance(value, np.ndarray) else value

    parts = tuple(nan(part) for part in diagnosis.parts)
    return dataclasses.replace(diagnosis, parts=parts)


def single() -> Diagnosis:
    """One layer, one head, one sequence of two tokens."""
    model = build("BERT", num_hidden_layers=1, num_attention_heads=1)
    ga.patch_model(model, ga.GFSAConfig())
    return diagnose(model, {"input_ids": torch.tensor([[4, 5]])})


@pytest.fixture(scope="module")
def html(diagnoses: dict[str, Diagnosis], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    save_html(diagnoses, path, ["One is <b>plain</b>."])
    return path.read_text(encoding="utf-8")


def test_the_page_holds_every_figure_and_nothing_from_elsewhere(
    html: str, diagnoses: dict[str, Diagnosis]
) -> None:
    assert_pictures(html, len(FIGURES))
    assert "a&lt;b&gt;&amp;&quot;c" in html
    assert "<b>" not in html
    words = " ".join(Reader(html).words)
    assert NASTY in words
    for figure in FIGURES.values():
        assert figure.heading in words
        assert figure.claim in words
    assert "One is <b>plain</b>." in words
    cells = [text for text in Reader(html).words if text.strip()]
    falls = cells.index("energy falls, p = 2: share of heads and sequences")
    of_parts = [each.parts[0].by_head["energy_p2_falls"].mean.mean() for each in diagnoses.values()]
    assert cells[falls + 1 : falls + 3] == [f"{share:.3g}" for share in of_parts]
    for diagnosis in diagnoses.values():
        (part,) = diagnosis.parts
        first, last = part.by_depth["cosine"].mean[[0, -1]]
        assert f"{first:.3g} to {last:.3g}" in words
        worst = (part.worst_error / (2 * np.array(diagnosis.orders))).max()
        assert f"{worst:.3g}" in words


@pytest.mark.parametrize("case", ["plain", "single", "broken"])
def test_every_figure_draws_every_case(case: str, diagnoses: dict[str, Diagnosis]) -> None:
    cases = {
        "plain": lambda: {NASTY: diagnoses[NASTY]},
        "single": lambda: {"one": single()},
        "broken": lambda: {"broken": broken(diagnoses["gfsa"])},
    }
    named = cases[case]()
    drawn = figures(named)
    assert set(drawn) == set(FIGURES) - ({"scalars"} if case == "plain" else set())
    for name, figure in drawn.items():
        figure.draw_without_rendering()
        assert_readable(name, figure)


def assert_readable(name: str, figure: Any) -> None:
    """As wide as a column of a paper, in letters of 7 points and more."""
    assert figure.get_figwidth() == pytest.approx(3.35)
    sizes = {text.get_text(): text.get_fontsize() for text in figure.findobj(Text)}
    assert min(size for text, size in sizes.items() if text) >= 7, name


def test_lines_show_the_numbers(diagnoses: dict[str, Diagnosis]) -> None:
    drawn = figures(diagnoses)
    above, below = drawn["cosine_similarity"].axes
    means = [diagnosis.parts[0].by_depth["cosine"].mean for diagnosis in diagnoses.values()]
    for line, mean in zip(above.lines, means, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), mean)
    plain, filtered = means
    zero, line = below.lines
    assert set(zero.get_ydata()) == {0}
    np.testing.assert_array_equal(line.get_ydata(), filtered - plain)
    assert legend_of(drawn["cosine_similarity"]) == [NASTY, "GFSA"]
    bound = next(
        x for x in drawn["approximation_error"].axes[0].lines if x.get_label() == "bound 2K"
    )
    np.testing.assert_array_equal(bound.get_ydata(), 2 * bound.get_xdata())
    entropy = drawn["attention_entropy"].axes[0].lines[0].get_ydata()
    heads = diagnoses[NASTY].parts[0].by_head["entropy"].mean
    np.testing.assert_allclose(entropy, heads.mean(-1))
    (learned,) = drawn["scalars"].axes[0].lines
    np.testing.assert_allclose(learned.get_ydata(), 0.3, rtol=1e-6)


def test_figures_leave_out_rounding_errors_and_what_is_not_finite(
    diagnoses: dict[str, Diagnosis],
) -> None:
    part = diagnoses["gfsa"].parts[0]
    values = dataclasses.replace(part.singular_values, mean=np.array([1, 0.5, 1e-9]))
    changed = dataclasses.replace(part, singular_values=values)
    drawn = figures({"x": dataclasses.replace(diagnoses["gfsa"], parts=(changed,))})
    line = drawn["singular_values"].axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(line, [1, 0.5, np.nan])


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_without_matplotlib_the_error_names_the_extra(
    diagnoses: dict[str, Diagnosis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    remedy = r"pip install -e '\.\[plots\]'"
    with pytest.raises(ga.GraphAttentionError, match=f"needs matplotlib.*{remedy}"):
        diagnoses["gfsa"].figures()
    with pytest.raises(ga.GraphAttentionError, match=f"needs pandas.*{remedy}"):
        diagnoses["gfsa"].to_pandas()


def test_importing_the_diagnostics_imports_no_extra_and_keeps_the_function() -> None:
    script = "import sys, hf_graphattn.diagnostics, hf_graphattn.diagnose as name\n"
    script += "import hf_graphattn\n"
    script += "assert hf_graphattn.diagnose is hf_graphattn.diagnostics.diagnose is name\n"
    script += "assert not {'matplotlib', 'pandas'} & set(sys.modules)"
    subprocess.run([warm.python("torch"), "-c", script], check=True)
