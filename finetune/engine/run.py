"""A whole run: train or only evaluate, then leave results, predictions and the model behind."""

from __future__ import annotations

import logging
import shlex
import shutil
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed

from finetune import terminal
from finetune.engine import output_folder, panels, publishing, storage
from finetune.engine.results import RESULTS, origin, peak_memory, write_json
from finetune.engine.trainer import Trainer
from finetune.models import tuning
from finetune.models.loading import filter_statistics
from finetune.settings.groups import FILTER_RATE

logger = logging.getLogger(__name__)
HARDLY = 1e-3  # a scalar that moved by less changes next to nothing


def run(trainer: Trainer, processor: Any) -> dict[str, Any]:
    """Train, or only evaluate, as the flags say, and write what comes of it; returns the results.

    Raises:
        CheckpointError: a checkpoint does not fit.
        SaveError: the disk is full.
    """
    accelerator, settings = trainer.accelerator, trainer.settings
    train, is_main, family = settings.train, accelerator.is_main_process, trainer.task.family
    former = output_folder.former(settings, family)
    if train.tracker is not None:  # trackers refuse lists
        flags = settings.flat()
        plain = {n: v if isinstance(v, str | int | float) else str(v) for n, v in flags.items()}
        accelerator.init_trackers(family, plain)
    # Each process draws its own dropout; the weights are equal already.
    set_seed(train.seed, device_specific=True)
    if train.resume_from_checkpoint is not None:
        trainer.resume(train.resume_from_checkpoint)
    if is_main:
        output_folder.remove(former)
    accelerator.wait_for_everyone()
    opening = list(panels.opening(trainer))
    if is_main:
        title = "Evaluation" if train.do_eval_only else "Training"
        terminal.print_rows(f"{title}: {family}.py", opening)
    if train.do_eval_only:
        measured: dict[str, Any] = dict(trainer.evaluate())
    else:
        trainer.train()
        measured = summary(trainer)
    results = finish(trainer, processor, measured | times(trainer))
    if is_main:
        terminal.print_rows("Results", panels.closing(trainer, results))
        for command in panels.next_commands(trainer):
            print(f"  {shlex.join(command)}", flush=True)
    accelerator.end_training()
    return results


def finish(trainer: Trainer, processor: Any, measured: dict[str, Any]) -> dict[str, Any]:
    """Save predictions, the trained model and ``all_results.json``; returns the results."""
    accelerator, settings, folder = trainer.accelerator, trainer.settings, trainer.folder
    tests = trainer.predict() if settings.train.do_predict else {}
    if not settings.train.do_eval_only:
        save_model(trainer, processor, folder)
    moved = filter_statistics(accelerator.unwrap_model(trainer.model), trainer.first_scalars)
    rate, most = trainer.filter_learning_rate, moved["filter_max_moved"]
    is_still = rate is not None and most is not None and most < HARDLY
    if is_still and not settings.train.do_eval_only:
        logger.warning(
            f"The filters' scalars moved by less than {HARDLY:g} at a learning rate of {rate:g}: "
            "the attention is nearly what it was before training. Raise --filter_learning_rate, "
            "or train for longer."
        )
    results = (
        measured
        | tests
        | trainer.objective.facts()
        | moved
        | {"peak_memory_bytes": peak_memory(accelerator)}
        | {"greater_is_better": trainer.directions}
        | {"data": trainer.data_origin, "columns": trainer.task.columns}
        | {"settings": settings.flat() | {FILTER_RATE: rate}, **origin(accelerator)}
    )
    if accelerator.is_main_process:
        write_json(folder / RESULTS, results)
    if settings.train.push_to_hub:
        publishing.push(trainer, processor, results)
    accelerator.wait_for_everyone()
    return results


def save_model(trainer: Trainer, processor: Any, folder: Path) -> None:
    """Model and processor as `save_pretrained` writes them, each file whole or as it was.

    Raises:
        SaveError: they cannot be written.
    """
    accelerator = trainer.accelerator
    model = accelerator.unwrap_model(trainer.model)
    weights = accelerator.get_state_dict(trainer.model)
    if accelerator.is_main_process:
        target = folder / "model"
        with storage.clear_errors(target, f"the files of {folder} are unchanged"):
            aside = storage.aside_of(target)
            shutil.rmtree(aside, ignore_errors=True)
            tuning.save(model, aside, weights)
            processor.save_pretrained(aside)
            storage.commit_files(target, folder)
    accelerator.wait_for_everyone()


def summary(trainer: Trainer) -> dict[str, Any]:
    """Metrics of the last evaluation, or of the best if its weights are kept; what led there."""
    progress, metric = trainer.progress, trainer.selection.metric
    last, best = progress.history[-1], trainer.selection.best(progress.history)
    kept = last if progress.best_name is None else best
    when = {name: best[name] for name in ("epoch", "step")}
    return {name: value for name, value in kept.items() if name.startswith("eval_")} | {
        "train_loss": progress.train_loss,
        "epochs": last["epoch"],
        "steps": progress.step,
        "best": {"metric": metric, "value": best[metric], **when},
        "weights_of_epoch": kept["epoch"],
        "weights_of_step": kept["step"],
        "seconds_per_step": progress.seconds_per_step(),
        "history": progress.history,
    }


def times(trainer: Trainer) -> dict[str, Any]:
    """How many rows and how long, by the names that transformers' Trainer has for them.

    The time of training is that of all parts of a resumed run, with evaluations and checkpoints.
    """
    rows = {
        f"eval_samples{split.key_suffix}": len(trainer.validation[split.name].dataset)
        for split in trainer.task.validation_splits
    }
    evaluation = {"eval_runtime": trainer.eval_seconds, **rows}
    if trainer.settings.train.do_eval_only:
        return evaluation
    seconds, steps = trainer.progress.train_seconds, trainer.progress.step
    return evaluation | {
        "train_runtime": seconds,
        "train_samples": trainer.updates.rows,
        "train_samples_per_second": trainer.updates.samples(steps) / seconds,
        "train_steps_per_second": steps / seconds,
    }
