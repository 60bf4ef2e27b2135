"""The rows that a run prints: before it what is about to be done, after it what came of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import hf_graphattn as ga
from finetune.engine.results import RESULTS, constant, evaluated, machine_name, read_json
from finetune.engine.trainer import Trainer
from finetune.errors import Refused, joined
from finetune.plurals import many
from finetune.settings import recipes
from finetune.settings.variants import NO_VARIANT
from finetune.terminal import duration
from hf_graphattn.model.filters import is_adapted, read_config
from hf_graphattn.model.parallel import own_class

SCRIPTS = Path(__file__).parents[1]
WHAT_IS_TRAINED = {"none": "all", "lora": "by LoRA", "filters": "filters and head"}
Rows = Iterator[tuple[str, str]]


def opening(trainer: Trainer) -> Rows:
    """Task, columns, model, filter, steps and device.

    Where the model is spread over processes, each of them must call this.
    """
    settings, task, accelerator = trainer.settings, trainer.task, trainer.accelerator
    is_training = not settings.train.do_eval_only
    counts = [f"{trainer.updates.rows} {task.train_split}"] if is_training else []
    counts += [f"{len(x.dataset)} {name}" for name, x in trainer.validation.items()]
    yield "task", f"{task.name}; rows: {', '.join(counts)}"
    yield "columns", ", ".join(f"{use} <- {name}" for use, name in task.columns.items())
    yield "labels", _labels(trainer)
    yield "model", _model(trainer)
    yield "filter", _filter(trainer)
    yield from _steps(trainer) if is_training else _other_inputs(trainer)
    processes, precision = accelerator.num_processes, accelerator.mixed_precision
    number = "float32" if precision == "no" else f"float32 with {precision} in the forward pass"
    device = f"{accelerator.device.type} ({machine_name(accelerator)}), {number}"
    yield "device", f"{processes} x {device}" if processes > 1 else device
    yield "output", str(trainer.folder)


def closing(trainer: Trainer, results: Mapping[str, Any]) -> Rows:
    """Metrics, time, how far the scalars moved, and where everything is."""
    selection, best, train = trainer.selection, results.get("best"), trainer.settings.train
    direction = "more is better" if selection.greater_is_better else "less is better"
    value = results[selection.metric]
    metric = f"{selection.metric.removeprefix('eval_')} {value:.4f} ({direction})"
    if best is not None:
        metric += f" after epoch {results['weights_of_epoch']}"
        if value != best["value"]:
            metric += f"; the best was {best['value']:.4f} after epoch {best['epoch']}"
    yield "metric", metric
    files = evaluated(trainer.folder).values()
    for path in files:
        if (text := constant(path)) is not None:
            yield "warning", f"{text} ({path.name})"
    yield "time", duration(results.get("train_runtime", results["eval_runtime"]))
    if (most := results["filter_max_moved"]) is not None and best is not None:
        least, count = results["filter_min_moved"], results["filter_scalars"]
        yield "scalars", f"{count} moved by {least:.2g} to {most:.2g} from where they started"
    saved = [RESULTS, *(path.name for path in files)]
    if not train.do_eval_only:
        saved.insert(0, "the model")
    if train.do_predict:
        saved += [split.prediction_file for split in trainer.task.test_splits]
    yield "saved", f"{trainer.folder}: {', '.join(saved)}"


def next_commands(trainer: Trainer) -> Iterator[list[str]]:
    """The commands that compare the filter with plain attention, and look into it."""
    settings, folder = trainer.settings, str(trainer.folder)
    model = trainer.accelerator.unwrap_model(trainer.model)
    if settings.train.do_eval_only:
        return
    if settings.variant is not None and trainer.accelerator.num_processes == 1:
        yield compare_command(trainer)
    if ga.is_patched(model) and not is_adapted(model):
        yield ["graphattn", "report", folder]
        if trainer.task.objective != "ctc":
            source = ["--images", "FOLDER"] if trainer.task.image_column else ["--text", "FILE"]
            yield ["graphattn", "diagnose", "--model", folder, *source]


def compare_command(trainer: Trainer) -> list[str]:
    """The command that compares runs like this one with plain ones, seed by seed."""
    settings, folder = trainer.settings, trainer.folder
    chosen = ("variant", "seed", "metric")  # by compare.py itself; its metric is what it compares
    defaults, values = (
        {n: list(x) or ["none"] if isinstance(x, tuple | list) else x for n, x in each.items()}
        for each in (settings.defaults(), settings.deciding())
    )
    flags = {n: x for n, x in values.items() if n not in chosen and x != defaults.get(n)}
    names = (f"{name}.py" for name in ("compare", trainer.task.family))
    compare, script = (os.path.relpath(SCRIPTS / name) for name in names)
    variants = ["--variants", NO_VARIANT, settings.filter.variant]
    output = ["--output_dir", str(folder.with_name(f"{folder.name}-compared"))]
    return ["python", compare, "--script", script, *variants, *recipes.argv(flags), *output]


def _labels(trainer: Trainer) -> str:
    """How many rows of the first split that is read have each label."""
    task = trainer.task
    if task.objective == "regress":
        return "numbers: regression"
    is_training = not trainer.settings.train.do_eval_only
    split = task.train_split if is_training else task.validation_splits[0].name
    counts = trainer.data_origin[split].get("labels", {})
    return joined(f"{name} {count}" for name, count in counts.items())


def _model(trainer: Trainer) -> str:
    model, (trained, total) = trainer.accelerator.unwrap_model(trainer.model), trainer.parameters
    settings = trainer.settings
    name = settings.model.model_name_or_path or f"untrained {settings.model.source}"
    base = model.get_base_model() if is_adapted(model) else model
    text = f"{name}: {own_class(base).__name__}, {total:,} parameters"
    if settings.train.do_eval_only:
        return text
    count = "" if trained == total else f" ({trained:,})"
    return f"{text}, trained: {WHAT_IS_TRAINED[settings.filter.peft]}{count}"


def _filter(trainer: Trainer) -> str:
    """The variant with its settings, and how many scalars it learns."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not ga.is_patched(model):
        return f"{NO_VARIANT}: plain attention"
    modules = ga.report(model).rows
    count = sum(scalar.numel() for scalar in trainer.first_scalars) or "no"
    where = f"in {sum(bool(x.backend) for x in modules)} of {len(modules)} self-attention modules"
    return f"{read_config(model)}; {count} scalars learned {where}"


def _steps(trainer: Trainer) -> Rows:
    """How long, of which batches, and at which rates."""
    train, updates = trainer.settings.train, trainer.updates
    batches = many(updates.accumulation * trainer.accelerator.num_processes, "batch")
    length = f"{many(trainer.epochs, 'epoch')}, {many(trainer.steps, 'update')}"
    text = f"{length} of {batches} of {updates.batch_size} rows"
    text += f", {trainer.warm_up} of them warm-up" if trainer.warm_up else ""
    done = trainer.progress.step
    yield "steps", f"{text}; goes on after update {done}" if done else text
    rate = trainer.filter_learning_rate
    rates = f"{train.learning_rate:g}" + ("" if rate is None else f", of the scalars {rate:g}")
    yield "learning rate", f"{rates}; {train.lr_scheduler_type}"


def _other_inputs(trainer: Trainer) -> Rows:
    """The inputs that the model to evaluate was trained on, where those here are others.

    A flag without a value leaves it to the task or the model, and the results have its value.
    """
    settings, source = trainer.settings, trainer.settings.model.model_name_or_path
    before: dict[str, Any] = {}
    with suppress(Refused, OSError):  # none is there, or not ours: transformers has such a file too
        before = read_json(Path(source or "") / RESULTS)
    before = before.get("settings", {}) | before
    now = settings.flat() | trainer.objective.facts()
    for name in settings.data.INPUTS:
        if None not in (before.get(name), now[name]) and before[name] != now[name]:
            yield "warning", f"the model was trained with {name} {before[name]}, here {now[name]}"
