"""Two runs compared by example: McNemar's test by hand, permutations and intervals, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import jiwer
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef

from finetune.engine.results import RESULTS, write_evaluated
from finetune.experiments import examples
from tasks import Split
from tasks.metrics import ACCURACY, F1, MATTHEWS_CORRELATION, PEARSON, SPEARMANR

Runs = tuple[pd.DataFrame, pd.DataFrame]


def runs(first: np.ndarray, second: np.ndarray, labels: np.ndarray) -> Runs:
    made = (pd.DataFrame({"prediction": run, "label": labels}) for run in (first, second))
    return tuple(made)


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "RESAMPLES", 199)


@pytest.fixture(scope="module")
def noisy() -> Runs:
    """Eighty labels, the first run wrong in a third of them, the second in a tenth."""
    generator = np.random.default_rng(3)
    labels = generator.integers(2, size=80)
    flips = generator.random((2, 80)) < [[0.33], [0.1]]
    return runs(*np.where(flips, 1 - labels, labels), labels)


def test_mcnemar_by_hand() -> None:
    # The first alone is right in 1, the second alone in 6, both in 3, neither in 2.
    triples = [(1, 0, 1)] + [(0, 1, 1)] * 6 + [(1, 1, 1)] * 3 + [(0, 0, 1)] * 2
    found = examples.compared(ACCURACY, *runs(*np.array(triples).T))
    assert (found["only_first"], found["only_second"]) == (1, 6)
    # Binomial, 7 trials: P(X <= 1) + P(X >= 6) = 2 (1 + 7) / 128.
    assert found["p"] == pytest.approx(16 / 128)
    assert (found["first"], found["second"]) == pytest.approx((4 / 12, 9 / 12))
    assert found["difference"] == pytest.approx(5 / 12)
    assert found["low"] < found["difference"] < found["high"]
    assert examples.compared(ACCURACY, *runs(*np.array([(1, 1, 1), (0, 0, 1)]).T))["p"] == 1.0


@pytest.mark.parametrize(
    ("metric", "function"), [(F1, f1_score), (MATTHEWS_CORRELATION, matthews_corrcoef)]
)
def test_metrics_of_labels_part_runs(metric, function, noisy: Runs) -> None:
    found = examples.compared(metric, *noisy)
    for name, run in zip(("first", "second"), noisy, strict=True):
        assert found[name] == pytest.approx(function(run["label"], run["prediction"]))
    assert found["low"] > 0
    assert found["p"] <= 2 * 3 / 200  # at most two draws of 199 as far out


def test_few_examples_have_an_exact_p() -> None:
    # Of three examples the second alone is right in all: 2 of 2^3 swaps are as far out.
    found = examples.compared(F1, *runs(*np.array([(0, 1, 1)] * 3).T))
    assert found["p"] == pytest.approx(2 / 8)


def test_correlations_are_those_of_scipy_and_part_runs() -> None:
    generator = np.random.default_rng(4)
    labels = np.round(generator.uniform(0, 5, size=120), 1)
    good, bad = labels + generator.normal(0, 0.5, 120), labels + generator.normal(0, 3, 120)
    for metric, function in ((PEARSON, stats.pearsonr), (SPEARMANR, stats.spearmanr)):
        found = examples.compared(metric, *runs(bad, good, labels))
        assert found["first"] == pytest.approx(function(bad, labels).statistic, abs=1e-6)
        assert found["second"] == pytest.approx(function(good, labels).statistic, abs=1e-6)
        assert found["low"] > 0
        assert found["p"] == pytest.approx(2 / 200)  # no draw of 199 was as far out
        same = examples.compared(metric, *runs(good, good, labels))
        assert [same[n] for n in ("difference", "low", "high", "p")] == [0, 0, 0, 1]


def save(folder: Path, rows: list[str], **results: float) -> Path:
    """A run's folder with its predictions, and what it measured."""
    folder.mkdir()
    text = "\n".join(["index\tprediction\tlabel", *(f"{i}\t{x}" for i, x in enumerate(rows))])
    (folder / "eval_predictions.tsv").write_text(text)
    (folder / "eval_predictions_mm.tsv").write_text(text)
    (folder / RESULTS).write_text(json.dumps(results | {"settings": {}}))
    return folder


def test_the_metrics_are_those_that_the_run_measured(tmp_path: Path) -> None:
    found = {"eval_f1": 0.5, "eval_loss": 1.0, "eval_own": 0.1, "eval_f1_mm": 0.6}
    first = save(tmp_path / "a", ["1\t1", "0\t1"], **found, eval_matthews_correlation_mm=0.1)
    names = [test["metric"] for test in examples.compare(first, first)]
    assert names == ["accuracy", "f1", "accuracy_mm", "f1_mm", "matthews_correlation_mm"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1\t0", "1\t0"], r"with 2 and 2 rows'; allowed: two runs evaluated on the same rows"),
        ([], r"is 'no rows'"),
        (["nan\t0.5", "0.1\t0.2"], r"a prediction that is not finite"),
    ],
)
def test_predictions_that_cannot_be_compared_are_refused(
    tmp_path: Path, rows: list[str], message: str
) -> None:
    first, second = save(tmp_path / "a", ["1\t0", "1\t1"]), save(tmp_path / "b", rows)
    with pytest.raises(ValueError, match=message):
        examples.compare(first, second)
    with pytest.raises(ValueError, match=r"eval_predictions.tsv and all_results.*--do_eval_only"):
        examples.compare(first, tmp_path)


def test_texts_are_compared_by_their_error_rates(tmp_path: Path) -> None:
    """Also those that a table would read as numbers, quotes or missing values."""
    labels = np.array(["12", "nan", 'a "b', "c d"] * 5)
    first, second = np.where(np.arange(20) % 3, labels, ""), labels.copy()
    second[0] = "12 3"
    for name, predictions in (("first", first), ("second", second)):
        (tmp_path / name).mkdir()
        write_evaluated(Split("validation"), predictions, labels, tmp_path / name)
        found = {"eval_wer": 0.5, "eval_cer": 0.5, "settings": {}}
        (tmp_path / name / RESULTS).write_text(json.dumps(found))
    tests = {x["metric"]: x for x in examples.compare(tmp_path / "first", tmp_path / "second")}
    assert set(tests) == {"accuracy", "wer", "cer"}
    missed = int((first == "").sum())
    counts = [tests["accuracy"][name] for name in ("only_first", "only_second")]
    assert counts == [0, missed - 1]
    words = [jiwer.wer(labels.tolist(), run.tolist()) for run in (first, second)]
    assert [tests["wer"]["first"], tests["wer"]["second"]] == pytest.approx(words)
    assert tests["wer"]["difference"] < 0
    assert tests["wer"]["p"] < 0.05
