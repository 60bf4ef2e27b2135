"""What a run leaves: ``all_results.json`` with where its numbers come from, and predictions."""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from finetune.engine import storage
from finetune.errors import one_line, refusal
from tasks import Split, Task

RESULTS = "all_results.json"
EVALUATED = "eval_predictions{}.tsv"  # one a validation split, by the end of its metrics' keys
PACKAGES = ("hf_graphattn", "torch", "transformers", "datasets", "accelerate")


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write whole, so that a reader never meets half a file; NaN becomes null."""
    storage.write_text(path, json.dumps(finite(values), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A run's results, or the record of its start.

    Raises:
        Refused: the file is damaged, or has no settings of the run.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
    except ValueError:
        values = None
    if isinstance(values, dict) and isinstance(values.get("settings"), dict):
        return values
    remedy = f"Remove {path.parent}, and the run is done again."
    raise refusal(str(path), "damaged", "the JSON that a run leaves", remedy)


def origin(accelerator: Accelerator) -> dict[str, Any]:
    """Where results come from: versions, commit, machine."""
    known = hasattr(os, "sched_getaffinity")
    return {
        "versions": versions() | {"python": platform.python_version()},
        "git": _commit(),
        "machine": {
            "device": accelerator.device.type,
            "name": machine_name(accelerator),
            "cores": len(os.sched_getaffinity(0)) if known else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processes": accelerator.num_processes,
            "mixed_precision": accelerator.mixed_precision,
        },
    }


def machine_name(accelerator: Accelerator) -> str:
    """The GPU's name, or the processor's."""
    if accelerator.device.type == "cuda":
        return torch.cuda.get_device_name(accelerator.device)
    return cpu_name()


def cpu_name() -> str:
    """The processor's name as the system has it."""
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text("utf-8").splitlines() if cpu_info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions() -> dict[str, str]:
    """The installed version of each package that numbers depend on."""
    return {name: metadata.version(name) for name in PACKAGES}


def peak_memory(accelerator: Accelerator) -> int:
    """Bytes at the highest: of the device's tensors on a GPU, else of this process."""
    if accelerator.device.type == "cuda":
        return torch.cuda.max_memory_allocated(accelerator.device)
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, whose ru_maxrss counts what the parent held before the fork
        lines = (line.split() for line in status.read_text("utf-8").splitlines())
        return next(1024 * int(cells[1]) for cells in lines if cells[0] == "VmHWM:")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def finite(value: Any) -> Any:
    """The value as JSON has it; NaN and infinity, in whatever containers, become None."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def _commit() -> dict[str, Any] | None:
    """The repository's commit and whether files differ from it; None outside a repository."""
    git = ["git", "-C", str(Path(__file__).parent), "status", "--porcelain=v2", "--branch"]
    try:
        text = subprocess.check_output(git, stderr=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    lines = text.splitlines()
    head = lines[0].removeprefix("# branch.oid ")
    return {"commit": head, "dirty": any(not line.startswith("#") for line in lines)}


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


def constant(path: Path) -> str | None:
    """A sentence about the one prediction of all rows of such a file, though their labels differ.

    A class has its name, where the file has names. None if there are several predictions.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    answers, labels = ({row[name] for row in rows} for name in ("prediction", "label"))
    if len(answers) != 1 or len(labels) < 2:
        return None
    answer = rows[0].get("prediction_name", rows[0]["prediction"])
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
