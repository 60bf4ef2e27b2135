"""What a run leaves behind: results with their origin, predictions, the model."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import set_seed
from transformers import PreTrainedTokenizerBase

from finetune import publishing, storage, tuning
from finetune.arguments import Settings
from finetune.engine import Trainer
from finetune.models import filter_statistics
from tasks import Split, Task

logger = get_logger(__name__)

RESULTS = "all_results.json"
EVALUATED = "eval_predictions{}.tsv"  # one a validation split, by the end of its metrics' keys
PACKAGES = ("hf_graphattn", "torch", "transformers", "datasets", "accelerate")


def run(trainer: Trainer, tokenizer: PreTrainedTokenizerBase, family: str) -> dict[str, Any]:
    """Train, or only evaluate, as the flags say, and write what comes of it; returns the results.

    Raises ``CheckpointError`` for a checkpoint that does not fit, ``SaveError`` for a full disk.
    """
    accelerator, train = trainer.accelerator, trainer.settings.train
    if train.tracker is not None:
        accelerator.init_trackers(family, tracker_settings(trainer.settings))
    # Each process draws its own dropout; the weights are equal already.
    set_seed(train.seed, device_specific=True)
    if train.resume_from_checkpoint is not None:
        trainer.resume(train.resume_from_checkpoint)
    if train.do_eval_only:
        found = trainer.evaluate()
    else:
        trainer.train()
        found = summary(trainer)
        if trainer.objective.predicts and found["weights_of_epoch"] != found["epochs"]:
            trainer.evaluate()  # so that the predictions are of the weights that are saved
    results = finish(trainer, tokenizer, found)
    accelerator.end_training()
    return results


def finish(
    trainer: Trainer, tokenizer: PreTrainedTokenizerBase, found: dict[str, Any]
) -> dict[str, Any]:
    """Save predictions, the trained model and ``all_results.json``; returns the results."""
    accelerator, settings = trainer.accelerator, trainer.settings
    folder = Path(settings.train.output_dir)
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
    tests = trainer.objective.predict(trainer, folder) if settings.train.do_predict else {}
    if not settings.train.do_eval_only:
        save_model(trainer, tokenizer, folder)
    results = (
        found
        | tests
        | trainer.objective.facts()
        | filter_statistics(accelerator.unwrap_model(trainer.model))
        | {"peak_memory_bytes": peak_memory(accelerator)}
        | {"settings": settings.flat(), **origin(accelerator)}
    )
    if accelerator.is_main_process:
        with storage.clear_errors(folder / RESULTS, "the model is saved"):
            write_json(folder / RESULTS, results)
        if settings.train.push_to_hub:
            model = accelerator.unwrap_model(trainer.model)
            logger.info(publishing.push(model, folder, trainer.task, settings, results))
    accelerator.wait_for_everyone()
    return results


def save_model(trainer: Trainer, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Model and tokenizer as `save_pretrained` writes them, each file whole or as it was.

    Raises ``SaveError`` if they cannot be written.
    """
    accelerator = trainer.accelerator
    model, weights = (
        accelerator.unwrap_model(trainer.model),
        accelerator.get_state_dict(trainer.model),
    )
    if accelerator.is_main_process:
        target = folder / "model"
        with storage.clear_errors(target, f"what {folder} held is as it was"):
            aside = storage.aside_of(target)
            shutil.rmtree(aside, ignore_errors=True)
            tuning.save(model, aside, weights)
            tokenizer.save_pretrained(aside)
            storage.commit_files(target, folder)
    accelerator.wait_for_everyone()


def summary(trainer: Trainer) -> dict[str, Any]:
    """Metrics of the last epoch, or of the best if its weights are kept, and what led there."""
    progress = trainer.progress
    last = progress.history[-1]
    kept = last
    if progress.best_name is not None:
        kept = progress.history[progress.best_epoch - 1]
    return {name: value for name, value in kept.items() if name.startswith("eval_")} | {
        "train_loss": progress.train_loss,
        "epochs": last["epoch"],
        "steps": progress.step,
        "best": {
            "metric": trainer.selection.metric,
            "value": progress.best_value,
            "epoch": progress.best_epoch,
        },
        "weights_of_epoch": kept["epoch"],
        "seconds_per_step": progress.seconds_per_step(),
        "history": progress.history,
    }


def write_split(task: Task, split: Split, predicted: np.ndarray, folder: Path) -> None:
    """A file in GLUE's submission format: ``index`` and ``prediction``, parted by a tab."""
    lines = [f"{i}\t{_submitted(task, value)}" for i, value in enumerate(predicted.tolist())]
    text = "\n".join(["index\tprediction", *lines]) + "\n"
    (folder / split.prediction_file).write_text(text, encoding="utf-8")


def write_evaluated(
    split: Split, predicted: np.ndarray, labels: np.ndarray, trainer: Trainer
) -> None:
    """``eval_predictions<suffix>.tsv``: index, prediction and label of each example of a split.

    Labels by their number, scores to the last digit: for tests that compare two runs by example.
    """
    if trainer.accelerator.is_main_process:
        rows = zip(predicted.tolist(), labels.tolist(), strict=True)
        lines = [f"{i}\t{value}\t{label}" for i, (value, label) in enumerate(rows)]
        trainer.folder.mkdir(parents=True, exist_ok=True)
        path = trainer.folder / EVALUATED.format(split.key_suffix)
        path.write_text("\n".join(["index\tprediction\tlabel", *lines]) + "\n", "utf-8")


def peak_memory(accelerator: Accelerator) -> int | None:
    """Bytes at the highest: of the device's tensors on a GPU, else of this process.

    None where the system does not say.
    """
    if accelerator.device.type == "cuda":
        return torch.cuda.max_memory_allocated(accelerator.device)
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, whose ru_maxrss counts what the parent held before the fork
        lines = (line.split() for line in status.read_text("utf-8").splitlines())
        return next(1024 * int(words[1]) for words in lines if words[0] == "VmHWM:")
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


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
