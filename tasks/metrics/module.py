"""What our modules of the library `evaluate` share.

This file imports nothing of this project: ``evaluate.load`` copies it next to the module that it
loads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import evaluate
import numpy as np
from datasets import Features, Value

SCIKIT_LEARN = """\
@article{scikit-learn,
  title = {Scikit-learn: Machine Learning in {P}ython},
  author = {Pedregosa, F. and Varoquaux, G. and Gramfort, A. and Michel, V. and others},
  journal = {Journal of Machine Learning Research},
  volume = {12},
  pages = {2825--2830},
  year = {2011}
}
"""
SCIPY = """\
@article{scipy,
  title = {{SciPy} 1.0: Fundamental Algorithms for Scientific Computing in {P}ython},
  author = {Virtanen, Pauli and Gommers, Ralf and Oliphant, Travis E. and others},
  journal = {Nature Methods},
  volume = {17},
  pages = {261--272},
  year = {2020}
}
"""
LEVENSHTEIN = """\
@article{levenshtein1966,
  title = {Binary codes capable of correcting deletions, insertions, and reversals},
  author = {Levenshtein, Vladimir I.},
  journal = {Soviet Physics Doklady},
  volume = {10},
  number = {8},
  pages = {707--710},
  year = {1966}
}
"""


class Module(evaluate.Metric, ABC):
    """A function of predictions and references, with what `evaluate` asks about it.

    It is abstract, so that ``evaluate.load`` takes the class that is derived from it. That class
    is called like its metric, its docstring is the description, and it has these attributes:

        function: a static method, which computes the value; arguments of ``compute`` reach it.
        cited: the citation.
        url: where the function that computes the value is documented.
        inputs: what predictions and references are, and further arguments.
        kind: the type of both.
    """

    greater_is_better = True
    cited = SCIKIT_LEARN
    url: str
    inputs = "predictions and references: labels, as whole numbers."
    kind = "int64"

    @staticmethod
    @abstractmethod
    def function(predictions: np.ndarray, references: np.ndarray) -> float:
        """Return the value."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__,
            citation=self.cited,
            inputs_description=self.inputs,
            features=Features(predictions=Value(self.kind), references=Value(self.kind)),
            reference_urls=[self.url],
            format="numpy",
        )

    def _compute(
        self, predictions: np.ndarray, references: np.ndarray, **options: Any
    ) -> dict[str, float]:
        return {self.name: self.function(predictions, references, **options)}


class ErrorRate(Module):
    """A metric of texts, which jiwer computes; abstract too."""

    greater_is_better = False
    cited = LEVENSHTEIN
    url = "https://jitsi.github.io/jiwer/"
    inputs = "predictions and references: texts."
    kind = "string"
