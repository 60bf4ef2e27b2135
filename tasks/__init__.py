"""What is measured: each task's data, columns, labels and metrics. No model and no training here.

A task is one row: put a :class:`Task` into the tuple ``TASKS`` of a module in this folder and it is
found. A family is the script that runs its tasks (``finetune/<family>.py``).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tasks.metrics import Metric

if TYPE_CHECKING:
    from datasets import DatasetDict

OBJECTIVES = ("classify", "regress", "lm")
ROW_ENDS = ("none", "newline", "eos")


@dataclass(frozen=True)
class Split:
    """A split: its name in the data, the end of its metrics' keys, its predictions' file."""

    name: str
    key_suffix: str = ""
    prediction_file: str = ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a script must know to train on a data set and to score it.

    ``label_names`` are in the order of the data set's integers (empty for ``regress``).
    ``submits_names`` says that predictions are written as those names instead of integers;
    ``score_range`` is the interval that predicted scores are clipped to (``regress`` only).
    ``builder`` makes the data set on the spot, for tasks that have no source. ``verbatim`` says
    that a special token's spelling in the text is only text, as in source code.

    ``metrics`` are what the task is scored by; ``main_metric`` is the name of the one that chooses
    the best epoch. The objective may measure more beside them, such as the loss.

    A row names the columns that the model reads: ``text_columns``, ``image_column`` or
    ``audio_column``.

    Of language models (``lm``, which have no labels): ``row_end`` is
    what follows each row's text, where it does not end so already (``newline``), or always
    (``eos``, the tokenizer's token); ``word_level`` says that white space parts the text's words,
    so that a perplexity a word is comparable; ``other_configs`` are other forms of the data.
    """

    name: str
    family: str
    objective: str
    metrics: tuple[Metric, ...]
    main_metric: str
    text_columns: tuple[str, ...] = ()
    image_column: str = ""
    audio_column: str = ""
    label_column: str = "label"
    label_names: tuple[str, ...] = ()
    dataset_name: str | None = None
    dataset_config: str | None = None
    revision: str | None = None
    data_dir: str | None = None
    train_split: str = "train"
    validation_splits: tuple[Split, ...] = (Split("validation"),)
    test_splits: tuple[Split, ...] = (Split("test", prediction_file="predictions.tsv"),)
    submits_names: bool = False
    score_range: tuple[float, float] | None = None
    row_end: str = "none"
    word_level: bool = False
    other_configs: tuple[str, ...] = ()
    builder: Callable[[], DatasetDict] | None = None
    verbatim: bool = False

    def __post_init__(self) -> None:
        self._check_choice("objective", self.objective, OBJECTIVES)
        self._check_choice("row_end", self.row_end, ROW_ENDS)
        if not self.input_columns:
            raise ValueError(
                f"text_columns, image_column and audio_column of task {self.name!r} are empty; "
                "allowed: one column or more. Name the columns that the model reads."
            )
        if (self.objective == "classify") != bool(self.label_names):
            raise ValueError(
                f"label_names of task {self.name!r} is {self.label_names!r} with the objective "
                f"{self.objective!r}; allowed: names with classify, none with the others. Give the "
                "labels' names, or take the objective that fits the labels."
            )
        if self.dataset_name is None and self.builder is None and self.family:
            raise ValueError(
                f"dataset_name and builder of task {self.name!r} are both None; allowed: a source. "
                "Give the hub id of the data, or a function that builds them."
            )
        self._check_metrics()

    def _check_choice(self, field: str, value: str, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            raise ValueError(
                f"{field} of task {self.name!r} is {value!r}; allowed: {', '.join(allowed)}. "
                "Give it one of these."
            )

    def _check_metrics(self) -> None:
        known = [metric.name for metric in self.metrics]
        if len(set(known)) < len(known):
            raise ValueError(
                f"metrics of task {self.name!r} are {', '.join(known)}; allowed: each name once. "
                "Leave one of the two out, or give it another name."
            )
        if self.main_metric not in known:
            raise ValueError(
                f"main_metric of task {self.name!r} is {self.main_metric!r}; allowed: "
                f"{', '.join(known) or 'none, since it has no metrics'}. "
                "Choose one of its metrics, or add this one to them."
            )
        for metric in self.metrics:
            if metric.max_labels is not None and len(self.label_names) > metric.max_labels:
                raise ValueError(
                    f"metrics of task {self.name!r} hold {metric.name!r}, with "
                    f"{len(self.label_names)} labels; allowed: at most {metric.max_labels} labels "
                    "for it. Take a mean over the labels: f1:average=macro."
                )

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns that the model reads, of any kind."""
        others = (self.image_column, self.audio_column)
        return (*self.text_columns, *filter(None, others))


_registered: dict[tuple[str, str], Task] = {}


def register(task: Task) -> Task:
    """Make ``task`` known under its name within its family, and return it."""
    key = (task.family, task.name)
    if key in _registered and _registered[key] is not task:
        raise ValueError(
            f"task {task.name!r} of the family {task.family!r} is given twice; names of a family "
            f"must differ from those taken: {', '.join(names(task.family))}. Rename one."
        )
    _registered[key] = task
    return task


@cache
def _discover() -> None:
    for module_info in pkgutil.iter_modules(__path__, prefix=f"{__name__}."):
        for task in getattr(importlib.import_module(module_info.name), "TASKS", ()):
            register(task)


def registered() -> Mapping[tuple[str, str], Task]:
    """Every known task by (family, name)."""
    _discover()
    return dict(_registered)


def names(family: str | None = None) -> list[str]:
    """Names of the known tasks, of one family or of all, in the order of registration."""
    _discover()
    return [name for task_family, name in _registered if family in (None, task_family)]


def get(name: str, family: str | None = None) -> Task:
    """The task called ``name``; ``family`` is needed only where several families have that name.

    Raises ``ValueError`` listing the known names, or naming the script of a task of another family.
    """
    _discover()
    found = [task for (_, known), task in _registered.items() if known == name]
    chosen = [task for task in found if family in (None, task.family)]
    if len(chosen) == 1:
        return chosen[0]
    elsewhere = sorted(f"finetune/{task.family}.py" for task in found)
    remedy = f"Run it with {' or '.join(elsewhere)}." if elsewhere else "Choose one of these."
    scope = f" for finetune/{family}.py" if family else ""
    raise ValueError(
        f"task_name is {name!r}; known tasks{scope}: {', '.join(names(family))}. {remedy}"
    )
