"""The comparison's statistics against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef

from finetune.comparison import examples, statistics
from finetune.comparison.examples import Examples


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 2 / 64),  # all positive: the two extreme sign patterns
        ([0.1, 0.2, 0.3, 0.4, 0.5], 2 / 32),
        ([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6], 2 / 64),
        ([0.1] * 6, 2 / 64),
        ([0.0] * 6, 1.0),
        # Sums of +-1 +-2 +-3 at least as far out as 1+2-3 = 0: all of them.
        ([1.0, 2.0, -3.0], 1.0),
        # |sum| >= 4 of +-1 +-2 +-3: 6, 4, -4, -6: four of eight.
        ([-1.0, 2.0, 3.0], 4 / 8),
        ([0.5], 1.0),
        ([], 1.0),
    ],
)
def test_permutation_p_by_hand(differences: list[float], expected: float) -> None:
    assert statistics.permutation_p(differences) == pytest.approx(expected, abs=1e-12)


def test_permutation_p_of_many_pairs_is_drawn() -> None:
    differences = np.random.default_rng(1).normal(0.3, 1.0, size=30)
    # With thirty pairs the t test and the permutation test agree closely.
    expected = stats.ttest_1samp(differences, 0).pvalue
    assert statistics.permutation_p(differences) == pytest.approx(expected, abs=0.01)


def test_permutation_p_is_not_parted_by_rounding() -> None:
    """Accuracies of 2733 examples: sums of sign flips tie, and rounding splits them by 1e-16."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        steps = rng.integers(-5, 6, size=7)
        base = rng.integers(2000, 2400, size=7)
        differences = (base + steps) / 2733 - base / 2733
        expected = statistics.permutation_p([float(x) for x in steps])
        assert statistics.permutation_p(list(differences)) == expected


def test_smallest_p_is_what_the_test_gives() -> None:
    for pairs in range(2, 9):
        least = statistics.permutation_p(np.arange(1, pairs + 1))
        assert least == pytest.approx(statistics.smallest_p(pairs))


def test_interval_holds_the_mean_and_moves_with_the_values() -> None:
    values = np.array([0.01, 0.03, 0.02, 0.05, 0.04, 0.02, 0.03, 0.06])
    found = statistics.bootstrap_interval(values)
    assert found.method == "BCa"
    assert found.low < values.mean() < found.high
    # Of a mean of so few values it is near, and narrower than, Student's interval.
    student = stats.t.interval(0.95, 7, values.mean(), stats.sem(values))
    assert found.half_width == pytest.approx((student[1] - student[0]) / 2, rel=0.3)
    assert found.half_width < (student[1] - student[0]) / 2
    moved = statistics.bootstrap_interval(values + 1)
    assert (moved.low, moved.high) == pytest.approx((found.low + 1, found.high + 1), abs=1e-9)


def test_interval_of_degenerate_values() -> None:
    assert statistics.bootstrap_interval([0.1, 0.2, 0.3]) is None
    same = statistics.bootstrap_interval([0.25] * 5)
    assert (same.low, same.high, same.method) == (0.25, 0.25, "all equal")
    nearly = statistics.bootstrap_interval([0.0, 0.0, 0.0, 1.0])
    assert math.isfinite(nearly.low)
    assert math.isfinite(nearly.high)


def test_least_shown_of_six_is_where_all_have_one_sign() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 8.0])  # mean 3: 5 above and 3 below
    assert statistics.least_shown(values) == pytest.approx(5.0)
    assert statistics.least_shown(-values) == pytest.approx(5.0)
    assert statistics.least_shown(values[:5]) is None
    assert statistics.least_shown([0.1] * 8) is None


@pytest.mark.parametrize("count", [7, 9, 12])
def test_least_shown_is_where_p_passes_five_per_cent(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    least, centred = statistics.least_shown(values), values - values.mean()
    above = [statistics.permutation_p(sign * (least + 1e-6) + centred) for sign in (1, -1)]
    below = [statistics.permutation_p(sign * (least - 1e-6) + centred) for sign in (1, -1)]
    assert max(above) <= 0.05 < max(below)


def test_least_shown_of_many_is_students() -> None:
    values = np.random.default_rng(0).normal(size=17)
    moved = values - values.mean() + statistics.least_shown(values)
    assert stats.ttest_1samp(moved, 0).pvalue == pytest.approx(0.05)
    exact = statistics.least_shown(values[:16])
    centred = values[:16] - values[:16].mean() + exact
    assert stats.ttest_1samp(centred, 0).pvalue == pytest.approx(0.05, abs=0.01)


def test_holm_by_hand() -> None:
    # Sorted: 0.01 * 4, 0.02 * 3, 0.03 * 2, 0.5 * 1; never below an earlier one.
    assert statistics.holm([0.02, 0.01, 0.5, 0.03]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert statistics.holm([0.4, 0.6]) == pytest.approx([0.8, 0.8])
    assert statistics.holm([0.3]) == [0.3]
    assert statistics.holm([]) == []


def test_limits_are_told_before_running() -> None:
    assert "5 seeds cannot show a difference" in statistics.limits(5, 1)
    assert "2/2^5 = 0.0625" in statistics.limits(5, 1)
    assert "It takes 6 seeds." in statistics.limits(5, 1)
    assert statistics.limits(6, 1) is None
    # 3 arms on 2 tasks: 6 * 2/64 = 0.19.
    found = statistics.limits(6, 6)
    assert "0.188 after Holm's correction" in found
    assert "It takes 8 seeds" in found
    assert statistics.limits(8, 6) is None
    for comparisons in range(1, 40):
        needed = statistics.pairs_needed(comparisons)
        assert statistics.smallest_p(needed) * comparisons <= 0.05
        assert statistics.smallest_p(needed - 1) * comparisons > 0.05


def runs(*triples: tuple[int, int, int]) -> tuple[Examples, Examples]:
    """From (first's prediction, second's, label)."""
    first, second, labels = np.array(triples).T
    return Examples(first, labels), Examples(second, labels)


def test_mcnemar_by_hand() -> None:
    # The first alone is right in 1, the second alone in 6, both in 3, neither in 2.
    triples = [(1, 0, 1)] + [(0, 1, 1)] * 6 + [(1, 1, 1)] * 3 + [(0, 0, 1)] * 2
    found = examples.mcnemar(*runs(*triples))
    assert (found.only_first, found.only_second) == (1, 6)
    # Binomial, 7 trials: P(X <= 1) + P(X >= 6) = 2 (1 + 7) / 128.
    assert found.p == pytest.approx(16 / 128)
    assert (found.first, found.second) == pytest.approx((4 / 12, 9 / 12))
    assert found.difference == pytest.approx(5 / 12)
    assert found.low < found.difference < found.high
    assert examples.mcnemar(*runs((1, 1, 1), (0, 0, 1))).p == 1.0


@pytest.mark.parametrize("labels", [2, 3])
def test_metrics_of_counts_are_those_of_scikit_learn(labels: int) -> None:
    generator = np.random.default_rng(0)
    predicted, actual = generator.integers(labels, size=(2, 200))
    ones = np.ones((1, 200), dtype=int)
    found = examples.matthews(ones, predicted, actual)
    assert found[0] == pytest.approx(matthews_corrcoef(actual, predicted))
    assert examples.accuracy(ones, predicted, actual)[0] == (predicted == actual).mean()
    if labels == 2:
        assert examples.f1(ones, predicted, actual)[0] == pytest.approx(f1_score(actual, predicted))


def test_metrics_of_a_constant_side_are_zero() -> None:
    ones, zeros = np.ones((1, 4), dtype=int), np.zeros(4, dtype=int)
    assert examples.matthews(ones, zeros, np.array([0, 1, 0, 1]))[0] == 0
    assert examples.f1(ones, zeros, zeros)[0] == 0


def test_counts_are_drawn_as_examples_are() -> None:
    """The multinomial shortcut has the distribution of drawing the examples themselves."""
    generator = np.random.default_rng(3)
    labels = generator.integers(2, size=80)
    flips = generator.random((2, 80)) < [[0.3], [0.2]]
    first, second = np.where(flips, 1 - labels, labels)
    found = examples.counted(
        "matthews_correlation",
        examples.matthews,
        Examples(first, labels),
        Examples(second, labels),
    )
    drawn = np.stack(
        [np.bincount(r, minlength=80) for r in generator.integers(80, size=(4000, 80))]
    )
    ones = examples.matthews(drawn, second, labels) - examples.matthews(drawn, first, labels)
    low, high = np.quantile(ones, [0.025, 0.975])
    assert found.difference == pytest.approx(
        matthews_corrcoef(labels, second) - matthews_corrcoef(labels, first)
    )
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.02)


def test_correlations_are_those_of_scipy_and_tell_runs_apart() -> None:
    generator = np.random.default_rng(4)
    labels = np.round(generator.uniform(0, 5, size=120), 1)
    good, bad = labels + generator.normal(0, 0.5, 120), labels + generator.normal(0, 3, 120)
    for name, function in (("pearson", stats.pearsonr), ("spearmanr", stats.spearmanr)):
        found = examples.correlation(name, Examples(bad, labels), Examples(good, labels))
        assert found.first == pytest.approx(function(bad, labels).statistic)
        assert found.second == pytest.approx(function(good, labels).statistic)
        assert found.low > 0
        assert found.p == pytest.approx(2 / 10_001)  # not one draw in 10,000 was as low as 0
    same = examples.correlation("pearson", Examples(good, labels), Examples(good, labels))
    assert (same.difference, same.p) == (0, 1)
