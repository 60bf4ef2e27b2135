"""Two runs compared example by example, on the same evaluation rows.

Accuracy by McNemar's exact test (of the examples that only one of the two has right, is either side
as likely?). F1, Matthews' correlation, Pearson's and Spearman's by the paired bootstrap: examples
are drawn again and both runs scored on each draw. This says whether these two trained models differ
on rows like these; it says nothing of other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from finetune.comparison.statistics import LEVEL
from finetune.flags import refusal
from finetune.outputs import EVALUATED

RESAMPLES = 10_000
SEED = 0
CHUNK = 4_000_000  # drawn examples held at a time

# A metric of counts (draws, cells), given each cell's prediction and label: (draws,).
CountMetric = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Examples:
    """A run's evaluation: its predictions and the labels, both (examples,)."""

    predictions: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Test:
    """One metric of two runs; ``difference`` is the second minus the first, with a 95 % interval.

    ``only_first`` and ``only_second`` count the examples that one of the two alone has right.
    """

    metric: str
    test: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float
    only_first: int | None = None
    only_second: int | None = None


def compare(first: Path, second: Path) -> list[Test]:
    """Every test that the predictions of two runs' folders allow, on each validation split.

    Raises ``ValueError`` if one has no predictions, or they are of other rows.
    """
    known = [path.name for path in sorted(first.glob(EVALUATED.format("*")))]
    tests = []
    for name in known or [EVALUATED.format("")]:
        suffix = name.removeprefix(EVALUATED.partition("{")[0]).removesuffix(".tsv")
        a, b = (read(folder / name) for folder in (first, second))
        if len(a.labels) != len(b.labels) or (a.labels != b.labels).any():
            raise refusal(
                "examples",
                f"{first} and {second}, with {len(a.labels)} and {len(b.labels)} rows",
                "two runs evaluated on the same rows in the same order",
                "Evaluate both alike: --do_eval_only writes the predictions of a saved model.",
            )
        tests += [replace(test, metric=test.metric + suffix) for test in tests_of(a, b)]
    return tests


def tests_of(a: Examples, b: Examples) -> list[Test]:
    """Correlations of scores; of labels accuracy, Matthews' and, where they are 0 and 1, F1."""
    if a.labels.dtype.kind == "f":
        return [correlation(name, a, b) for name in ("pearson", "spearmanr")]
    tests = [mcnemar(a, b)]
    if set(np.unique(a.labels)) <= {0, 1}:
        tests.append(counted("f1", f1, a, b))
    return [*tests, counted("matthews_correlation", matthews, a, b)]


def read(path: Path) -> Examples:
    """What a run predicted of a validation split, with the labels."""
    if not path.is_file():
        raise refusal(
            "examples",
            str(path.parent),
            f"a run's folder with {path.name}",
            "Runs of tasks with labels write it; for a saved model, run its script again with "
            "--do_eval_only --model_name_or_path FOLDER.",
        )
    lines = [line.split("\t") for line in path.read_text("utf-8").splitlines()[1:]]
    is_label = all(word.lstrip("-").isdecimal() for _, *words in lines for word in words)
    kind = np.int64 if is_label else np.float64
    columns = np.array([words for _, *words in lines], dtype=kind)
    if not lines or not np.isfinite(columns).all():
        raise refusal(
            f"what is in {path}",
            "a prediction that is not finite" if lines else "no rows",
            "an evaluation's rows, of finite numbers",
            "Evaluate again; a run that diverged has nothing to compare.",
        )
    return Examples(columns[:, 0], columns[:, 1])


def mcnemar(a: Examples, b: Examples) -> Test:
    """Accuracy, by the exact binomial test of the examples that only one of the two has right."""
    right_a, right_b = a.predictions == a.labels, b.predictions == b.labels
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    discordant = only_a + only_b
    p = float(stats.binomtest(only_b, discordant).pvalue) if discordant else 1.0
    interval = counted("accuracy", accuracy, a, b)
    return Test(
        "accuracy",
        "McNemar, exact",
        *(interval.first, interval.second, interval.difference, interval.low, interval.high),
        p,
        only_a,
        only_b,
    )


def counted(name: str, metric: CountMetric, a: Examples, b: Examples) -> Test:
    """A metric of labels by the paired bootstrap.

    Examples alike in both predictions and the label are exchangeable, so drawing examples with
    replacement is drawing the counts of these kinds from a multinomial distribution.
    """
    triples = np.stack([a.predictions, b.predictions, a.labels], axis=1)
    kinds, counts = np.unique(triples, axis=0, return_counts=True)
    total = counts.sum()
    draws = np.random.default_rng(SEED).multinomial(total, counts / total, size=RESAMPLES)
    draws = np.concatenate([counts[None], draws])  # the first is what was found
    return _bootstrap_test(
        name,
        metric(draws, kinds[:, 0], kinds[:, 2]),
        metric(draws, kinds[:, 1], kinds[:, 2]),
    )


def correlation(name: str, a: Examples, b: Examples) -> Test:
    """Pearson's or Spearman's correlation of scores by the paired bootstrap."""
    found = [
        [_correlations(run.predictions[rows], run.labels[rows], name) for run in (a, b)]
        for rows in _drawn_rows(len(a.labels))
    ]
    return _bootstrap_test(name, *map(np.concatenate, zip(*found, strict=True)))


def accuracy(counts: np.ndarray, predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Share of equal labels in each draw."""
    return counts[:, predicted == labels].sum(axis=1) / counts.sum(axis=1)


def f1(counts: np.ndarray, predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """F1 of the label 1 in each draw; 0 where it is neither predicted nor there."""
    both = counts[:, (predicted == 1) & (labels == 1)].sum(axis=1)
    either = counts[:, predicted == 1].sum(axis=1) + counts[:, labels == 1].sum(axis=1)
    return _ratio(2 * both, either)


def matthews(counts: np.ndarray, predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Matthews' correlation, of any number of labels, in each draw; 0 where one side is constant.

    Gorodkin's R_K (2004): cov(x, y) / sqrt(cov(x, x) cov(y, y)) of the indicator vectors.
    """
    total = counts.sum(axis=1)
    agreeing = counts[:, predicted == labels].sum(axis=1)
    known = np.unique(np.concatenate([predicted, labels]))
    guessed = np.stack([counts[:, predicted == k].sum(axis=1) for k in known], axis=1)
    actual = np.stack([counts[:, labels == k].sum(axis=1) for k in known], axis=1)
    covariance = agreeing * total - (guessed * actual).sum(axis=1)
    spread = total**2 - (guessed**2).sum(axis=1), total**2 - (actual**2).sum(axis=1)
    return _ratio(covariance, np.sqrt(spread[0].astype(float) * spread[1]))


def _drawn_rows(count: int) -> Iterator[np.ndarray]:
    """Indices of examples, (draws, examples) at a time: first what was found, then the draws."""
    yield np.arange(count)[None]
    generator, at_once = np.random.default_rng(SEED), max(1, CHUNK // count)
    for start in range(0, RESAMPLES, at_once):
        yield generator.integers(count, size=(min(at_once, RESAMPLES - start), count))


def _correlations(predictions: np.ndarray, labels: np.ndarray, name: str) -> np.ndarray:
    """Correlation of each row; both are (draws, examples). 0 where one side is constant."""
    if name == "spearmanr":
        predictions, labels = (stats.rankdata(x, axis=1) for x in (predictions, labels))
    predictions = predictions - predictions.mean(axis=1, keepdims=True)
    labels = labels - labels.mean(axis=1, keepdims=True)
    spread = np.sqrt((predictions**2).sum(axis=1) * (labels**2).sum(axis=1))
    return _ratio((predictions * labels).sum(axis=1), spread)


def _bootstrap_test(name: str, first: np.ndarray, second: np.ndarray) -> Test:
    """Values of what was found, then of each draw."""
    differences = second - first
    drawn = differences[1:]
    low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
    # With the draw that was found, so that p is never 0 (Davison and Hinkley 1997, 4.2).
    tails = [((side + 1) / (len(drawn) + 1)) for side in ((drawn <= 0).sum(), (drawn >= 0).sum())]
    return Test(
        name,
        "paired bootstrap",
        *(float(x) for x in (first[0], second[0], differences[0], low, high)),
        min(1.0, 2 * float(min(tails))),
    )


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros(len(above)), where=below > 0)


def as_json(first: Path, second: Path, tests: list[Test]) -> dict[str, Any]:
    """Every number."""
    return {
        "first": str(first),
        "second": str(second),
        "resamples": RESAMPLES,
        "tests": [asdict(test) for test in tests],
    }


def shown(first: Path, second: Path, tests: list[Test]) -> str:
    """The tests in words, a line each."""
    lines = [f"{second} against {first}, example by example:"]
    for test in tests:
        line = (
            f"{test.metric.replace('_', ' ')}: {test.first:.4f} -> {test.second:.4f}, difference "
            f"{test.difference:+.4f} (95 % interval {test.low:+.4f} to {test.high:+.4f}), "
            f"p = {test.p:.3g} ({test.test})"
        )
        if test.only_first is not None:
            line += (
                f"; right in the first alone {test.only_first}, in the second {test.only_second}"
            )
        lines.append(line)
    lines.append("These two models on rows like these: other seeds may differ more than this.")
    return "\n".join(lines) + "\n"
