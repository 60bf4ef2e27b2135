"""Files of predictions: for each test split to hand in, for each validation split to compare."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from finetune.engine import storage
from tasks import Split, Task

EVALUATED = "eval_predictions{}.tsv"  # one a validation split, by the end of its metrics' keys


def write_answers(task: Task, split: Split, answers: np.ndarray, folder: Path) -> None:
    """A file in GLUE's submission format: ``index`` and ``prediction``, parted by a tab."""
    lines = [f"{i}\t{_submitted(task, value)}" for i, value in enumerate(answers.tolist())]
    text = "\n".join(["index\tprediction", *lines]) + "\n"
    storage.write_text(folder / split.prediction_file, text)


def write_evaluated(
    split: Split, predictions: np.ndarray, references: np.ndarray, folder: Path
) -> None:
    """``eval_predictions<suffix>.tsv``: index, prediction and label of each example of a split.

    Labels by their number, scores to the last digit: for tests that compare two runs by example.
    """
    rows = zip(predictions.tolist(), references.tolist(), strict=True)
    lines = [f"{i}\t{value}\t{label}" for i, (value, label) in enumerate(rows)]
    text = "\n".join(["index\tprediction\tlabel", *lines]) + "\n"
    storage.write_text(folder / EVALUATED.format(split.key_suffix), text)


def evaluated(folder: Path) -> dict[str, Path]:
    """The files that `write_evaluated` wrote there, by the end of their split's keys."""
    before, after = EVALUATED.split("{}")
    paths = sorted(folder.glob(EVALUATED.format("*")))
    return {path.name.removeprefix(before).removesuffix(after): path for path in paths}


def only_answer(path: Path) -> str | None:
    """The answer that all rows of such a file got, though their labels differ; else None."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    answers, labels = ({row[name] for row in rows} for name in ("prediction", "label"))
    return answers.pop() if len(answers) == 1 and len(labels) > 1 else None


def constant(answer: str) -> str:
    """What to say of that answer."""
    return f"every row is predicted as {answer or 'no text'}"


def _submitted(task: Task, value: Any) -> str:
    if task.objective == "ctc":
        return str(value)
    if task.objective == "regress":
        low, high = task.score_range or (-math.inf, math.inf)
        return f"{min(max(value, low), high):.3f}"
    return task.label_names[int(value)] if task.submits_names else str(int(value))
