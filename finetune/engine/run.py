"""A whole run: train or only evaluate, then leave results, predictions and the model behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, set_seed
from torch import Tensor

import hf_graphattn as ga
from finetune.engine import output_folder, panels, publishing, storage
from finetune.engine.results import RESULTS, origin, peak_memory, write_json
from finetune.engine.trainer import Trainer
from finetune.models import tuning
from finetune.models.loading import filter_statistics
from finetune.settings.groups import DEFAULT_FILTER_RATE, FILTER_RATE
from finetune.settings.schema import Settings
from hf_graphattn.model.parallel import is_spread

logger = get_logger(__name__)
HARDLY = 1e-3  # a scalar that moved by less changes next to nothing


class Processor(Protocol):
    """What makes a model's inputs: a tokenizer, an image processor ..."""

    def save_pretrained(self, save_directory: Path) -> Any:
        """Write its files."""


def run(trainer: Trainer, processor: Processor, family: str) -> dict[str, Any]:
    """Train, or only evaluate, as the flags say, and write what comes of it; returns the results.

    Raises ``CheckpointError`` for a checkpoint that does not fit, ``SaveError`` for a full disk.
    """
    accelerator, train = trainer.accelerator, trainer.settings.train
    former = output_folder.former(trainer.settings, family)
    if train.tracker is not None:
        accelerator.init_trackers(family, tracker_settings(trainer.settings))
    # Each process draws its own dropout; the weights are equal already.
    set_seed(train.seed, device_specific=True)
    if train.resume_from_checkpoint is not None:
        trainer.resume(train.resume_from_checkpoint)
    if accelerator.is_main_process:
        output_folder.remove(former)
    accelerator.wait_for_everyone()
    _show(trainer, panels.opening(trainer, family))
    if train.do_eval_only:
        found: dict[str, Any] = dict(trainer.evaluate())
    else:
        trainer.train()
        found = summary(trainer)
    results = finish(trainer, processor, found | times(trainer))
    _show(trainer, panels.closing(trainer, family, results))
    accelerator.end_training()
    return results


def _show(trainer: Trainer, text: str) -> None:
    """Print what the main process has to say, between the lines of the log."""
    if trainer.accelerator.is_main_process:
        print(text, flush=True)


def finish(trainer: Trainer, processor: Processor, found: dict[str, Any]) -> dict[str, Any]:
    """Save predictions, the trained model and ``all_results.json``; returns the results."""
    accelerator, settings, folder = trainer.accelerator, trainer.settings, trainer.folder
    tests = trainer.predict() if settings.train.do_predict else {}
    if not settings.train.do_eval_only:
        save_model(trainer, processor, folder)
    moved = filter_statistics(accelerator.unwrap_model(trainer.model), trainer.first_scalars)
    rate = trainer.filter_learning_rate
    if not settings.train.do_eval_only:
        tell_how_far(moved["filter_max_moved"], rate)
    results = (
        found
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
        push(trainer, processor, results)
    accelerator.wait_for_everyone()
    return results


def push(trainer: Trainer, processor: Any, results: dict[str, Any]) -> None:
    """Upload the folder with its card; all processes make that of a model spread over them."""
    task, settings, is_main = trainer.task, trainer.settings, trainer.accelerator.is_main_process
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not (is_main or is_spread(model)):
        return
    found = [publishing.target(settings, task) if is_main else None]
    (to,) = broadcast_object_list(found) if is_spread(model) else found
    assert to is not None
    example = trainer.example if to.shows_row and ga.is_patched(model) else None
    if isinstance(example, Tensor):
        example = processor.decode(example)
    card = publishing.card_of(model, to, task, settings, results, processor, example)
    if is_main:
        message = f"{task.name}: {settings.filter.variant}"
        logger.info(publishing.push(trainer.folder, to.repo_id, message, card, example))


def tell_how_far(moved: float | None, rate: float | None) -> None:
    """Say what to do if training has hardly moved the filters' scalars."""
    if moved is None or rate is None:
        return
    if moved < HARDLY:
        logger.warning(
            f"The filters' scalars moved by less than {HARDLY:g} at a learning rate of {rate:g}: "
            "the attention is nearly what it was before training. Raise --filter_learning_rate "
            f"(default: {DEFAULT_FILTER_RATE:g}), or train for longer."
        )


def save_model(trainer: Trainer, processor: Processor, folder: Path) -> None:
    """Model and processor as `save_pretrained` writes them, each file whole or as it was.

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
            processor.save_pretrained(aside)
            storage.commit_files(target, folder)
    accelerator.wait_for_everyone()


def summary(trainer: Trainer) -> dict[str, Any]:
    """Metrics of the last evaluation, or of the best if its weights are kept; what led there."""
    progress, metric = trainer.progress, trainer.selection.metric
    last, best = progress.history[-1], trainer.selection.best(progress.history)
    kept = last if progress.best_name is None else best
    return {name: value for name, value in kept.items() if name.startswith("eval_")} | {
        "train_loss": progress.train_loss,
        "epochs": last["epoch"],
        "steps": progress.step,
        "best": {
            "metric": metric,
            "value": best[metric],
            "epoch": best["epoch"],
            "step": best["step"],
        },
        "weights_of_epoch": kept["epoch"],
        "weights_of_step": kept["step"],
        "seconds_per_step": progress.seconds_per_step(),
        "history": progress.history,
    }


def times(trainer: Trainer) -> dict[str, Any]:
    """How many rows and how long, by the names that transformers' Trainer has for them.

    The time of training is that of all parts of a resumed run, with evaluations and checkpoints.
    """
    splits = trainer.task.validation_splits
    found: dict[str, Any] = {"eval_runtime": trainer.eval_seconds}
    for split in splits:
        found[f"eval_samples{split.key_suffix}"] = len(trainer.validation[split.name].dataset)
    if trainer.settings.train.do_eval_only:
        return found
    seconds, steps = trainer.progress.train_seconds, trainer.progress.step
    return found | {
        "train_runtime": seconds,
        "train_samples": trainer.updates.rows,
        "train_samples_per_second": trainer.updates.samples(steps) / seconds,
        "train_steps_per_second": steps / seconds,
    }


def tracker_settings(settings: Settings[Any, Any]) -> dict[str, Any]:
    """The settings as trackers take them: they refuse lists."""
    return {
        name: value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in settings.flat().items()
    }
