"""What a run leaves behind: results with their origin, predictions, the model."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from finetune.arguments import Settings
from finetune.engine import Progress, Trainer, predictions, score
from finetune.models import filter_statistics
from tasks import Split, Task

RESULTS = "all_results.json"
PACKAGES = ("hf_graphattn", "torch", "transformers", "datasets", "accelerate")


def finish(trainer: Trainer, tokenizer: PreTrainedTokenizerBase, settings: Settings) -> dict:
    """Save model, tokenizer, predictions and ``all_results.json``; returns the results."""
    accelerator, folder = trainer.accelerator, Path(settings.train.output_dir)
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
    tests = write_predictions(trainer, folder) if settings.train.do_predict else {}
    model = accelerator.unwrap_model(trainer.model)
    model.save_pretrained(
        folder,
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
        state_dict=accelerator.get_state_dict(trainer.model),
    )
    results = (
        summary(trainer.progress)
        | tests
        | filter_statistics(model)
        | {"settings": settings.flat(), **origin(accelerator)}
    )
    if accelerator.is_main_process:
        tokenizer.save_pretrained(folder)
        write_json(folder / RESULTS, results)
    return results


def summary(progress: Progress) -> dict[str, Any]:
    """The last epoch's metrics, flat, beside steps, loss, speed and the metrics of every epoch."""
    last = progress.history[-1]
    return {name: value for name, value in last.items() if name.startswith("eval_")} | {
        "train_loss": progress.train_loss,
        "epochs": last["epoch"],
        "steps": progress.step,
        "seconds_per_step": progress.seconds_per_step(),
        "history": progress.history,
    }


def write_predictions(trainer: Trainer, folder: Path) -> dict[str, float]:
    """One file a test split; of splits whose labels are not hidden also ``test_<metric>``."""
    found = {}
    for split in trainer.task.test_splits:
        logits, labels = trainer.outputs(trainer.test[split.name], f"Predicting {split.name}")
        if trainer.accelerator.is_main_process:
            write_split(trainer.task, split, predictions(trainer.task, logits), folder)
        if labels is not None:
            for name, value in score(trainer.task, logits, labels).items():
                found[f"test_{name}{split.key_suffix}"] = value
    return found


def write_split(task: Task, split: Split, predicted: np.ndarray, folder: Path) -> None:
    """A file in GLUE's submission format: ``index`` and ``prediction``, parted by a tab."""
    lines = [f"{i}\t{_submitted(task, value)}" for i, value in enumerate(predicted.tolist())]
    text = "\n".join(["index\tprediction", *lines]) + "\n"
    (folder / split.prediction_file).write_text(text, encoding="utf-8")


def origin(accelerator: Accelerator) -> dict[str, Any]:
    """Where results come from: versions, commit, machine."""
    on_gpu = accelerator.device.type == "cuda"
    return {
        "versions": {name: metadata.version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
        "git": _commit(Path(__file__).parent),
        "machine": {
            "device": accelerator.device.type,
            "name": torch.cuda.get_device_name(accelerator.device) if on_gpu else _cpu_name(),
            "cores": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processes": accelerator.num_processes,
            "mixed_precision": accelerator.mixed_precision,
        },
    }


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write aside and rename, so that a reader never meets half a file; NaN becomes null."""
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(_finite(values), indent=2, allow_nan=False) + "\n", "utf-8")
    aside.replace(path)


def tracker_settings(settings: Settings) -> dict[str, Any]:
    """The settings as trackers take them: they refuse lists."""
    return {
        name: value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in settings.flat().items()
    }


def _submitted(task: Task, value: float) -> str:
    if task.objective == "regress":
        low, high = task.score_range or (-math.inf, math.inf)
        return f"{min(max(value, low), high):.3f}"
    return task.label_names[int(value)] if task.submits_names else str(int(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _commit(folder: Path) -> dict[str, Any] | None:
    """The repository's commit and whether files differ from it; None outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_name() -> str:
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        for line in cpu_info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
