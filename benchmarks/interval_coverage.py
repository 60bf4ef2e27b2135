"""How often a comparison's 95 % interval holds the true mean, by the number of seeds.

    python benchmarks/interval_coverage.py

Differences are drawn from a normal distribution, of which the truth is known.
"""

from __future__ import annotations

import argparse

import numpy as np
from tqdm import tqdm

from finetune.experiments.statistics import bootstrap_interval


def coverage(seeds: int, draws: int, generator: np.random.Generator) -> float:
    """The share of ``draws`` samples of ``seeds`` values whose interval holds 0."""
    held = 0
    for _ in tqdm(range(draws), desc=f"{seeds} seeds", leave=False):
        interval = bootstrap_interval(list(generator.standard_normal(seeds)))
        held += interval is not None and interval.low <= 0 <= interval.high
    return held / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[4, 6, 8, 16])
    parser.add_argument("--draws", type=int, default=500)
    given = parser.parse_args()
    generator = np.random.default_rng(0)
    for seeds in given.seeds:
        share = coverage(seeds, given.draws, generator)
        error = (share * (1 - share) / given.draws) ** 0.5
        print(f"{seeds} seeds: {share:.1%} of {given.draws} samples (standard error {error:.1%})")


if __name__ == "__main__":
    main()
