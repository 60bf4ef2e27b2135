"""A metric is a name, its direction, and the function that computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Metric:
    """A metric is one number, which has a name in results and is better one way.

    Attributes:
        name: the result's key without its prefix and suffix: ``eval_<name><suffix>``.
        greater_is_better: None only of a foreign metric that does not say.
        function: computes it from predictions and references, both ``(examples,)``. It is None
            where an objective measures the number itself, such as the loss.
        max_labels: the largest number of labels that a task may have for it; None is no limit.
        together: computes all values of a module that has several, by name.
        title: what figures call it; empty is its name.
    """

    name: str
    greater_is_better: bool | None
    function: Callable[[np.ndarray, np.ndarray], float] | None = None
    max_labels: int | None = None
    together: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None = None
    title: str = ""


def scores(
    metrics: Sequence[Metric], predictions: np.ndarray, references: np.ndarray
) -> dict[str, float]:
    """Return each metric's value by name, without those that an objective measures itself.

    Raises:
        ValueError: if predictions are NaN or infinite, empty, or not one for each reference.
    """
    found: dict[str, float] = {}
    for metric in metrics:
        if metric.name in found:
            continue
        if metric.together is not None:
            found |= metric.together(predictions, references)
        elif metric.function is not None:
            found[metric.name] = metric.function(predictions, references)
    return {metric.name: found[metric.name] for metric in metrics if metric.name in found}
