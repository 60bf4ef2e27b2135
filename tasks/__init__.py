"""What is measured: each task's data, columns, labels and metrics. Nothing here knows a model.

A task is one row: put a :class:`Task` into the tuple ``TASKS`` of a module in this folder, and the
scripts find it. A family is the script that runs its tasks (``finetune/<family>.py``).
"""

from __future__ import annotations

import difflib
import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tasks.metrics import Metric
from tasks.refusals import TaskError, refusal

if TYPE_CHECKING:
    from datasets import DatasetDict

OBJECTIVES = ("classify", "regress", "lm", "ctc")
ROW_ENDS = ("none", "newline", "eos")


@dataclass(frozen=True)
class Split:
    """A split of the data: its name there, and what its results are called.

    ``key_suffix`` ends the keys of its metrics; ``prediction_file`` is where its predictions go.
    """

    name: str
    key_suffix: str = ""
    prediction_file: str = ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a script must know to train on a data set and to score it.

    A task reads at least one column: texts, an image or a sound. ``label_names`` are in the order
    of the data set's integers; only ``classify`` has them, and a task of images may leave them to
    its data, which name their classes. ``score_range`` is the interval that
    predicted scores are clipped to, for ``regress`` only. ``submits_names`` says that predictions
    are written as the labels' names instead of integers.

    The task is scored by its ``metrics``, and ``main_metric`` names the one that chooses the best
    epoch. The objective may measure more beside them, such as the loss.

    ``builder`` makes the data set on the spot, for tasks that have no source. ``verbatim`` says
    that a special token's spelling in the text is only text, as in source code.

    The other fields are for language models. ``row_end`` is what follows each row's text: a
    newline where there is none yet (``newline``), or always the tokenizer's token (``eos``).
    ``word_level`` says that white space separates the text's words, so that a perplexity a word
    can be compared.
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
    builder: Callable[[], DatasetDict] | None = None
    verbatim: bool = False

    def __post_init__(self) -> None:
        names = [metric.name for metric in self.metrics]
        has_no_names = not self.label_names and not self.image_column
        is_classified = self.objective == "classify"
        too_many = any(len(self.label_names) > (m.max_labels or math.inf) for m in self.metrics)
        for field, is_wrong, allowed in (
            ("objective", self.objective not in OBJECTIVES, ", ".join(OBJECTIVES)),
            ("row_end", self.row_end not in ROW_ENDS, ", ".join(ROW_ENDS)),
            ("input_columns", not self.input_columns, "text, image or audio columns"),
            ("label_names", is_classified and has_no_names, "names with the objective classify"),
            ("label_names", bool(self.label_names) > is_classified, "none but with classify"),
            (
                "dataset_name",
                bool(self.family) and self.dataset_name is None and self.builder is None,
                "None beside a builder alone",
            ),
            ("metrics", len(set(names)) < len(names), "each name once"),
            ("metrics", too_many, "those of so many labels: f1:average=macro for f1"),
            ("main_metric", self.main_metric not in names, f"one of its metrics: {names}"),
        ):
            if is_wrong:
                value = names if field == "metrics" else getattr(self, field)
                raise refusal(f"{field} of task {self.name!r}", value, allowed, "Correct it.")

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns that the model reads, of any kind."""
        others = (self.image_column, self.audio_column)
        return (*self.text_columns, *filter(None, others))

    @property
    def columns(self) -> dict[str, str]:
        """The column of the data that each thing is read from, by its name here."""
        texts = zip(("text", "text_pair"), self.text_columns, strict=False)
        found = {**dict(texts), "image": self.image_column, "audio": self.audio_column}
        return {what: name for what, name in {**found, "label": self.label_column}.items() if name}


_registered: dict[tuple[str, str], Task] = {}


def register(task: Task) -> Task:
    """Make ``task`` known under its name within its family, and return it.

    Raises ``ValueError`` if another task of the family has that name.
    """
    key = (task.family, task.name)
    if key in _registered and _registered[key] is not task:
        taken = ", ".join(names(task.family))
        raise refusal(
            f"name of a task of the family {task.family!r}",
            task.name,
            f"names that are not taken, and these are: {taken}",
            "Give the new task another name.",
        )
    _registered[key] = task
    return task


@cache
def _discover() -> None:
    for module_info in pkgutil.iter_modules(__path__, prefix=f"{__name__}."):
        for task in getattr(importlib.import_module(module_info.name), "TASKS", ()):
            register(task)


def registered() -> Mapping[tuple[str, str], Task]:
    """Return every known task by (family, name)."""
    _discover()
    return dict(_registered)


def names(family: str | None = None) -> list[str]:
    """Return the names of the tasks of one family or of all, in the order of registration."""
    _discover()
    return [name for task_family, name in _registered if family in (None, task_family)]


def get(name: str, family: str | None = None) -> Task:
    """Return the task called ``name``; ``family`` is needed where several families have that name.

    Raises ``ValueError`` listing the known names, or naming the script of a task of another family.
    """
    _discover()
    found = [task for (_, known), task in _registered.items() if known == name]
    chosen = [task for task in found if family in (None, task.family)]
    if len(chosen) == 1:
        return chosen[0]
    elsewhere = sorted(f"finetune/{task.family}.py" for task in found)
    close = difflib.get_close_matches(name, names(family))
    remedy = f"Did you mean {' or '.join(close)}?" if close else "Choose one of these."
    if elsewhere:
        remedy = f"Run it with {' or '.join(elsewhere)}."
    scope = f" for finetune/{family}.py" if family else ""
    raise TaskError(
        f"task_name is {name!r}; known tasks{scope}: {', '.join(names(family))}. {remedy}"
    )
