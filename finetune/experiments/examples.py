"""Two runs compared example by example, on the same evaluation rows.

Accuracy by McNemar's exact test: of the examples that only one of the two has right, is either
side as likely? The other metrics by a permutation test, which swaps the two predictions of an
example. Each difference has a bootstrap interval, for which examples are drawn again. This says
whether these two trained models differ on rows like these; it says nothing of other seeds.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from finetune.engine.predictions import EVALUATED, evaluated
from finetune.engine.results import RESULTS, read_json, write_json
from finetune.errors import refusal
from finetune.experiments.analyze import NONE
from finetune.experiments.report import Table
from finetune.experiments.statistics import LEVEL
from tasks import Metric
from tasks.metrics import ACCURACY, F1, MATTHEWS_CORRELATION, PEARSON, ROWS, SPEARMANR, WER

# scikit-learn takes 2 ms for a metric of 1,000 examples, and each draw asks for it twice: so many
# draws of accuracy, F1 and Matthews' correlation take some ten seconds.
RESAMPLES = 499
SEED = 0


@dataclass(frozen=True)
class Examples:
    """A run's evaluation: its predictions and the labels, or texts, both (examples,)."""

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
    """The tests of the metrics that two runs' folders have, on each validation split.

    Raises ``Refused`` if one has no predictions, or they are of other rows.
    """
    tests = []
    for suffix in evaluated(first) or [""]:
        name = EVALUATED.format(suffix)
        metrics = measured(first, suffix)
        a, b = (read(folder / name, texts=WER in metrics) for folder in (first, second))
        if len(a.labels) != len(b.labels) or (a.labels != b.labels).any():
            raise refusal(
                "examples",
                f"{first} and {second}, with {len(a.labels)} and {len(b.labels)} rows",
                "two runs evaluated on the same rows in the same order",
                "Evaluate both alike: --do_eval_only writes the predictions of a saved model.",
            )
        made = tests_of(a, b, metrics or fitting(a.labels))
        tests += [replace(test, metric=test.metric + suffix) for test in made]
    return tests


def measured(run: Path, suffix: str) -> list[Metric]:
    """This project's metrics of predictions that a run has measured; none where it does not say.

    Those of other people's modules are left out: thousands of calls of them may take hours.
    """
    results = read_json(run / RESULTS) if (run / RESULTS).is_file() else {}
    known = {f"eval_{name}{suffix}": metric for name, metric in ROWS.items() if metric.function}
    return [metric for key, metric in known.items() if key in results]


def fitting(labels: np.ndarray) -> list[Metric]:
    """The metrics for labels of this kind: scores, two labels, or more."""
    if labels.dtype.kind == "f":
        return [PEARSON, SPEARMANR]
    binary = set(np.unique(labels)) <= {0, 1}
    return [ACCURACY, *([F1] if binary else []), MATTHEWS_CORRELATION]


def tests_of(a: Examples, b: Examples, metrics: Sequence[Metric]) -> list[Test]:
    """A test of each metric; of labels always one of accuracy, since it is exact."""
    others = [permutation(metric, a, b) for metric in metrics if metric is not ACCURACY]
    return others if a.labels.dtype.kind == "f" else [mcnemar(a, b), *others]


def read(path: Path, *, texts: bool = False) -> Examples:
    """What a run predicted of a validation split, with the labels, which may be texts."""
    if not path.is_file():
        allowed = f"a run's folder with {path.name}"
        remedy = "Runs of tasks with labels write it; of a saved model, those with --do_eval_only."
        raise refusal("examples", str(path.parent), allowed, remedy)
    verbatim: Any = {"dtype": str, "keep_default_na": False} if texts else {}
    names = ["prediction", "label"]
    columns = pd.read_csv(path, sep="\t", usecols=names, quoting=csv.QUOTE_NONE, **verbatim)
    if not len(columns) or not (texts or np.isfinite(columns.to_numpy(dtype=float)).all()):
        fault = "a prediction that is not finite" if len(columns) else "no rows"
        remedy = "Evaluate again; a run that diverged has nothing to compare."
        raise refusal(f"what is in {path}", fault, "an evaluation's rows, of numbers", remedy)
    kind = str if texts else None  # else strings would be objects, which nothing can permute
    return Examples(*(columns[name].to_numpy(dtype=kind) for name in names))


def mcnemar(a: Examples, b: Examples) -> Test:
    """Accuracy, by the exact binomial test of the examples that only one of the two has right."""
    right_a, right_b = a.predictions == a.labels, b.predictions == b.labels
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    p = stats.binomtest(only_b, only_a + only_b).pvalue if only_a + only_b else 1.0
    test = _with_interval(ACCURACY, a, b, "McNemar, exact", float(p))
    return replace(test, only_first=only_a, only_second=only_b)


def permutation(metric: Metric, a: Examples, b: Examples) -> Test:
    """A metric by the permutation test: are an example's two predictions interchangeable?"""
    p = stats.permutation_test(
        (a.predictions, b.predictions),
        lambda first, second: _difference(metric, first, second, a.labels),
        permutation_type="samples",
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(SEED),
    ).pvalue
    return _with_interval(metric, a, b, "paired permutation", float(p))


def _with_interval(metric: Metric, a: Examples, b: Examples, test: str, p: float) -> Test:
    """The metric of both runs, and the percentile interval of the paired bootstrap."""
    low, high = stats.bootstrap(
        (a.predictions, b.predictions, a.labels),
        partial(_difference, metric),
        paired=True,
        vectorized=False,
        n_resamples=RESAMPLES,
        confidence_level=1 - LEVEL,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    assert metric.function is not None  # an objective's own metrics have no predictions
    first, second = (metric.function(run.predictions, run.labels) for run in (a, b))
    return Test(metric.name, test, first, second, second - first, float(low), float(high), p)


def _difference(metric: Metric, first: np.ndarray, second: np.ndarray, labels: np.ndarray) -> float:
    assert metric.function is not None
    return metric.function(second, labels) - metric.function(first, labels)


def report(first: Path, second: Path, folder: Path | None = None) -> str:
    """The tests of two runs as a table; every number goes into ``folder``/examples.json too."""
    tests = compare(first, second)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = {"first": str(first), "second": str(second), "resamples": RESAMPLES}
        write_json(folder / "examples.json", numbers | {"tests": [asdict(test) for test in tests]})
    headings = ("metric", "first", "second", "difference", "95 % interval", "p", "test")
    rows = [
        (
            test.metric.replace("_", " "),
            *(f"{test.first:.4f}", f"{test.second:.4f}", f"{test.difference:+.4f}"),
            f"{test.low:+.4f} to {test.high:+.4f}",
            f"{test.p:.3g}",
            test.test,
            NONE if test.only_first is None else f"{test.only_first} : {test.only_second}",
        )
        for test in tests
    ]
    table = Table((*headings, "right in one alone"), rows).text()
    end = "These two models on rows like these: other seeds may differ more than this."
    return "\n".join([f"first: {first}", f"second: {second}", "", *table, "", end, ""])
