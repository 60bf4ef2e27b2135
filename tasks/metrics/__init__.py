"""The metrics that tasks are scored by. One :class:`Metric` is one number with its direction.

Importing this needs no scikit-learn and no `evaluate`: the first metric that is used imports them.
"""

from __future__ import annotations

from tasks.metrics import functions
from tasks.metrics.metric import Metric, scores

ACCURACY = Metric("accuracy", True, functions.accuracy)
F1 = Metric("f1", True, functions.f1, max_labels=2)
MATTHEWS_CORRELATION = Metric("matthews_correlation", True, functions.matthews_correlation)
PEARSON = Metric("pearson", True, functions.pearson)
SPEARMANR = Metric("spearmanr", True, functions.spearmanr)

# What an objective measures itself.
LOSS = Metric("loss", False)
PERPLEXITY = Metric("perplexity", False)
WORD_PERPLEXITY = Metric("word_perplexity", False)
UNKNOWN = Metric("unknown", False)  # the share of generated texts that are no label's word

__all__ = [
    "ACCURACY",
    "F1",
    "LOSS",
    "MATTHEWS_CORRELATION",
    "PEARSON",
    "PERPLEXITY",
    "SPEARMANR",
    "UNKNOWN",
    "WORD_PERPLEXITY",
    "Metric",
    "scores",
]
