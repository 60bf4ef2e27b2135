"""The metrics: values worked out by hand, modules of `evaluate`, and what is refused."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path

import evaluate
import numpy as np
import pytest

from tasks import Metric, metrics
from tasks.metrics import (
    ACCURACY,
    CER,
    COMPUTED,
    F1,
    MATTHEWS_CORRELATION,
    PEARSON,
    SPEARMANR,
    WER,
    load,
    scores,
)

PREDICTED = np.array([1, 1, 1, 1, 0, 0, 0, 0])
REFERENCES = np.array([1, 1, 1, 0, 1, 1, 0, 0])
OF_TEXTS = (WER, CER)
SAID = np.array(["a cat sees", "the dog", ""])
MEANT = np.array(["a bat sees it", "the dog", "no"])

OWN = '''"""Someone's own metric."""

import evaluate
import numpy as np
from datasets import Features, Value


class Own(evaluate.Metric):
    """Some values of each kind."""

    greater_is_better = {"error": False, "share": True}

    def _info(self):
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="",
            features=Features(predictions=Value("int64"), references=Value("int64")),
        )

    def _compute(self, predictions, references, scale=1):
        right = np.mean(np.array(predictions) == np.array(references))
        return RETURNED
'''
ALL_KINDS = (
    '{"error": scale * (1 - right), "share": np.float32(right), "count": np.array(3), '
    '"each": [1, 2], "text": "x", "sure": True}'
)


def own(path: Path, returned: str = ALL_KINDS) -> str:
    """A module file; returns its path as a spec."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(OWN.replace("RETURNED", returned))
    return str(path)


# By hand. Of labels: of four predicted 1, three are; of five that are 1, three are predicted.
# Of numbers: deviations from the means 2.75 and 3, multiplied out; ranks differ by 1, 1, 0, 0.
# Of texts: "cat" is for "bat", " it" and "no" are missing.
SCORES = (np.array([1.0, 2.0, 3.0, 5.0]), np.array([2.0, 1.0, 4.0, 5.0]))
BY_HAND = [
    (ACCURACY, (PREDICTED, REFERENCES), 5 / 8),
    (F1, (PREDICTED, REFERENCES), 2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5)),
    (MATTHEWS_CORRELATION, (PREDICTED, REFERENCES), (3 * 2 - 1 * 2) / math.sqrt(4 * 5 * 3 * 4)),
    (PEARSON, SCORES, 8.0 / math.sqrt(8.75 * 10.0)),
    (SPEARMANR, SCORES, 1 - 6 * 2 / (4 * (16 - 1))),
    (WER, (SAID, MEANT), (1 + 1 + 0 + 1) / (4 + 2 + 1)),
    (CER, (SAID, MEANT), (1 + 3 + 0 + 2) / (13 + 7 + 2)),
    (WER, (np.array(["a b c"]), np.array(["d"])), 3.0),  # more errors than words
]


@pytest.mark.parametrize(("metric", "rows", "expected"), BY_HAND)
def test_by_hand(metric: Metric, rows: tuple[np.ndarray, np.ndarray], expected: float) -> None:
    assert scores((metric,), *rows) == {metric.name: pytest.approx(expected, abs=1e-6)}


def test_the_mean_f1_of_three_labels_by_hand() -> None:
    predicted, references = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 2, 0])
    # 2 * right / (predicted + there), of each label.
    of_each = [2 * 1 / (2 + 2), 2 * 2 / (2 + 3), 2 * 1 / (2 + 1)]
    (mean,) = load(["f1:average=macro"], sample=[0, 1, 2])
    assert (mean.name, mean.greater_is_better, mean.max_labels) == ("f1_macro", True, None)
    assert mean.function(predicted, references) == pytest.approx(sum(of_each) / 3)


def test_constant_predictions_give_zero_not_nan() -> None:
    constant, references = np.ones(4), np.array([0, 1, 1, 0])
    for metric in (PEARSON, SPEARMANR, MATTHEWS_CORRELATION):
        assert metric.function(constant, references) == 0.0
    assert scores((ACCURACY, F1), np.zeros(4), references) == {"accuracy": 0.5, "f1": 0.0}
    assert PEARSON.function(np.ones(1), np.ones(1)) == 0.0


@pytest.mark.parametrize("metric", COMPUTED, ids=lambda metric: metric.name)
def test_bad_predictions_are_refused(metric: Metric) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        metric.function(np.array([0.0, math.nan]), np.array([0.0, 1.0]))
    for predictions, references in ((2, 3), (0, 0)):
        with pytest.raises(ValueError, match=rf"\({predictions},\), \({references},\)\); allowed"):
            metric.function(np.zeros(predictions), np.zeros(references))
    if metric in OF_TEXTS:
        with pytest.raises(ValueError, match=r"is 0\.0; allowed: texts"):
            metric.function(np.zeros(2), np.zeros(2))


def test_each_row_says_its_direction() -> None:
    better = {name for name, metric in metrics.ROWS.items() if metric.greater_is_better}
    assert better == {*(m.name for m in COMPUTED), "top5_accuracy"} - {"wer", "cer"}


def test_a_module_file_gives_its_numbers(tmp_path: Path) -> None:
    found = load([own(tmp_path / "own.py"), "accuracy"])
    directions = {metric.name: metric.greater_is_better for metric in found}
    assert directions == {"error": False, "share": True, "count": None, "accuracy": True}
    expected = {"error": 3 / 8, "share": 5 / 8, "count": 3.0, "accuracy": 5 / 8}
    assert scores(found, PREDICTED, REFERENCES) == expected
    assert found[0].function(PREDICTED, REFERENCES) == 3 / 8
    again = pickle.loads(pickle.dumps(found))
    assert scores(again, PREDICTED, REFERENCES) == expected
    with pytest.raises(ValueError, match="NaN or infinite"):
        scores(found, np.array([math.nan]), np.zeros(1))


def test_a_folder_and_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path / "mine" / "mine.py", '{"error": scale * (1 - right)}')
    monkeypatch.chdir(tmp_path)
    (metric,) = load(["mine:scale=4"])
    assert metric.name == "error_4"
    assert scores([metric], PREDICTED, REFERENCES) == {"error_4": 4 * 3 / 8}


@pytest.mark.parametrize(
    ("spec", "sample", "message"),
    [
        ("bleeu", None, r"metric is 'bleeu'; allowed: accuracy, .*an id on the hub that can.*Hub"),
        ("accuracy:average=macro", None, r"arguments that accuracy takes.*TypeError: .*'average'"),
        ("accuracy", (0.0, 0.5), r"arguments that accuracy takes.*continuous is not supported"),
        ("f1", (0, 1, 2), r"arguments that f1 takes.*multiclass.*'macro'"),
        ("pearson", ("a", "a b"), r"arguments that pearson takes"),
        ("wer", (0, 1), r"arguments that wer takes.*allowed: texts"),
        ("loss", None, r"metric is 'loss'; allowed: other names than .*perplexity.*Leave this one"),
    ],
)
def test_specs_that_are_refused(
    spec: str, sample: tuple | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
    with pytest.raises(ValueError, match=message) as error:
        load([spec], sample)
    assert "\n" not in str(error.value)


def measurement(path: Path) -> None:
    text = path.read_text().replace("evaluate.Metric)", "evaluate.Measurement)")
    path.write_text(text.replace("MetricInfo", "MeasurementInfo"))


@pytest.mark.parametrize(
    ("returned", "change", "message"),
    [
        ('{"each": [1, 2]}', None, r"it returned \{'each': \[1, 2\]\}, a dict without a number"),
        ('{"loss": right}', None, r"other names than .*loss.*return the value under another name"),
        ("1 / 0", None, r"modules that can score these.*ZeroDivisionError: division by zero"),
        ('{"size": 2}', measurement, r"loading it raised TypeError: it is a measurement"),
    ],
)
def test_modules_that_are_refused(
    tmp_path: Path, returned: str, change: Callable[[Path], object] | None, message: str
) -> None:
    spec = own(tmp_path / "own.py", returned)
    if change is not None:
        change(Path(spec))
    with pytest.raises(ValueError, match=message) as error:
        load([spec])
    assert "\n" not in str(error.value)


def test_two_metrics_of_one_name_are_refused(tmp_path: Path) -> None:
    spec = own(tmp_path / "own.py", '{"f1": right}')
    for specs in (["f1", spec], ["f1", "f1"]):
        with pytest.raises(ValueError, match=r"other names than .*f1, loss"):
            load(specs)
