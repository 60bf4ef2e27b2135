"""These are the metrics that tasks are scored by: each is one number with its direction.

Importing this needs neither scikit-learn nor `evaluate`: the first metric that is used imports
what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tasks.metrics import functions, loading
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

ROWS = {
    metric.name: metric
    for metric in (
        *(ACCURACY, F1, MATTHEWS_CORRELATION, PEARSON, SPEARMANR),
        *(LOSS, PERPLEXITY, WORD_PERPLEXITY, UNKNOWN),
    )
}


def load(specs: Iterable[str], sample: Sequence[Any] = (0, 1, 0, 1)) -> tuple[Metric, ...]:
    """Return the metrics that the specs name: ours, or modules of the library `evaluate`.

    Args:
        specs: each a name of ours, the path of a .py file or of a folder that holds one of its
            name, or an id on the hub, whose code is then run. With arguments as in
            ``f1:average=macro``, their values end the metric's name: ``f1_macro``.
        sample: labels or scores of the kind that the task has; a module that cannot score them is
            refused at once.

    Raises:
        ValueError: if there is no such metric, it cannot score the sample, or two have one name.
    """
    return loading.load(specs, sample, ROWS)


__all__ = [
    "ACCURACY",
    "F1",
    "LOSS",
    "MATTHEWS_CORRELATION",
    "PEARSON",
    "PERPLEXITY",
    "ROWS",
    "SPEARMANR",
    "UNKNOWN",
    "WORD_PERPLEXITY",
    "Metric",
    "load",
    "scores",
]
