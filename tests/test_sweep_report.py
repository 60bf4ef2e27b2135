"""What a sweep says of its best setting, and its figures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import glue_stand_in
import numpy as np
import pytest
from glue_stand_in import argv

from finetune import sweep
from finetune.comparison.results import ArmResult, Paired, TaskResult
from finetune.comparison.statistics import Interval
from finetune.sweeping import figures, selection
from finetune.sweeping.results import Found


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    return glue_stand_in.save(tmp_path)


def test_expected_maximum_of_normal_values() -> None:
    assert selection.expected_maximum(1) == pytest.approx(0, abs=1e-9)
    assert selection.expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert selection.expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi))
    drawn = np.random.default_rng(0).standard_normal((20_000, 30)).max(axis=1)
    assert selection.expected_maximum(30) == pytest.approx(drawn.mean(), abs=0.02)


def arms_of(values: np.ndarray) -> list[ArmResult]:
    """From values of shape (settings, seeds)."""
    return [
        ArmResult(f"order-{i + 2}", [], dict(enumerate(map(float, row))), {}, {})
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
        said.append(selection.optimism(arms_of(values)))
    assert np.mean(said) == pytest.approx(np.mean(above), rel=0.08)
    assert selection.optimism(arms_of(np.ones((1, 4)))) is None
    assert selection.optimism(arms_of(np.ones((3, 1)))) is None


def test_the_best_follows_the_direction_and_needs_every_seed() -> None:
    arms = arms_of(np.array([[0.1, 0.2], [0.5, 0.6], [0.3, 0.3]]))
    arms.append(ArmResult("order-9", [], {0: 0.9}, {1: "failed"}, {}))
    for greater, name in ((True, "order-3"), (False, "order-2")):
        assert selection.best(TaskResult("t", "eval_f1", greater, arms), arms).name == name
    assert selection.best(TaskResult("t", "eval_f1", True, []), []) is None


def found_of(folder: Path, text: str, *others: str) -> Found:
    """A sweep whose settings have the means 0, 1, 2 ... and plain attention 5."""
    given, common = sweep.command_line.parser(None).parse_known_args(argv(folder, text, *others))
    made = sweep.planned(given, common)
    settings = {setting.name: setting for setting in made.space.grid()}
    arms = [
        ArmResult(name, [], {seed: mean + 0.1 * (-1) ** seed for seed in made.seeds}, {}, {})
        for name, mean in {"none": 5, **{name: i for i, name in enumerate(settings)}}.items()
    ]
    return Found(made, TaskResult("cola", "eval_f1", True, arms), settings)


def test_ranked_rows_have_the_best_first_and_those_without_values_last(fake: Path) -> None:
    found = found_of(fake, "order: [2, 3, 4, 5]")
    for name in ("order-2", "order-3"):
        next(arm for arm in found.rows if arm.name == name).values.clear()
    ranked = replace(found, ranked=True)
    assert [arm.name for arm in ranked.rows] == ["order-5", "order-4", "order-2", "order-3"]
    ranked = replace(ranked, task=replace(found.task, greater_is_better=False))
    assert [arm.name for arm in ranked.rows] == ["order-4", "order-5", "order-2", "order-3"]


def test_the_figure_of_one_flag_has_the_means_and_plain_attention(fake: Path) -> None:
    pytest.importorskip("matplotlib")
    (axis,) = figures.sensitivity(found_of(fake, "order: [7, 4, 5]")).axes
    mean = next(line for line in axis.lines if line.get_linestyle() == "-")
    assert list(mean.get_xdata()) == [4, 5, 7]
    assert list(mean.get_ydata()) == pytest.approx([1, 2, 0])
    plain = next(line for line in axis.lines if line.get_label() == "plain attention")
    assert plain.get_ydata() == pytest.approx([5, 5])
    dots = sum(len(line.get_xdata()) for line in axis.lines if line.get_linestyle() == "None")
    assert dots == 6
    assert axis.get_xscale() == "linear"


def test_paired_differences_are_drawn_beside_the_metric(fake: Path) -> None:
    pytest.importorskip("matplotlib")
    found = found_of(fake, "order: [7, 4]", "--seeds", "4")
    plain, *arms = found.task.arms
    for arm, by_seed in zip(arms, ([1, 2, 3, 6], [-1, -2, -3, -2]), strict=True):
        interval = Interval(min(by_seed), max(by_seed), "BCa")
        paired = Paired(dict(enumerate(by_seed)), interval, 0.1, 0.1, 0)
        arms[arms.index(arm)] = replace(arm, paired=paired)
    found = replace(found, task=replace(found.task, arms=[plain, *arms]))
    axis = figures.sensitivity(found).axes[1]
    mean = next(line for line in axis.lines if line.get_linestyle() == "-")
    assert list(mean.get_xdata()) == [4, 7]
    assert list(mean.get_ydata()) == [-2, 3]
    (band,) = axis.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
    assert corners == {(4, -3), (4, -1), (7, 1), (7, 6)}


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("filter_learning_rate: [1e-4, 1e-3]", "line"),
        ("{order: [2, 3], layers: [null, [0, 1]]}", "line"),
        ("{order: [2, 3], w_0: [0, 0.1, 0.2]}", "heat"),
        ("{order: [2, 3], w_0: [0, 0.1], w_1: [0.9, 1.1]}", "slices"),
        ("layers: [null, 0]", "dots"),
        ("order: [2]", "dots"),
    ],
)
def test_the_figure_fits_what_was_varied(fake: Path, text: str, drawn: str) -> None:
    pytest.importorskip("matplotlib")
    found = found_of(fake, text, "--seeds", "2")
    axes = figures.sensitivity(found).axes
    if drawn == "line":
        lines = [line for line in axes[0].lines if line.get_linestyle() == "-"]
        assert len(lines) == (2 if "layers" in text else 1)
        assert axes[0].get_xscale() == ("log" if "learning_rate" in text else "linear")
    elif drawn == "heat":
        (image,) = axes[0].images
        means = np.array([[arm.mean for arm in found.rows]]).reshape(2, 3)
        assert np.allclose(image.get_array(), means)
    elif drawn == "slices":
        assert [axis.get_xlabel() for axis in axes] == ["order", "w_0", "w_1"]
    else:
        assert len(axes[0].get_yticks()) == len(found.rows)
