"""Two runs compared by example: McNemar's test by hand, permutations and intervals, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import jiwer
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef

from finetune.engine.predictions import EVALUATED, write_evaluated
from finetune.engine.results import RESULTS
from finetune.experiments import examples
from finetune.experiments.examples import Examples
from tasks import Split
from tasks.metrics import F1, MATTHEWS_CORRELATION, PEARSON, SPEARMANR


def runs(*triples: tuple[int, int, int]) -> tuple[Examples, Examples]:
    """From (first's prediction, second's, label)."""
    first, second, labels = np.array(triples).T
    return Examples(first, labels), Examples(second, labels)


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "RESAMPLES", 199)


@pytest.fixture(scope="module")
def noisy() -> tuple[Examples, Examples]:
    """Eighty labels, the first run wrong in a third of them, the second in a tenth."""
    generator = np.random.default_rng(3)
    labels = generator.integers(2, size=80)
    flips = generator.random((2, 80)) < [[0.33], [0.1]]
    first, second = np.where(flips, 1 - labels, labels)
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


@pytest.mark.parametrize(
    ("metric", "function"), [(F1, f1_score), (MATTHEWS_CORRELATION, matthews_corrcoef)]
)
def test_metrics_of_labels_tell_runs_apart(metric, function, noisy) -> None:
    first, second = noisy
    found = examples.permutation(metric, first, second)
    assert found.metric == metric.name
    assert found.first == pytest.approx(function(first.labels, first.predictions))
    assert found.second == pytest.approx(function(second.labels, second.predictions))
    assert found.low > 0
    assert found.p <= 2 * 3 / 200  # at most two draws of 199 as far out


@pytest.mark.full
def test_the_interval_is_that_of_drawn_examples(noisy) -> None:
    first, second = noisy
    found = examples.permutation(MATTHEWS_CORRELATION, first, second)
    rows = np.random.default_rng(1).integers(80, size=(300, 80))
    drawn = [
        np.subtract(
            *(matthews_corrcoef(run.labels[row], run.predictions[row]) for run in (second, first))
        )
        for row in rows
    ]
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.06)


def test_few_examples_have_an_exact_p() -> None:
    # Of three examples the second alone is right in all: 2 of 2^3 swaps are as far out.
    found = examples.permutation(F1, *runs((0, 1, 1), (0, 1, 1), (0, 1, 1)))
    assert found.p == pytest.approx(2 / 8)


def test_correlations_are_those_of_scipy_and_tell_runs_apart() -> None:
    generator = np.random.default_rng(4)
    labels = np.round(generator.uniform(0, 5, size=120), 1)
    good, bad = labels + generator.normal(0, 0.5, 120), labels + generator.normal(0, 3, 120)
    pair = Examples(bad, labels), Examples(good, labels)
    assert examples.fitting(labels) == [PEARSON, SPEARMANR]
    tests = examples.tests_of(*pair, [PEARSON, SPEARMANR])
    for found, function in zip(tests, (stats.pearsonr, stats.spearmanr), strict=True):
        assert found.first == pytest.approx(function(bad, labels).statistic, abs=1e-6)
        assert found.second == pytest.approx(function(good, labels).statistic, abs=1e-6)
        assert found.low > 0
        assert found.p == pytest.approx(2 / 200)  # no draw of 199 was as far out
    (same, _) = examples.tests_of(pair[1], pair[1], [PEARSON, SPEARMANR])
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_the_metrics_are_those_that_the_run_measured(tmp_path: Path) -> None:
    assert examples.measured(tmp_path, "") == []
    found = {"eval_f1": 0.5, "eval_loss": 1.0, "eval_own": 0.1, "eval_accuracy_mm": 0.6}
    (tmp_path / RESULTS).write_text(json.dumps(found | {"settings": {}}))
    assert [metric.name for metric in examples.measured(tmp_path, "")] == ["f1"]
    assert [metric.name for metric in examples.measured(tmp_path, "_mm")] == ["accuracy"]
    names = [metric.name for metric in examples.fitting(np.array([0, 1, 2]))]
    assert names == ["accuracy", "matthews_correlation"]  # F1 is of two labels


def test_runs_on_other_rows_are_not_compared_by_example(tmp_path: Path) -> None:
    for name, labels in (("a", "01"), ("b", "00")):
        lines = [f"{i}\t1\t{label}" for i, label in enumerate(labels)]
        (tmp_path / name).mkdir()
        text = "\n".join(["index\tprediction\tlabel", *lines])
        (tmp_path / name / EVALUATED.format("")).write_text(text)
    with pytest.raises(ValueError, match=r"with 2 and 2 rows'; allowed: two runs evaluated on the"):
        examples.compare(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], r"is 'no rows'"), (["0\tnan\t0.5", "1\t0.1\t0.2"], r"a prediction that is not finite")],
)
def test_predictions_that_cannot_be_compared_are_refused(
    tmp_path: Path, rows: list[str], message: str
) -> None:
    text = "\n".join(["index\tprediction\tlabel", *rows])
    (tmp_path / EVALUATED.format("")).write_text(text)
    with pytest.raises(ValueError, match=message):
        examples.compare(tmp_path, tmp_path)


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
    tests = {
        test.metric: test for test in examples.compare(tmp_path / "first", tmp_path / "second")
    }
    assert set(tests) == {"accuracy", "wer", "cer"}
    missed = int((first == "").sum())
    assert (tests["accuracy"].only_first, tests["accuracy"].only_second) == (0, missed - 1)
    words = [jiwer.wer(labels.tolist(), run.tolist()) for run in (first, second)]
    assert [tests["wer"].first, tests["wer"].second] == pytest.approx(words)
    assert tests["wer"].difference < 0
    assert tests["wer"].p < 0.05
