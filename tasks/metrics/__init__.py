"""These are the metrics that tasks are scored by: each is one number with its direction.

Importing this needs neither scikit-learn nor `evaluate`: the first metric that is used imports
what it needs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tasks.metrics import foreign, functions
from tasks.metrics.foreign import Options, ending
from tasks.metrics.metric import Metric
from tasks.metrics.metric import scores as scores
from tasks.refusals import reason, refusal

ARGUMENTS = re.compile(r":(?=\w+=)")  # a colon alone may be part of a path

ACCURACY = Metric("accuracy", True, functions.accuracy)
F1 = Metric("f1", True, functions.f1, max_labels=2, title="F1")
MATTHEWS_CORRELATION = Metric(
    "matthews_correlation", True, functions.matthews_correlation, title="Matthews correlation"
)
PEARSON = Metric("pearson", True, functions.pearson, title="Pearson correlation")
SPEARMANR = Metric("spearmanr", True, functions.spearmanr, title="Spearman correlation")
WER = Metric("wer", False, functions.wer, title="word error rate")
CER = Metric("cer", False, functions.cer, title="character error rate")

# What an objective measures itself.
LOSS = Metric("loss", False)
PERPLEXITY = Metric("perplexity", False)
WORD_PERPLEXITY = Metric("word_perplexity", False)
# The share of labels among the five that score highest.
BITS_PER_BYTE = Metric("bits_per_byte", False)
TOP5 = Metric("top5_accuracy", True, title="top-5 accuracy")
UNKNOWN = Metric("unknown", False)  # the share of generated texts that are no label's word

ROWS = {
    metric.name: metric
    for metric in (
        *(ACCURACY, F1, MATTHEWS_CORRELATION, PEARSON, SPEARMANR, WER, CER),
        *(LOSS, PERPLEXITY, WORD_PERPLEXITY, BITS_PER_BYTE, TOP5, UNKNOWN),
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
    taken = {name for name, metric in ROWS.items() if metric.function is None}
    loaded: list[Metric] = []
    for spec in specs:
        name, options = _parsed(spec)
        if name in ROWS:
            found: tuple[Metric, ...] = (_with(ROWS[name], options, spec, sample),)
        else:
            found = foreign.load(name, options, sample, _ours())
        for metric in found:
            if metric.name in taken:
                raise refusal(
                    "metric",
                    spec,
                    f"other names than {', '.join(sorted(taken))}, which are measured already",
                    "Leave this one out, or let its module return the value under another name.",
                )
            taken.add(metric.name)
        loaded += found
    return tuple(loaded)


def on_hub(specs: Iterable[str]) -> list[str]:
    """Return those that are ids on the hub: to load them runs code that somebody can change."""
    names = [_parsed(spec)[0] for spec in specs]
    return [name for name in names if name not in ROWS and foreign.is_on_hub(name)]


def check_trusted(specs: Iterable[str], trust_remote_code: bool) -> None:
    """Raise ``ValueError`` for an id on the hub, unless its code may be run."""
    for name in [] if trust_remote_code else on_hub(specs):
        remedy = "Correct the spelling, or give --trust_remote_code to fetch its code and run it."
        raise foreign.unknown(name, _ours(), remedy)


def _ours() -> str:
    return ", ".join(name for name, metric in ROWS.items() if metric.function is not None)


def _parsed(spec: str) -> tuple[str, Options]:
    name, *arguments = ARGUMENTS.split(spec, maxsplit=1)
    pairs = [argument.partition("=") for argument in ",".join(arguments).split(",") if argument]
    return name, tuple((key, _value(value)) for key, _, value in pairs)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _with(metric: Metric, options: Options, spec: str, sample: Sequence[Any]) -> Metric:
    """Try our metric with these arguments, or on texts, and return it with them."""
    if metric.function is None or not (options or isinstance(sample[0], str)):
        return metric
    function = partial(metric.function, **dict(options))
    try:
        function(np.asarray(sample), np.asarray(sample))
    except (TypeError, ValueError) as error:
        raise refusal(
            "metric",
            spec,
            f"arguments that {metric.name} takes ({reason(error.__cause__ or error)})",
            "Leave the arguments out, or correct them.",
        ) from None
    return replace(metric, name=ending(metric.name, options), function=function, max_labels=None)
