"""F1 as a module of the library `evaluate`."""

from __future__ import annotations

import evaluate
import numpy as np
from datasets import Features, Value

from .functions import f1

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


class F1(evaluate.Metric):
    """The harmonic mean of precision and recall of the label 1, or a mean over all labels."""

    greater_is_better = True

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__,
            citation=CITATION,
            inputs_description="predictions and references: labels, as whole numbers. "
            "average: binary, macro, micro or weighted.",
            features=Features(predictions=Value("int64"), references=Value("int64")),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.f1_score.html"
            ],
            format="numpy",
        )

    def _compute(
        self, predictions: np.ndarray, references: np.ndarray, average: str = "binary"
    ) -> dict[str, float]:
        return {"f1": f1(predictions, references, average)}
