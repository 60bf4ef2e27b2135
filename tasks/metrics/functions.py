"""Each of our metrics is one plain function of predictions and references.

Both are of shape ``(examples,)`` and the value is a float. A value that is undefined because one
side is constant is reported as 0.0, as scikit-learn does for Matthews' coefficient, so that result
files stay valid JSON. Predictions that are NaN or infinite raise ``ValueError``: they come from a
model that diverged.

scikit-learn, SciPy and jiwer are imported by the first call. This file imports nothing of this
project: ``evaluate.load`` copies it next to the module that it loads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def accuracy(predictions: np.ndarray, references: np.ndarray) -> float:
    """Return the share of equal labels."""
    from sklearn.metrics import accuracy_score

    return _of_labels(accuracy_score, predictions, references)


def f1(predictions: np.ndarray, references: np.ndarray, average: str = "binary") -> float:
    """Return the F1 of the label 1, or the mean over the labels that ``average`` names."""
    from sklearn.metrics import f1_score

    options = {"pos_label": 1, "average": average, "zero_division": 0.0}
    return _of_labels(f1_score, predictions, references, **options)


def matthews_correlation(predictions: np.ndarray, references: np.ndarray) -> float:
    """Return Matthews' correlation coefficient of any number of labels."""
    from sklearn.metrics import matthews_corrcoef

    return _of_labels(matthews_corrcoef, predictions, references)


def pearson(predictions: np.ndarray, references: np.ndarray) -> float:
    """Return Pearson's correlation of scores."""
    from scipy.stats import pearsonr

    return _of_scores(pearsonr, predictions, references)


def spearmanr(predictions: np.ndarray, references: np.ndarray) -> float:
    """Return Spearman's correlation of scores."""
    from scipy.stats import spearmanr

    return _of_scores(spearmanr, predictions, references)


def wer(predictions: np.ndarray, references: np.ndarray) -> float:
    """Return the wrong, missing and added words of all texts over the references' words."""
    from jiwer import wer as rate

    return _of_texts(rate, predictions, references)


def cer(predictions: np.ndarray, references: np.ndarray) -> float:
    """Return the wrong, missing and added characters, spaces too, over the references' ones."""
    from jiwer import cer as rate

    return _of_texts(rate, predictions, references)


def _of_labels(
    score: Callable[..., Any], predictions: np.ndarray, references: np.ndarray, **options: Any
) -> float:
    check(predictions, references)
    try:
        return float(score(references, predictions, **options))
    except ValueError as error:
        known = np.unique(np.concatenate([predictions, references])).tolist()
        shown = ", ".join(map(str, known[:5])) + (", ..." if len(known) > 5 else "")
        raise ValueError(
            f"labels for {score.__name__} are {shown}; allowed: those that scikit-learn can score "
            f"({' '.join(str(error).split())}). For more than two labels take f1:average=macro, "
            "for scores pearson or spearmanr."
        ) from error


def _of_scores(
    correlation: Callable[..., Any], predictions: np.ndarray, references: np.ndarray
) -> float:
    """Return the correlation of scores in float32, as GLUE's published script does."""
    check(predictions, references)
    predictions = np.asarray(predictions, dtype=np.float32)
    references = np.asarray(references, dtype=np.float32)
    if len(predictions) < 2 or np.ptp(predictions) == 0 or np.ptp(references) == 0:
        return 0.0
    return float(correlation(predictions, references).statistic)


def _of_texts(rate: Callable[..., float], predictions: np.ndarray, references: np.ndarray) -> float:
    _check_shapes(predictions, references)
    texts = [*predictions.tolist(), *references.tolist()]
    if not all(isinstance(text, str) for text in texts):
        other = next(text for text in texts if not isinstance(text, str))
        raise ValueError(
            f"a prediction or reference for {rate.__name__} is {other!r}; allowed: texts. For "
            "labels take accuracy, for scores pearson."
        )
    return float(rate(references.tolist(), predictions.tolist()))


def check(predictions: np.ndarray, references: np.ndarray) -> None:
    """Raise ``ValueError`` unless there is one prediction for each reference, finite or a text."""
    _check_shapes(predictions, references)
    is_text = np.asarray(predictions).dtype.kind in "UO"
    if not is_text and not np.all(np.isfinite(predictions)):
        raise ValueError(
            "predictions hold NaN or infinite values; allowed: finite ones. The model diverged: "
            "lower the learning rate."
        )


def _check_shapes(predictions: np.ndarray, references: np.ndarray) -> None:
    if np.shape(predictions) != np.shape(references) or np.ndim(predictions) != 1:
        raise ValueError(
            f"predictions and references have shapes {np.shape(predictions)} and "
            f"{np.shape(references)}; allowed: one equal shape (examples,). Pass one value each."
        )
    if len(predictions) == 0:
        raise ValueError(
            "predictions is empty; allowed: one example or more. Evaluate on a split that has rows."
        )
