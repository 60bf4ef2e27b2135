"""Metrics of tasks: functions of scikit-learn, SciPy and jiwer in one table, and any of `evaluate`.

A function gets predictions and references of shape (examples,) and returns a float. Correlations
with a constant are 0.0, as scikit-learn has it for Matthews', so that results stay valid JSON.
What a metric computes with is imported when it is first used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tasks.refusals import reason, refusal

ARGUMENTS = re.compile(r":(?=\w+=)")  # a colon alone may be part of a path
HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
LABELS = (0, 1, 0, 1)  # that a metric is tried with
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """One number that is written into results, and the direction in which it is better.

    Attributes:
        name: the result's key without its prefix and suffix: ``eval_<name><suffix>``.
        greater_is_better: None only of a module of `evaluate` that does not say.
        function: of predictions and references, both (examples,). None where an objective measures
            the number itself, such as the loss.
        max_labels: the largest number of labels that a task may have for it; None is no limit.
        together: computes all values of a module that has several, by the metric's name.
        title: what figures call it; empty is its name.
    """

    name: str
    greater_is_better: bool | None
    function: Callable[..., float] | None = None
    max_labels: int | None = None
    together: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None = None
    title: str = ""


def compute(
    function: str,
    kind: Literal["labels", "scores", "texts"],
    predictions: np.ndarray,
    references: np.ndarray,
    **options: Any,
) -> float:
    """Call a library's function, such as ``sklearn.metrics.f1_score``, on values of one kind.

    Raises:
        ValueError: if predictions are NaN or infinite, empty, of another kind, or not one for each
            reference.
    """
    check(predictions, references)
    module, _, name = function.rpartition(".")
    score = getattr(import_module(module), name)
    if kind == "texts":
        texts = [*predictions.tolist(), *references.tolist()]
        if other := [text for text in texts if not isinstance(text, str)]:
            raise refusal(name, other[0], "texts", "For labels take accuracy, for scores pearson.")
        return float(score(references.tolist(), predictions.tolist()))
    if kind == "scores":
        # In float32, as in GLUE's published script.
        predictions, references = (np.asarray(x, np.float32) for x in (predictions, references))
        if len(predictions) < 2 or np.ptp(predictions) == 0 or np.ptp(references) == 0:
            return 0.0
        return float(score(predictions, references).statistic)
    return float(score(references, predictions, **options))


def check(predictions: np.ndarray, references: np.ndarray) -> None:
    """Raise ``ValueError`` unless there is one prediction for each reference, finite or a text."""
    shapes = np.shape(predictions), np.shape(references)
    if len(set(shapes)) > 1 or len(shapes[0]) != 1 or shapes[0] == (0,):
        allowed = "one value each of one example or more, (examples,)"
        raise refusal("the shapes of predictions and references", shapes, allowed, "Pass such.")
    if np.asarray(predictions).dtype.kind in "biuf" and not np.all(np.isfinite(predictions)):
        remedy = "The model diverged: lower the learning rate."
        raise refusal("predictions", "NaN or infinite", "finite values", remedy)


ACCURACY = Metric("accuracy", True, partial(compute, "sklearn.metrics.accuracy_score", "labels"))
F1 = Metric(
    "f1",
    True,
    partial(compute, "sklearn.metrics.f1_score", "labels", average="binary", zero_division=0.0),
    max_labels=2,
    title="F1",
)
MATTHEWS_CORRELATION = Metric(
    "matthews_correlation",
    True,
    partial(compute, "sklearn.metrics.matthews_corrcoef", "labels"),
    title="Matthews correlation",
)
PEARSON = Metric(
    "pearson", True, partial(compute, "scipy.stats.pearsonr", "scores"), title="Pearson correlation"
)
SPEARMANR = Metric(
    "spearmanr",
    True,
    partial(compute, "scipy.stats.spearmanr", "scores"),
    title="Spearman correlation",
)
WER = Metric("wer", False, partial(compute, "jiwer.wer", "texts"), title="word error rate")
CER = Metric("cer", False, partial(compute, "jiwer.cer", "texts"), title="character error rate")

# What an objective measures itself.
LOSS = Metric("loss", False)
PERPLEXITY = Metric("perplexity", False)
WORD_PERPLEXITY = Metric("word_perplexity", False)
BITS_PER_BYTE = Metric("bits_per_byte", False)
TOP5 = Metric("top5_accuracy", True, title="top-5 accuracy")
UNKNOWN = Metric("unknown", False)  # the share of generated texts that are no label's word

COMPUTED = (ACCURACY, F1, MATTHEWS_CORRELATION, PEARSON, SPEARMANR, WER, CER)
MEASURED = (LOSS, PERPLEXITY, WORD_PERPLEXITY, BITS_PER_BYTE, TOP5, UNKNOWN)
ROWS = {metric.name: metric for metric in (*COMPUTED, *MEASURED)}
ALLOWED = (
    f"{', '.join(metric.name for metric in COMPUTED)}; the path of a .py file with a module of "
    "evaluate, or of a folder with a .py file of its name; an id on the hub that can be reached, "
    "with --trust_remote_code"
)


def scores(
    metrics: Sequence[Metric], predictions: np.ndarray, references: np.ndarray
) -> dict[str, float]:
    """Return each metric's value by name, without those that an objective measures itself.

    Raises:
        ValueError: if predictions are NaN or infinite, empty, or not one for each reference.
    """
    values: dict[str, float] = {}
    for metric in metrics:
        if metric.together is not None and metric.name not in values:
            values |= metric.together(predictions, references)
        elif metric.function is not None and metric.name not in values:
            values[metric.name] = metric.function(predictions, references)
    return {metric.name: values[metric.name] for metric in metrics if metric.function is not None}


def load(specs: Iterable[str], sample: Sequence[Any] | None = None) -> tuple[Metric, ...]:
    """Return the metrics that the specs name, each tried on a sample.

    Args:
        specs: each a name of the table, or of a module of `evaluate`: the path of a .py file or of
            a folder that holds one of its name, or an id on the hub, whose code is then run. With
            arguments as in ``f1:average=macro``, their values end the metric's name: ``f1_macro``.
        sample: labels, scores or texts of the kind that the task has. None: of labels, and the
            table's metrics are tried with arguments alone.

    Raises:
        ValueError: if there is no such metric, it cannot score the sample, or two have one name.
    """
    taken = {metric.name for metric in MEASURED}
    loaded: list[Metric] = []
    for spec in specs:
        name, options = _parsed(spec)
        if name not in ROWS:
            added = _of_module(name, options, np.asarray(LABELS if sample is None else sample))
        elif ROWS[name].function is None:
            added = [ROWS[name]]
        else:
            is_plain = sample is None and not options
            added = [ROWS[name] if is_plain else _with(ROWS[name], options, spec, sample)]
        for metric in added:
            if metric.name in taken:
                raise refusal(
                    "metric",
                    spec,
                    f"other names than {', '.join(sorted(taken))}, which are measured already",
                    "Leave this one out, or let its module return the value under another name.",
                )
            taken.add(metric.name)
        loaded += added
    return tuple(loaded)


def on_hub(specs: Iterable[str]) -> list[str]:
    """Return those that are ids on the hub: to load them runs code that somebody can change."""
    names = [_parsed(spec)[0] for spec in specs]
    return [name for name in names if name not in ROWS and _is_hub_id(name)]


def check_trusted(specs: Iterable[str], trust_remote_code: bool) -> None:
    """Raise ``ValueError`` for an id on the hub, unless its code may be run."""
    for name in [] if trust_remote_code else on_hub(specs):
        remedy = "Correct the spelling, or give --trust_remote_code to fetch its code and run it."
        raise refusal("metric", name, ALLOWED, remedy)


def _parsed(spec: str) -> tuple[str, Options]:
    name, *arguments = ARGUMENTS.split(spec, maxsplit=1)
    pairs = [argument.partition("=") for argument in ",".join(arguments).split(",") if argument]
    return name, {key: _value(value) for key, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _name(name: str, options: Options) -> str:
    """The name of a value that is computed with these arguments."""
    return "_".join([name, *map(str, options.values())])


def _with(metric: Metric, options: Options, spec: str, sample: Sequence[Any] | None) -> Metric:
    """The table's metric with these arguments, once it has scored the sample."""
    assert metric.function is not None
    function = partial(metric.function, **options)
    values = np.asarray(LABELS if sample is None else sample)
    try:
        function(values, values)
    except (AttributeError, TypeError, ValueError) as error:
        allowed = f"arguments that {metric.name} takes, for this kind of task ({reason(error)})"
        raise refusal("metric", spec, allowed, "Correct it, or leave it out.") from None
    most = None if options else metric.max_labels
    return replace(metric, name=_name(metric.name, options), function=function, max_labels=most)


def _is_hub_id(spec: str) -> bool:
    path = Path(spec).expanduser()
    is_local = spec.endswith(".py") or (path / f"{path.name}.py").is_file()
    return HUB_ID.fullmatch(spec) is not None and not is_local


def _of_module(spec: str, options: Options, sample: np.ndarray) -> list[Metric]:
    """A metric for each number that a module of `evaluate` returns of the sample."""
    source = spec if _is_hub_id(spec) else str(Path(spec).expanduser().absolute())
    try:
        if not (_is_hub_id(spec) or Path(source).exists()):
            raise FileNotFoundError(f"There is no {spec} in {Path.cwd()}")
        module = _module(source)
        if module.module_type != "metric":
            raise TypeError(f"it is a {module.module_type}, not a metric")
    except Exception as error:  # a module is any code
        remedy = f"Correct the spelling or the file; loading it raised {reason(error)}"
        raise refusal("metric", spec, ALLOWED, remedy) from None
    names = _numbers(source, options, sample, sample)
    better = getattr(module, "greater_is_better", None)
    better = better if isinstance(better, Mapping) else dict.fromkeys(names, better)
    return [
        Metric(
            _name(name, options),
            better.get(name),
            partial(_number, source, options, name),
            together=partial(_named, source, options),
        )
        for name in names
    ]


@cache
def _module(source: str) -> Any:
    import evaluate

    # In memory, so that no two processes wait for one file.
    return evaluate.load(source, keep_in_memory=True)


def _numbers(
    source: str, options: Options, predictions: np.ndarray, references: np.ndarray
) -> dict[str, float]:
    """Each number that the module returns, by its own name."""
    check(predictions, references)
    try:
        rows = {"predictions": predictions, "references": references}
        returned = _module(source).compute(**rows, **options)
        numbers = {key: float(x) for key, x in returned.items() if _is_number(x)}
        if not numbers:
            raise ValueError(f"it returned {returned!r}, a dict without a number")
    except Exception as error:  # a module is any code
        _module.cache_clear()  # it may hold a part of what it got
        remedy = f"Choose another one, or give its arguments (NAME:average=macro): {reason(error)}"
        raise refusal("metric", source, "modules that can score these", remedy) from error
    return numbers


def _named(
    source: str, options: Options, predictions: np.ndarray, references: np.ndarray
) -> dict[str, float]:
    numbers = _numbers(source, options, predictions, references)
    return {_name(name, options): value for name, value in numbers.items()}


def _number(
    source: str, options: Options, name: str, predictions: np.ndarray, references: np.ndarray
) -> float:
    return _numbers(source, options, predictions, references)[name]


def _is_number(value: Any) -> bool:
    number = np.asarray(value if isinstance(value, Real | np.ndarray | np.generic) else None)
    return number.ndim == 0 and number.dtype.kind in "iuf"
