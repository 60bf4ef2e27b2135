"""What paired differences over seeds show: exact permutation p-values, t intervals, Holm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from finetune.plurals import many

LEVEL = 0.05
EXACT_UP_TO = 20  # pairs; of more, 2^n sign flips are drawn from
LEAST_PAIRS = 2  # that have a spread
RESAMPLES = 100_000
SEED = 0


@dataclass(frozen=True)
class Interval:
    """A 95 % interval of a mean, and how it was found: earlier records have BCa."""

    low: float
    high: float
    method: str = "t"

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    def as_text(self, places: int) -> str:
        """Both ends with their signs, with so many digits after the point."""
        return f"{self.low:+.{places}f} to {self.high:+.{places}f}"

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def permutation_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of the mean of paired differences, under all sign flips.

    Exact up to 20 pairs: no distribution is assumed, only that under the null hypothesis either
    order of a pair is as likely. The smallest value n pairs can give is 2 / 2^n.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2 or not values.any():
        return 1.0
    # Differences of accuracies come in steps, so sums tie; rounding must not part them.
    bar = abs(values.sum()) - 1e-9 * np.abs(values).sum()
    if len(values) <= EXACT_UP_TO:
        return float((np.abs(_signed_sums(values)) >= bar).mean())
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=(RESAMPLES, len(values)))
    as_far = np.count_nonzero(np.abs(signs @ values) >= bar)
    return (as_far + 1) / (RESAMPLES + 1)


def _signed_sums(values: np.ndarray) -> np.ndarray:
    """The sums under all 2^n assignments of signs.

    `scipy.stats.permutation_test` gives the same p, but takes the assignments one after another:
    6 seconds for 20 pairs.
    """
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def t_interval(differences: Sequence[float]) -> Interval | None:
    """95 % interval of the mean by Student's t; None of a single value.

    It holds the true mean in 95 % of cases where differences are normally distributed, at any
    number of them. The BCa bootstrap assumes no distribution, but draws from the few values alone:
    of eight normal ones it holds the mean in 89 % of cases, of eight skewed ones in 86, where
    Student's holds it in 89 (`benchmarks/interval_coverage.py`).
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < LEAST_PAIRS:
        return None
    half = stats.t.ppf(1 - LEVEL / 2, len(values) - 1) * stats.sem(values)
    return Interval(float(values.mean() - half), float(values.mean() + half))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's step-down procedure, in the order given."""
    order = np.argsort(p_values)
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = highest
    return corrected


def smallest_p(pairs: int) -> float:
    """The smallest two-sided p-value that an exact test of so many pairs can give."""
    return min(1.0, 2.0 / 2.0**pairs)


def pairs_needed(comparisons: int) -> int:
    """The number of pairs with which each comparison can reach 0.05 after Holm's correction."""
    return math.ceil(math.log2(2 * comparisons / LEVEL))


def least_shown(differences: Sequence[float], level: float = LEVEL) -> float | None:
    """The mean difference that would just reach p <= ``level`` with the spread that these have.

    Add c to all differences. With the signs of a set S of them flipped, their mean is then as far
    from 0 as without, if c is at most minus the mean of the original ones over S; p is at the level
    where few enough sets are left. Of the two directions this is the one that needs more. Above 16
    pairs it is Student's t_(1-level/2, n-1) sd / sqrt(n), which then hardly differs. None where no
    difference can be shown, or where there is no spread.
    """
    values = np.asarray(differences, dtype=np.float64)
    count = len(values)
    if smallest_p(count) > level or np.ptp(values) == 0:
        return None
    if count > 16:
        return float(stats.t.ppf(1 - level / 2, count - 1) * stats.sem(values))
    sets = (np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1
    means = sets @ (values - values.mean()) / sets.sum(axis=1)
    left = int(level / 2 * 2**count)  # so many sets, the empty one among them, may be as far out
    return float(max(np.partition(-means, -left)[-left], np.partition(means, -left)[-left]))


def limits(pairs: int, comparisons: int) -> str | None:
    """What so many pairs cannot show, whatever comes out; None if they can show a difference."""
    least, among = smallest_p(pairs), f" among {comparisons} comparisons" if comparisons > 1 else ""
    if min(1.0, least * comparisons) <= LEVEL:
        return None
    takes = f"It takes {pairs_needed(comparisons)} seeds"
    text = f"the smallest p of an exact paired test is 2/2^{pairs} = {least:.3g}"
    if among and least <= LEVEL:
        text += f", {min(1.0, least * comparisons):.3g} after Holm's correction"
        takes += ", or fewer arms or tasks"
    return f"{many(pairs, 'seed')} cannot show a difference{among}: {text}. {takes}."
