"""Accuracy as a module of the library `evaluate`."""

from __future__ import annotations

import evaluate
import numpy as np
from datasets import Features, Value

from .functions import accuracy

CITATION = """\
@article{scikit-learn,
  title = {Scikit-learn: Machine Learning in {P}ython},
  author = {Pedregosa, F. and Varoquaux, G. and Gramfort, A. and Michel, V. and others},
  journal = {Journal of Machine Learning Research},
  volume = {12},
  pages = {2825--2830},
  year = {2011}
}
"""


class Accuracy(evaluate.Metric):
    """The share of predicted labels that equal the reference."""

    greater_is_better = True

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__,
            citation=CITATION,
            inputs_description="predictions and references: labels, as whole numbers.",
            features=Features(predictions=Value("int64"), references=Value("int64")),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.accuracy_score.html"
            ],
            format="numpy",
        )

    def _compute(self, predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        return {"accuracy": accuracy(predictions, references)}
