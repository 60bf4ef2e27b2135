"""Metrics of other people are modules of `evaluate`, from a file, a folder or the hub.

A module is tried with a sample when it is loaded: so the names of its values are known, and one
that cannot score labels is refused before the training instead of after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from tasks.metrics import functions
from tasks.metrics.metric import Metric
from tasks.refusals import reason, refusal

HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
NUMBERS = "biuf"  # NumPy's kinds of numbers; texts are not checked
Options = tuple[tuple[str, Any], ...]


def load(spec: str, options: Options, sample: Sequence[Any], ours: str) -> tuple[Metric, ...]:
    """Return one metric for each number that the module returns.

    A module says by ``greater_is_better``, a bool or a dict of bools by value name, which way its
    values are better; for one that does not, the metric's direction is None.

    Args:
        spec: a .py file, a folder that holds one of its name, or an id on the hub.
        options: arguments of the module's ``compute``.
        sample: labels or scores to try it with.
        ours: the names of our metrics, for the message that there is no such module.

    Raises:
        ValueError: if there is no such module, or it cannot score the sample.
    """
    place = _place(spec, ours)
    _check_loads(place, ours)
    asked = Asked(place, options)
    names = tuple(asked.numbers(np.asarray(sample), np.asarray(sample)))
    together = partial(asked.values, names)
    return tuple(
        Metric(
            ending(name, options),
            _direction(_module(place), name),
            partial(asked.value, name),
            together=together,
        )
        for name in names
    )


@dataclass(frozen=True)
class Asked:
    """A module, by its place, and the arguments that its ``compute`` is called with."""

    place: str
    options: Options

    def value(self, name: str, predictions: np.ndarray, references: np.ndarray) -> float:
        """Return one value of the module."""
        (value,) = self.values((name,), predictions, references).values()
        return value

    def values(
        self, names: tuple[str, ...], predictions: np.ndarray, references: np.ndarray
    ) -> dict[str, float]:
        """Return these values of the module, under the names of their metrics."""
        found = self.numbers(predictions, references)
        if missing := [name for name in names if name not in found]:
            raise refusal(
                "metric",
                self.place,
                "modules that return the same values of any predictions, and "
                f"{', '.join(missing)} is missing now",
                "Let its _compute return the value always, for example 0.0 where it is undefined.",
            )
        return {ending(name, self.options): found[name] for name in names}

    def numbers(self, predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        """Return every number of the module, under its own name."""
        if np.asarray(predictions).dtype.kind in NUMBERS:
            functions.check(predictions, references)
        try:
            found = _module(self.place).compute(
                predictions=predictions, references=references, **dict(self.options)
            )
        except Exception as error:  # a module is any code
            _module.cache_clear()  # it may hold a part of what it was given
            raise refusal(
                "metric",
                self.place,
                "modules that can score these predictions",
                "Choose another one, or give its arguments as in NAME:average=macro; its error was "
                f"{reason(error)}",
            ) from error
        items = found.items() if isinstance(found, Mapping) else ()
        numbers = {name: float(value) for name, value in items if _is_number(value)}
        if not numbers:
            raise refusal(
                "metric",
                self.place,
                f"modules that return a dict with a number, and it returned {found!r}",
                "Let its _compute return one, for example {'name': 0.5}.",
            )
        return numbers


def ending(name: str, options: Options) -> str:
    """Return the name of a value that was computed with these arguments."""
    return "_".join([name, *(str(value) for _, value in options)])


def is_on_hub(spec: str) -> bool:
    """Whether it can only be an id on the hub."""
    return HUB_ID.fullmatch(spec) is not None and not spec.endswith(".py") and not _local(spec)


def unknown(spec: str, ours: str, remedy: str) -> ValueError:
    """The error of a module that is not here, or may not be fetched."""
    allowed = (
        f"{ours}; the path of a .py file, or of a folder with a .py file of its name; "
        "an id on the hub that can be reached, with --trust_remote_code"
    )
    return refusal("metric", spec, allowed, remedy)


def _local(spec: str) -> Path | None:
    """The absolute path of a local module."""
    path = Path(spec).expanduser().absolute()
    is_file = path.suffix == ".py" and path.is_file()
    return path if is_file or (path / f"{path.name}.py").is_file() else None


def _place(spec: str, ours: str) -> str:
    """Return the absolute path of a local module, or else what may be an id on the hub."""
    local = _local(spec)
    if local is not None:
        return str(local)
    if not is_on_hub(spec):
        raise unknown(spec, ours, f"There is no such file in {Path.cwd()}: correct the path.")
    return spec


@cache
def _module(place: str) -> Any:
    import evaluate

    # In memory, so that no two processes wait for one file.
    return evaluate.load(place, keep_in_memory=True)


def _check_loads(place: str, ours: str) -> None:
    try:
        module = _module(place)
    except Exception as error:  # a module is any code
        if isinstance(error, OSError) and not Path(place).is_absolute():
            remedy = (
                "Correct the spelling, connect to the network, or download the module's file and "
                "give its path."
            )
            raise unknown(place, ours, remedy) from None
        raise refusal(
            "metric",
            place,
            "a Python file with a subclass of evaluate.Metric",
            f"Correct the file, or install what it imports; its error was {reason(error)}",
        ) from error
    if module.module_type != "metric":
        raise refusal(
            "metric",
            place,
            f"modules of the type metric, and this is a {module.module_type}",
            f"Choose a metric, for example one of {ours}.",
        )


def _direction(module: Any, name: str) -> bool | None:
    said = getattr(module, "greater_is_better", None)
    said = said.get(name) if isinstance(said, Mapping) else said
    return said if isinstance(said, bool) else None


def _is_number(value: Any) -> bool:
    if not isinstance(value, Real | np.ndarray | np.generic):
        return False
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in "iuf"
