"""Spearman's rank correlation as a module of the library `evaluate`."""

from __future__ import annotations

import evaluate
import numpy as np
from datasets import Features, Value

from .functions import spearmanr

CITATION = """\
@article{scipy,
  title = {{SciPy} 1.0: Fundamental Algorithms for Scientific Computing in {P}ython},
  author = {Virtanen, Pauli and Gommers, Ralf and Oliphant, Travis E. and others},
  journal = {Nature Methods},
  volume = {17},
  pages = {261--272},
  year = {2020}
}
"""


class Spearmanr(evaluate.Metric):
    """Spearman's correlation of scores, from -1 to 1; 0 where one side is constant."""

    greater_is_better = True

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__,
            citation=CITATION,
            inputs_description="predictions and references: scores.",
            features=Features(predictions=Value("float32"), references=Value("float32")),
            reference_urls=[
                "https://docs.scipy.org/doc/scipy/reference/generated/scipy.stats.spearmanr.html"
            ],
            format="numpy",
        )

    def _compute(self, predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        return {"spearmanr": spearmanr(predictions, references)}
