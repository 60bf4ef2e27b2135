"""Two runs compared example by example, on the same evaluation rows.

Accuracy by McNemar's exact test: of the examples that only one of the two has right, is either
side as likely? The other metrics by a permutation test, which swaps the two predictions of an
example. Each difference has a bootstrap interval, for which examples are drawn again. This says
whether these two trained models differ on rows like these; it says nothing of other seeds.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from finetune.engine.results import RESULTS, evaluated, read_json, write_json
from finetune.errors import refusal
from finetune.experiments.statistics import LEVEL
from tasks import Metric
from tasks.metrics import ACCURACY, ROWS, WER

# scikit-learn takes 2 ms for a metric of 1,000 examples, and each draw asks for it twice: so many
# draws of accuracy, F1 and Matthews' correlation take some ten seconds.
RESAMPLES = 499
SEED = 0
Test = dict[str, Any]


def compare(first: Path, second: Path) -> list[Test]:
    """The tests of the metrics that the first run measured, on each validation split.

    Of labels always one of accuracy too, since it is exact. Raises ``Refused`` if a folder has no
    predictions, or the two have them of other rows.
    """
    tests: list[Test] = []
    for folder in (first, second):
        if not evaluated(folder) or not (folder / RESULTS).is_file():
            allowed = f"a run's folder with eval_predictions.tsv and {RESULTS}"
            remedy = "Runs of tasks with labels write them, or --do_eval_only of a saved model."
            raise refusal("examples", str(folder), allowed, remedy)
    results = read_json(first / RESULTS)
    for suffix, path in evaluated(first).items():
        # Those of other people's modules are left out: thousands of calls of them may take hours.
        metrics = [
            m for name, m in ROWS.items() if m.function and f"eval_{name}{suffix}" in results
        ]
        a, b = (read(folder / path.name, texts=WER in metrics) for folder in (first, second))
        if not a["label"].equals(b["label"]):
            raise refusal(
                "examples",
                f"{first} and {second}, with {len(a)} and {len(b)} rows",
                "two runs evaluated on the same rows in the same order",
                "Evaluate both alike: --do_eval_only writes the predictions of a saved model.",
            )
        if a["label"].dtype.kind != "f":
            metrics = [ACCURACY, *(metric for metric in metrics if metric is not ACCURACY)]
        for metric in metrics:
            tests.append({"metric": metric.name + suffix, **compared(metric, a, b)})
    return tests


def read(path: Path, *, texts: bool = False) -> pd.DataFrame:
    """What a run predicted of a validation split, with the labels, which may be texts."""
    verbatim: Any = {"dtype": str, "keep_default_na": False} if texts else {}
    names = ["prediction", "label"]
    columns = pd.read_csv(path, sep="\t", usecols=names, quoting=csv.QUOTE_NONE, **verbatim)
    if not len(columns) or not (texts or np.isfinite(columns.to_numpy(dtype=float)).all()):
        fault = "a prediction that is not finite" if len(columns) else "no rows"
        remedy = "Evaluate again; a run that diverged has nothing to compare."
        raise refusal(f"what is in {path}", fault, "an evaluation's rows, of numbers", remedy)
    return columns


def compared(metric: Metric, a: pd.DataFrame, b: pd.DataFrame) -> Test:
    """A metric of both runs, their difference with its interval, and the p of its test."""
    score = metric.function
    assert score is not None  # an objective's own metrics have no predictions
    kind = str if a["label"].dtype.kind not in "if" else None  # objects cannot be permuted
    labels, *pair = (x.to_numpy(kind) for x in (a["label"], a["prediction"], b["prediction"]))

    def difference(first: np.ndarray, second: np.ndarray, labels: np.ndarray = labels) -> float:
        return score(second, labels) - score(first, labels)

    draws: dict[str, Any] = {"n_resamples": RESAMPLES, "rng": np.random.default_rng(SEED)}
    low, high = stats.bootstrap(
        (*pair, labels),
        difference,
        paired=True,
        vectorized=False,
        confidence_level=1 - LEVEL,
        method="percentile",
        **draws,
    ).confidence_interval
    first, second = (score(predictions, labels) for predictions in pair)
    test: Test = {"first": first, "second": second, "difference": second - first}
    test |= {"low": float(low), "high": float(high), "only_first": None, "only_second": None}
    if metric is ACCURACY:
        right_a, right_b = (predictions == labels for predictions in pair)
        only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
        p = stats.binomtest(only_b, only_a + only_b).pvalue if only_a + only_b else 1.0
        counts = {"only_first": only_a, "only_second": only_b}
        return {**test, **counts, "test": "McNemar, exact", "p": float(p)}
    draws["rng"] = np.random.default_rng(SEED)
    p = stats.permutation_test(pair, difference, permutation_type="samples", **draws).pvalue
    return {**test, "test": "paired permutation", "p": float(p)}


def report(first: Path, second: Path, folder: Path | None = None) -> str:
    """The tests of two runs as a table; every number goes into ``folder``/examples.json too."""
    tests = compare(first, second)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = {"first": str(first), "second": str(second), "resamples": RESAMPLES}
        write_json(folder / "examples.json", numbers | {"tests": tests})
    table = pd.DataFrame(tests).to_string(index=False, float_format="{:.4g}".format, na_rep="-")
    end = "These two models on rows like these: other seeds may differ more than this."
    return "\n".join([f"first: {first}", f"second: {second}", "", table, "", end, ""])
