"""Matthews' correlation as a module of the library `evaluate`."""

from __future__ import annotations

import evaluate
import numpy as np
from datasets import Features, Value

from .functions import matthews_correlation

CITATION = """\
@article{matthews1975,
  title = {Comparison of the predicted and observed secondary structure of {T4} phage lysozyme},
  author = {Matthews, Brian W.},
  journal = {Biochimica et Biophysica Acta - Protein Structure},
  volume = {405},
  number = {2},
  pages = {442--451},
  year = {1975}
}
"""


class MatthewsCorrelation(evaluate.Metric):
    """Matthews' correlation coefficient of labels, from -1 to 1; 0 where one side is constant."""

    greater_is_better = True

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__,
            citation=CITATION,
            inputs_description="predictions and references: labels, as whole numbers.",
            features=Features(predictions=Value("int64"), references=Value("int64")),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.matthews_corrcoef.html"
            ],
            format="numpy",
        )

    def _compute(self, predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        return {"matthews_correlation": matthews_correlation(predictions, references)}
