"""Figures and the page, and the look that each name has in all of them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import warm
from diagnosing import Reader, assert_pictures
from matplotlib.text import Text
from tiny import build, inputs

import hf_graphattn as ga
from hf_graphattn.diagnostics import Diagnosis, diagnose, drawing, figures, save_html
from hf_graphattn.diagnostics.drawing import looks
from hf_graphattn.diagnostics.plots import FIGURES
from hf_graphattn.variants import base as registry

pytest.importorskip("matplotlib")


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


def test_no_name_is_cut_off_or_left_out(diagnoses: dict[str, Diagnosis]) -> None:
    long = "runs/compare-cola/bert-base-uncased-fine-tuned-with-Warmup-And-Weight-Decay/seed-0"
    named = {start + long: diagnoses["gfsa"] for start in ("_", "the-first-of-our-", "other-")}
    for name, figure in figures(named).items():
        figure.draw_without_rendering()
        labels = "".join(legend_of(figure)).replace("\n", "")
        assert all(each in labels for each in named), name
        for text in (*(axis.title for axis in figure.axes), *figure.legends[0].get_texts()):
            box = text.get_window_extent()
            assert min(box.x0, box.y0) >= 0, (name, text.get_text())
            assert box.x1 <= figure.bbox.width, (name, text.get_text())
            assert box.y1 <= figure.bbox.height, (name, text.get_text())


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


EVERY = dict.fromkeys(["none", *ga.variant_configs()])


def test_every_variant_and_setting_with_a_name_has_a_look_of_its_own() -> None:
    arms = {name: variant for name, (variant, _, _) in drawing.PRESETS.items()}
    every = {name: name for name in EVERY}
    found = looks(every | arms)
    assert len({look.colour for look in found.values()}) == len(found)
    assert {name: found[name] for name in arms} == looks(arms)
    found = looks(every)
    for values in zip(*((x.label, x.colour, x.marker) for x in found.values()), strict=True):
        assert len(set(values)) == len(EVERY)
    assert (found["none"].label, found["none"].colour) == ("plain", drawing.BLACK)
    many = looks(dict.fromkeys([f"arm-{i}" for i in range(len(drawing.COLOURS) + 5)], "?"))
    assert {look.colour for look in many.values()} == set(drawing.COLOURS)


def test_an_arm_of_another_name_looks_like_its_variant_where_that_is_free() -> None:
    gfsa = looks({"gfsa": "gfsa"})["gfsa"]
    deep = looks({"deep": "gfsa"})["deep"]
    assert (deep.label, deep.colour, deep.marker) == ("deep", gfsa.colour, gfsa.marker)
    beside = looks({"deep": "gfsa", "gfsa": "gfsa", "other": "gfsa"})
    assert beside["gfsa"] == gfsa
    assert len({look.colour for look in beside.values()}) == 3
    fast = looks({"degree1-1e-1": "polynomial"})["degree1-1e-1"]
    assert fast.colour == looks({"degree1": "polynomial"})["degree1"].colour
    before = looks({"before": "none", "none": "none"})
    assert [look.colour for look in before.values()] == [drawing.GREY, drawing.BLACK]


def test_a_variant_of_another_package_takes_no_colour_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is called as it is registered, unless it says otherwise; a parent's look is not its."""
    ours = looks({name: name for name in EVERY})
    monkeypatch.setattr(registry, "_CONFIGS", dict(registry._CONFIGS))

    @ga.register("heat")
    @dataclass(frozen=True)
    class HeatConfig(ga.GFSAConfig):
        pass

    @ga.register("cold")
    @dataclass(frozen=True)
    class ColdConfig(ga.VariantConfig):
        title: ClassVar[str] = "The Cold"
        colour: ClassVar[int | None] = 20

    @dataclass(frozen=True)
    class TakenConfig(ga.VariantConfig):
        colour: ClassVar[int | None] = ga.GFSAConfig.colour

    with pytest.raises(ga.GraphAttentionError, match=r"colour of variant 'taken' is 3; .* gfsa's"):
        ga.register("taken")(TakenConfig)

    assert drawing.title("heat") == "heat"
    every = looks({name: name for name in (*EVERY, "heat", "cold")})
    assert {name: every[name] for name in EVERY} == ours
    assert (every["cold"].label, every["cold"].colour) == ("The Cold", drawing.COLOURS[20])
    assert len({look.colour for look in every.values()}) == len(EVERY) + 2
