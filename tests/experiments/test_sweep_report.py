"""What a sweep says of its best setting, and its figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from finetune.experiments import analyze, report
from finetune.experiments.analyze import ArmResult, Paired, TaskResult, against_baseline
from finetune.experiments.statistics import Interval

Text = pytest.importorskip("matplotlib.text").Text
sensitivity = pytest.importorskip("finetune.experiments.figures").sensitivity


def test_expected_maximum_of_normal_values() -> None:
    assert analyze.expected_maximum(1) == pytest.approx(0, abs=1e-9)
    assert analyze.expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert analyze.expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi))
    drawn = np.random.default_rng(0).standard_normal((20_000, 30)).max(axis=1)
    assert analyze.expected_maximum(30) == pytest.approx(drawn.mean(), abs=0.02)


def arms_of(values: np.ndarray) -> list[ArmResult]:
    """From values of shape (settings, seeds)."""
    return [
        ArmResult(f"order-{i + 2}", dict(enumerate(map(float, row))), setting={"order": i + 2})
        for i, row in enumerate(values)
    ]


def test_optimism_is_what_equal_settings_give_by_chance() -> None:
    """Over many sweeps without any difference, the best mean is as far above as is said."""
    generator = np.random.default_rng(1)
    above, said = [], []
    for _ in range(300):
        luck = generator.normal(0, 5, size=4)  # a seed's, shared by all settings
        values = generator.normal(0, 1, size=(9, 4)) + luck
        above.append(values.mean(axis=1).max() - values.mean())
        said.append(analyze.optimism(arms_of(values)))
    assert np.mean(said) == pytest.approx(np.mean(above), rel=0.08)
    assert analyze.optimism(arms_of(np.ones((1, 4)))) is None
    assert analyze.optimism(arms_of(np.ones((3, 1)))) is None


def test_the_best_follows_the_direction_and_needs_every_seed() -> None:
    arms = arms_of(np.array([[0.1, 0.2], [0.5, 0.6], [0.3, 0.3]]))
    arms.append(ArmResult("order-9", {0: 0.9}, setting={"order": 9}, missing={1: "failed"}))
    for greater, name in ((True, "order-3"), (False, "order-2")):
        (first,) = analyze.best(TaskResult("t", "eval_f1", greater, arms))
        assert first.name == name
    assert analyze.best(TaskResult("t", "eval_f1", True, [ArmResult("none", {0: 1.0})])) == []


def found_of(seeds: int = 2, **swept: list) -> TaskResult:
    """A sweep whose settings have the means 0, 1, 2 ... and plain attention 5."""
    settings = [dict(zip(swept, values, strict=True)) for values in product(*swept.values())]
    arms = [
        ArmResult(
            "-".join(map(str, setting.values())) or "none",
            {seed: mean + 0.1 * (-1) ** seed for seed in range(seeds)},
            {"variant": "gfsa" if setting else "none"},
            setting,
        )
        for mean, setting in [(5, {}), *enumerate(settings)]
    ]
    return TaskResult("cola", "eval_f1", True, arms)


def test_a_sweep_is_read_back_from_its_numbers() -> None:
    (found,) = analyze.against_baseline([found_of(order=[2, 3], layers=[None, [0, -1]])])
    (back,) = analyze.results_of(json.loads(json.dumps(analyze.as_json([found]))))
    assert report.table([back]) == report.table([found])
    assert report.legend([back]) == report.legend([found])


def curves(axis) -> list:
    """The lines through means."""
    return [x for x in axis.lines if x.get_linestyle() == "-"]


def test_the_figure_of_one_flag_has_means_plain_attention_and_paired_differences() -> None:
    found = found_of(order=[7, 4], seeds=4)
    plain, *arms = found.arms
    for i, by_seed in enumerate(([1, 2, 3, 6], [-1, -2, -3, -2])):
        paired = Paired(dict(enumerate(by_seed)), Interval(i, i + 4), 0.1, 0.1, 0)
        arms[i] = replace(arms[i], paired=paired)
    above, below = sensitivity(replace(found, arms=[plain, *arms])).axes
    means = [
        list(mean.get_xydata().round(6).flat) for axis in (above, below) for mean in curves(axis)
    ]
    assert means == [[4, 1, 7, 0], [4, -2, 7, 3]]
    line = next(line for line in above.lines if line.get_label() == "plain attention")
    assert line.get_ydata() == pytest.approx([5, 5])
    dots = [x for line in above.lines if line.get_marker() == "." for x in line.get_xdata()]
    assert sorted(dots) == [4] * 4 + [7] * 4
    (band,) = below.collections  # half the intervals' widths about the means
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
    assert corners == {(4, -4), (4, 0), (7, 1), (7, 5)}


def test_a_line_without_pairs_is_drawn_beside_one_that_has_them() -> None:
    """As of a sweep that is not finished."""
    found = found_of(order=[2, 3], w_0=[0.0, 0.1])
    arms = [
        replace(arm, values={5: 1.0}) if arm.setting.get("w_0") == 0.1 else arm
        for arm in found.arms
    ]
    above, below = sensitivity(against_baseline([replace(found, arms=arms)])[0]).axes
    assert [[len(x.get_xdata()) for x in curves(axis)] for axis in (above, below)] == [
        [2, 2],
        [2, 0],
    ]


@pytest.mark.parametrize(
    ("swept", "drawn"),
    [
        ({"filter_learning_rate": [1e-4, 1e-3]}, 1),
        ({"order": [2, 3], "layers": [None, [0, 1]]}, 2),
        ({"order": [2, 3], "w_0": [0.0, 0.1, 0.2]}, 2),
        ({"order": [2, 3], "w_0": [0.0, 0.1], "w_1": [0.9, 1.1]}, None),
        ({"layers": [None, 0]}, None),
        ({"order": [2]}, None),
    ],
)
def test_the_figure_fits_what_was_varied(swept: dict, drawn: int | None) -> None:
    """So many lines, or a row for each setting, which needs plain attention."""
    found = found_of(**swept)
    paired = against_baseline([found])[0]
    figure = sensitivity(paired)
    assert figure.get_figwidth() == pytest.approx(3.35)  # a column of a paper
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 7
    if drawn is not None:
        assert len(curves(figure.axes[0])) == drawn
        is_rate = "filter_learning_rate" in swept
        assert figure.axes[0].get_xscale() == ("log" if is_rate else "linear")
    else:
        assert len(figure.axes[0].get_yticks()) == len(found.settings)
        assert sensitivity(found) is None
