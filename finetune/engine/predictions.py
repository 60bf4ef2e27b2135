"""Files of predictions: for each test split to hand in, for each validation split to compare."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.engine import storage
from finetune.errors import one_line
from tasks import Split, Task

EVALUATED = "eval_predictions{}.tsv"  # one a validation split, by the end of its metrics' keys


def write_answers(task: Task, split: Split, answers: np.ndarray, folder: Path) -> None:
    """A file in GLUE's submission format: ``index`` and ``prediction``, separated by a tab."""
    lines = [f"{i}\t{_submitted(task, value)}" for i, value in enumerate(answers.tolist())]
    _write(folder / split.prediction_file, ["index\tprediction", *lines])


def write_evaluated(
    split: Split,
    predictions: Any,
    references: np.ndarray,
    folder: Path,
    names: Sequence[str] = (),
) -> None:
    """``eval_predictions<suffix>.tsv``: index, prediction and label of each row of a split.

    Labels by their number, scores to the last digit: for tests that compare two runs row by row.
    Where classes have ``names``, two more columns have these.
    """
    head = ["index", "prediction", "label"] + ["prediction_name", "label_name"] * bool(names)
    lines = []
    for index, pair in enumerate(zip(predictions.tolist(), references.tolist(), strict=True)):
        cells = (index, *pair, *(_name(names, number) for number in pair if names))
        lines.append("\t".join(map(str, cells)))
    _write(folder / EVALUATED.format(split.key_suffix), ["\t".join(head), *lines])


def evaluated(folder: Path) -> dict[str, Path]:
    """The files that `write_evaluated` wrote there, by the end of their split's keys."""
    before, after = EVALUATED.split("{}")
    paths = sorted(folder.glob(EVALUATED.format("*")))
    return {path.name.removeprefix(before).removesuffix(after): path for path in paths}


def only_answer(path: Path) -> str | None:
    """The one prediction of all rows of such a file, though their labels differ; else None.

    A class has its name, where the file has names.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    answers, labels = ({row[name] for row in rows} for name in ("prediction", "label"))
    if len(answers) != 1 or len(labels) < 2:
        return None
    return rows[0].get("prediction_name", rows[0]["prediction"])


def constant(answer: str) -> str:
    """A sentence about that prediction."""
    return f"every row is predicted as {answer or 'no text'}"


def _write(path: Path, lines: Sequence[str]) -> None:
    storage.write_text(path, "\n".join(lines) + "\n")


def _submitted(task: Task, value: Any) -> str:
    if task.objective == "ctc":
        return str(value)
    if task.objective == "regress":
        low, high = task.score_range or (-math.inf, math.inf)
        return f"{min(max(value, low), high):.3f}"
    return _name(task.label_names, int(value)) if task.submits_names else str(int(value))


def _name(names: Sequence[str], number: int) -> str:
    """A class's name in one cell; a generated text that is no label has none."""
    return one_line(names[number]) if 0 <= number < len(names) else ""
