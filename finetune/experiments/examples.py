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
from finetune.engine.results import RESULTS, read_json
from finetune.errors import refusal
from finetune.experiments.gather import NONE
from finetune.experiments.statistics import LEVEL
from finetune.experiments.tables import Table
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

    Raises ``ValueError`` if one has no predictions, or they are of other rows.
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
        found = tests_of(a, b, metrics or fitting(a.labels))
        tests += [replace(test, metric=test.metric + suffix) for test in found]
    return tests


def measured(run: Path, suffix: str) -> list[Metric]:
    """This project's metrics of predictions that a run has measured; none where it does not say.

    Those of other people's modules are left out: thousands of calls of them may take hours.
    """
    results = read_json(run / RESULTS) if (run / RESULTS).is_file() else {}
    return [
        metric
        for name, metric in ROWS.items()
        if metric.function is not None and f"eval_{name}{suffix}" in results
    ]


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
        raise refusal(
            "examples",
            str(path.parent),
            f"a run's folder with {path.name}",
            "Runs of tasks with labels write it; for a saved model, run its script again with "
            "--do_eval_only --model_name_or_path FOLDER.",
        )
    verbatim: Any = {"dtype": str, "keep_default_na": False} if texts else {}
    names = ["prediction", "label"]
    columns = pd.read_csv(path, sep="\t", usecols=names, quoting=csv.QUOTE_NONE, **verbatim)
    if not len(columns) or not (texts or np.isfinite(columns.to_numpy(dtype=float)).all()):
        raise refusal(
            f"what is in {path}",
            "a prediction that is not finite" if len(columns) else "no rows",
            "an evaluation's rows, of finite numbers",
            "Evaluate again; a run that diverged has nothing to compare.",
        )
    kind = str if texts else None  # else strings would be objects, which nothing can permute
    return Examples(*(columns[name].to_numpy(dtype=kind) for name in names))


def mcnemar(a: Examples, b: Examples) -> Test:
    """Accuracy, by the exact binomial test of the examples that only one of the two has right."""
    right_a, right_b = a.predictions == a.labels, b.predictions == b.labels
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    p = stats.binomtest(only_b, only_a + only_b).pvalue if only_a + only_b else 1.0
    found = _with_interval(ACCURACY, a, b, "McNemar, exact", float(p))
    return replace(found, only_first=only_a, only_second=only_b)


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
    first, second = (_value(metric, run.predictions, run.labels) for run in (a, b))
    return Test(metric.name, test, first, second, second - first, float(low), float(high), p)


def _difference(metric: Metric, first: np.ndarray, second: np.ndarray, labels: np.ndarray) -> float:
    return _value(metric, second, labels) - _value(metric, first, labels)


def _value(metric: Metric, predictions: np.ndarray, labels: np.ndarray) -> float:
    assert metric.function is not None  # an objective's own metrics have no predictions
    return metric.function(predictions, labels)


def as_json(first: Path, second: Path, tests: list[Test]) -> dict[str, Any]:
    """Every number."""
    return {
        "first": str(first),
        "second": str(second),
        "resamples": RESAMPLES,
        "tests": [asdict(test) for test in tests],
    }


def shown(first: Path, second: Path, tests: list[Test]) -> str:
    """The tests as a table."""
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
    table = Table((*headings, "right in one alone"), [rows]).text()
    end = "These two models on rows like these: other seeds may differ more than this."
    return "\n".join([f"first: {first}", f"second: {second}", "", *table, "", end, ""])
