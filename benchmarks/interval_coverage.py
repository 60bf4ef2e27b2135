"""How often a 95 % interval holds the true mean, by the number of seeds: Student's t and BCa.

    python benchmarks/interval_coverage.py

Differences are drawn from a normal distribution, and from a skewed one (exponential), of which the
truth is known. Comparisons have Student's t; the BCa bootstrap is here to say why not that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from scipy import stats
from tqdm import tqdm

from finetune.experiments.statistics import Interval, t_interval

Make = Callable[[np.ndarray], Interval | None]
Draw = Callable[[np.random.Generator, int], np.ndarray]
DRAWN: dict[str, Draw] = {
    "normal": lambda generator, seeds: generator.standard_normal(seeds),
    "skewed": lambda generator, seeds: generator.standard_exponential(seeds) - 1,
}


def bca(values: np.ndarray) -> Interval:
    """95 % interval of the mean by the BCa bootstrap."""
    found = stats.bootstrap((values,), np.mean, rng=np.random.default_rng(0)).confidence_interval
    return Interval(float(found.low), float(found.high))


def coverage(make: Make, draw: Draw, seeds: int, draws: int) -> float:
    """The share of ``draws`` samples of ``seeds`` values whose interval holds 0, the true mean."""
    generator, held = np.random.default_rng(0), 0
    for _ in tqdm(range(draws), desc=f"{seeds} seeds", leave=False):
        interval = make(draw(generator, seeds))
        held += interval is not None and interval.low <= 0 <= interval.high
    return held / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[4, 6, 8, 9, 16])
    parser.add_argument("--draws", type=int, default=2000)
    given = parser.parse_args()
    makes: dict[str, Make] = {"t": t_interval, "BCa": bca}
    for seeds in given.seeds:
        found = {
            f"{name} {kind}": coverage(make, draw, seeds, given.draws)
            for kind, draw in DRAWN.items()
            for name, make in makes.items()
        }
        said = ", ".join(f"{name} {share:.1%}" for name, share in found.items())
        print(f"{seeds} seeds: {said} of {given.draws} samples (standard error at most 1.1 %)")


if __name__ == "__main__":
    main()
