"""The comparison's statistics against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from finetune.experiments import statistics


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([0.1] * 6, 2 / 64),  # the two extreme sign patterns
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


def test_many_pairs_are_drawn_from() -> None:
    """With thirty pairs Student's t and the permutation test agree closely."""
    values = np.random.default_rng(1).normal(0.3, 1.0, size=30)
    expected = stats.ttest_1samp(values, 0).pvalue
    assert statistics.permutation_p(values) == pytest.approx(expected, abs=0.01)
    moved = values - values.mean() + statistics.least_shown(values)
    assert stats.ttest_1samp(moved, 0).pvalue == pytest.approx(0.05)


def test_permutation_p_is_not_parted_by_rounding() -> None:
    """Accuracies of 2733 examples: sums of sign flips tie, and rounding splits them by 1e-16."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        steps = rng.integers(-5, 6, size=7)
        base = rng.integers(2000, 2400, size=7)
        differences = (base + steps) / 2733 - base / 2733
        expected = statistics.permutation_p([float(x) for x in steps])
        assert statistics.permutation_p(list(differences)) == expected


@pytest.mark.parametrize("count", [2, 5, 9])
def test_permutation_p_is_scipys(count: int) -> None:
    for differences in np.random.default_rng(count).normal(0.2, 1, size=(20, count)):
        expected = stats.permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
        )
        assert statistics.permutation_p(differences) == pytest.approx(expected.pvalue)


def test_interval_is_students() -> None:
    values = np.array([0.01, 0.03, 0.02, 0.05, 0.04, 0.02, 0.03, 0.06])
    found = statistics.t_interval(values)
    student = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.ends == pytest.approx(tuple(student))
    assert statistics.t_interval([0.1]) is None
    assert statistics.t_interval([0.25] * 5).ends == (0.25, 0.25)
    assert statistics.t_interval([0.0, 1.0]).half_width == pytest.approx(12.7062 / 2, rel=1e-4)


@pytest.mark.parametrize("count", [6, 9, 12])
def test_least_shown_is_where_p_passes_five_per_cent(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    least, centred = statistics.least_shown(values), values - values.mean()
    above = [statistics.permutation_p(sign * (least + 1e-6) + centred) for sign in (1, -1)]
    below = [statistics.permutation_p(sign * (least - 1e-6) + centred) for sign in (1, -1)]
    assert max(above) <= 0.05 < max(below)
    assert statistics.least_shown(values[:5]) is None
    assert statistics.least_shown([0.1] * 8) is None


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
