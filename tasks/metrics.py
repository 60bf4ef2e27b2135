"""GLUE's metrics under their usual names, from scikit-learn and SciPy: no network is needed.

Each function takes predictions and references, both of shape ``(examples,)``, and returns plain
floats. A measure that is undefined because one side is constant is reported as 0.0, as
scikit-learn does for Matthews' coefficient, so that result files stay valid JSON. Predictions
that are NaN or infinite raise ``ValueError``: those come from a model that diverged.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


def accuracy(predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """Share of equal labels, as ``accuracy``."""
    _check(predictions, references)
    return {"accuracy": float(accuracy_score(references, predictions))}


def accuracy_and_f1(predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """``accuracy``, and ``f1`` of the label 1."""
    found = accuracy(predictions, references)
    return found | {"f1": float(f1_score(references, predictions, pos_label=1, zero_division=0.0))}


def matthews_correlation(predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """Matthews' correlation coefficient, as ``matthews_correlation``."""
    _check(predictions, references)
    return {"matthews_correlation": float(matthews_corrcoef(references, predictions))}


def pearson_and_spearman(predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """``pearson`` and ``spearmanr`` of scores, in float32 as GLUE's published script has them."""
    _check(predictions, references)
    predictions = np.asarray(predictions, dtype=np.float32)
    references = np.asarray(references, dtype=np.float32)
    if len(predictions) < 2 or np.ptp(predictions) == 0 or np.ptp(references) == 0:
        return {"pearson": 0.0, "spearmanr": 0.0}
    return {
        "pearson": float(pearsonr(predictions, references).statistic),
        "spearmanr": float(spearmanr(predictions, references).statistic),
    }


def _check(predictions: np.ndarray, references: np.ndarray) -> None:
    if np.shape(predictions) != np.shape(references) or np.ndim(predictions) != 1:
        raise ValueError(
            f"predictions and references have shapes {np.shape(predictions)} and "
            f"{np.shape(references)}; allowed: one equal shape (examples,). Pass one value each."
        )
    if len(predictions) == 0:
        raise ValueError(
            "predictions is empty; allowed: one example or more. Evaluate on a split that has rows."
        )
    if not np.all(np.isfinite(predictions)):
        raise ValueError(
            "predictions hold NaN or infinite values; allowed: finite ones. The model diverged: "
            "lower the learning rate."
        )
