"""What a run says of itself on a page: what it is about to do, and what has come of it."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import hf_graphattn as ga
from finetune.data.wording import listed
from finetune.engine.display import duration
from finetune.engine.predictions import constant, evaluated, only_answer
from finetune.engine.results import RESULTS, machine_name, read_json
from finetune.engine.trainer import Trainer
from finetune.errors import Refused
from finetune.plurals import many
from finetune.settings import recipes
from finetune.settings.training import EACH_EPOCH
from finetune.settings.variants import NO_VARIANT
from hf_graphattn.model.adapters import is_adapted
from hf_graphattn.model.filters import read_config
from hf_graphattn.model.parallel import own_class

WIDTH, LABEL = 100, 14
SCRIPTS = Path(__file__).parents[1]
WHAT_IS_TRAINED = {"none": "all", "lora": "by LoRA", "filters": "filters and head"}
Row = tuple[str, str]


def opening(trainer: Trainer, family: str) -> str:
    """What is about to be done.

    Where the model is spread over processes, each of them must call this.
    """
    settings = trainer.settings
    rows = [
        ("task", _task(trainer)),
        ("columns", ", ".join(f"{x} <- {name}" for x, name in trainer.task.columns.items())),
        ("labels", _labels(trainer)),
        ("model", _model(trainer)),
        *_filter(trainer),
        *(_otherwise(trainer) if settings.train.do_eval_only else _training(trainer)),
        ("device", _device(trainer)),
        ("output", str(trainer.folder)),
    ]
    doing = "Evaluation" if settings.train.do_eval_only else "Training"
    return _panel(f"{doing}: {family}.py", rows)


def closing(trainer: Trainer, family: str, results: Mapping[str, Any]) -> str:
    """What has come of it, and what can be done next."""
    is_trained = not trainer.settings.train.do_eval_only
    rows = [
        ("metric", _metric(trainer, results)),
        ("also", _others(trainer, results)),
        *_constant(trainer),
        ("time", _time(results)),
        *_moved(results),
        ("saved", f"{trainer.folder}: {', '.join(_saved(trainer))}"),
    ]
    steps = [f"  {what}:\n    {shlex.join(words)}" for what, words in _next(trainer, family)]
    return "\n".join([_panel("Trained" if is_trained else "Evaluated", rows), *steps])


def _task(trainer: Trainer) -> str:
    """The rows of each split."""
    counts = [f"{len(x.dataset)} {name}" for name, x in trainer.validation.items()]
    if not trainer.settings.train.do_eval_only:
        counts.insert(0, f"{trainer.updates.rows} {trainer.task.train_split}")
    if trainer.settings.train.do_predict:
        counts += [f"{len(x.dataset)} {name}" for name, x in trainer.test.items()]
    return f"{trainer.task.name}; rows: {', '.join(counts)}"


def _labels(trainer: Trainer) -> str:
    """How many rows of the first split that is read have each label."""
    if trainer.task.objective == "regress":
        return "numbers: regression"
    split = trainer.task.train_split
    if trainer.settings.train.do_eval_only:
        split = trainer.task.validation_splits[0].name
    counts = trainer.data_origin[split].get("labels", {})
    return listed(f"{name} {count}" for name, count in counts.items())


def _model(trainer: Trainer) -> str:
    model, (trained, total) = trainer.accelerator.unwrap_model(trainer.model), trainer.parameters
    source = getattr(trainer.settings.model, "source", None)
    name = trainer.settings.model.model_name_or_path or f"untrained {source}"
    base = model.get_base_model() if is_adapted(model) else model
    found = f"{name}: {own_class(base).__name__}, {total:,} parameters"
    if trainer.settings.train.do_eval_only:
        return found
    kind = WHAT_IS_TRAINED[trainer.settings.filter.peft]
    return f"{found}, trained: {kind}" + ("" if trained == total else f" ({trained:,})")


def _filter(trainer: Trainer) -> Iterator[Row]:
    """The variant with its settings, its scalars, and how its attention is computed."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not ga.is_patched(model):
        yield "variant", f"{NO_VARIANT}: plain attention"
        yield "attention", f"{model.config._attn_implementation}, transformers' own"
        return
    config = read_config(model)
    shown = [
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in config.to_dict().items()
        if value is not None and name not in ("trainable", "layers")
    ]
    yield "variant", f"{config.variant}: {', '.join(shown)}"
    rows = ga.report(model).rows
    filtered = [row for row in rows if row.backend]
    count = sum(scalar.numel() for scalar in trainer.first_scalars)
    learned = f"{count} learned ({', '.join(config.trainable)})" if count else "none learned"
    yield "scalars", f"{learned}, in {len(filtered)} of {len(rows)} self-attention modules"
    backends = dict.fromkeys(f"{row.backend} ({row.reason})" for row in filtered)
    yield "attention", "; ".join(backends)


def _training(trainer: Trainer) -> Iterator[Row]:
    """Length, batch, rates, evaluations, checkpoints."""
    train, updates = trainer.settings.train, trainer.updates
    length = f"{many(trainer.epochs, 'epoch')}, {many(trainer.steps, 'update')}"
    length += f", {trainer.warm_up} of them warm-up" if trainer.warm_up else ""
    if done := trainer.progress.step:
        length += f"; goes on after update {done}"
    yield "length", length
    size, processes = updates.batch_size, trainer.accelerator.num_processes
    batches = many(updates.accumulation, "batch")
    parts = f"{batches} of {size} in {many(processes, 'process')}"
    yield "batch", f"{updates.accumulation * size * processes} rows an update: {parts}"
    rate = trainer.filter_learning_rate
    rates = f"{train.learning_rate:g}" + ("" if rate is None else f", of the scalars {rate:g}")
    yield "learning rate", f"{rates}; {train.lr_scheduler_type}"
    when = f"every {train.eval_steps} updates" if train.eval_steps else "after each epoch"
    kept = "; the best weights are kept" if train.keeps_best else ""
    yield "evaluation", f"{when}, by {trainer.selection.metric.removeprefix('eval_')}{kept}"
    if (every := train.checkpointing_steps) is not None:
        when = "after each epoch" if every == EACH_EPOCH else f"every {every} updates"
        limit = train.checkpoints_total_limit
        kept = "all (--checkpoints_total_limit N keeps the newest N)"
        if limit is not None:
            kept = f"the newest {limit}{' and the best' if train.keeps_best else ''}"
        yield "checkpoints", f"{when}; kept: {kept}"


def _otherwise(trainer: Trainer) -> Iterator[Row]:
    """Which inputs the model to evaluate was trained on, where those here are others.

    A flag without a value leaves it to the task or the model: the results say what that came to.
    """
    settings, source = trainer.settings, trainer.settings.model.model_name_or_path
    before: dict[str, Any] = {}
    with suppress(Refused, OSError):  # none is there, or not ours: transformers has such a file too
        before = read_json(Path(source) / RESULTS) if source else {}
    before = before.get("settings", {}) | before
    now = settings.flat() | trainer.objective.facts()
    flags = (n for n in settings.data.INPUTS if None not in (before.get(n), now[n]))
    changed = [f"{n} {before[n]}, here {now[n]}" for n in flags if before[n] != now[n]]
    if changed:
        yield "warning", f"the model was trained with {'; '.join(changed)}"


def _device(trainer: Trainer) -> str:
    accelerator = trainer.accelerator
    precision = accelerator.mixed_precision
    numbers = "float32" if precision == "no" else f"float32 with {precision} in the forward pass"
    processes = accelerator.num_processes
    count = f"{processes} x " if processes > 1 else ""
    return f"{count}{accelerator.device.type} ({machine_name(accelerator)}), {numbers}"


def _metric(trainer: Trainer, results: Mapping[str, Any]) -> str:
    selection = trainer.selection
    direction = "more is better" if selection.greater_is_better else "less is better"
    name, best = selection.metric.removeprefix("eval_"), results.get("best")
    found = f"{name} {results[selection.metric]:.4f}"
    if best is None:
        return f"{found} ({direction})"
    found += f" after epoch {results['weights_of_epoch']}"
    if results[selection.metric] == best["value"]:
        return f"{found}, the best ({direction})"
    return f"{found}; best {best['value']:.4f} after epoch {best['epoch']} ({direction})"


def _others(trainer: Trainer, results: Mapping[str, Any]) -> str:
    """All else that was measured, in the order of the results."""
    found = [
        f"{name.removeprefix('eval_')} {value:.4f}"
        for name, value in results.items()
        if f"eval_{name.removeprefix('test_').removeprefix('eval_')}" in trainer.directions
        and name != trainer.selection.metric
        and isinstance(value, float)
    ]
    return ", ".join(found)


def _constant(trainer: Trainer) -> Iterator[Row]:
    """What makes the metrics say nothing: one answer to all rows, though their labels differ."""
    for path in evaluated(trainer.folder).values():
        answer = only_answer(path)
        if answer is not None:
            yield "warning", f"{constant(answer)} ({path.name})"


def _time(results: Mapping[str, Any]) -> str:
    evaluation = duration(results["eval_runtime"])
    if "train_runtime" not in results:
        return evaluation
    training, speed = duration(results["train_runtime"]), results["train_samples_per_second"]
    return f"{training} with all evaluations, {speed:.1f} rows/s; the last evaluation {evaluation}"


def _moved(results: Mapping[str, Any]) -> Iterator[Row]:
    least, greatest = results["filter_min_moved"], results["filter_max_moved"]
    if greatest is not None and "train_runtime" in results:
        count = results["filter_scalars"]
        yield "scalars", f"{count} moved by {least:.2g} to {greatest:.2g} from where they started"


def _saved(trainer: Trainer) -> Iterator[str]:
    """What a person may look for in the folder."""
    train, folder = trainer.settings.train, trainer.folder
    if not train.do_eval_only:
        yield "the model"
    yield RESULTS
    yield from (path.name for path in evaluated(folder).values())
    if train.do_predict:
        yield from (split.prediction_file for split in trainer.task.test_splits)


def _next(trainer: Trainer, family: str) -> Iterator[tuple[str, list[str]]]:
    """What can be done next, and the command that does it."""
    settings = trainer.settings
    model = trainer.accelerator.unwrap_model(trainer.model)
    if settings.train.do_eval_only:
        return
    if settings.variant is not None and trainer.accelerator.num_processes == 1:
        yield "did it help? The same with and without, seed by seed", compare_words(trainer, family)
    if ga.is_patched(model) and not is_adapted(model):
        yield "the scalars by layer", ["graphattn", "report", str(trainer.folder)]
        source = ["--images", "FOLDER"] if trainer.task.image_column else ["--text", "FILE"]
        if trainer.task.objective != "ctc":
            words = ["graphattn", "diagnose", "--model", str(trainer.folder), *source]
            yield "a look inside", words


def compare_words(trainer: Trainer, family: str) -> list[str]:
    """The command that compares runs like this one with plain ones."""
    settings = trainer.settings
    chosen = ("variant", "seed", "metric")  # by compare.py itself; its metric is what it compares
    defaults = {name: _as_flag(value) for name, value in settings.defaults().items()}
    flags = {name: _as_flag(value) for name, value in settings.deciding().items()}
    flags = {n: v for n, v in flags.items() if n not in chosen and v != defaults.get(n)}
    script = {name: _near(SCRIPTS / f"{name}.py") for name in ("compare", family)}
    words = ["python", script["compare"], "--script", script[family]]
    words += ["--variants", NO_VARIANT, settings.filter.variant]
    folder = trainer.folder.with_name(f"{trainer.folder.name}-compared")
    return [*words, *recipes.argv(flags), "--output_dir", str(folder)]


def _as_flag(value: Any) -> Any:
    """A setting as its flag takes it."""
    return (list(value) or ["none"]) if isinstance(value, tuple | list) else value


def _near(path: Path) -> str:
    """The path from here, where it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _panel(title: str, rows: list[Row]) -> str:
    """A title and a line for each row, the values in a column."""
    width = min(shutil.get_terminal_size((WIDTH, 0)).columns, WIDTH) - LABEL - 4
    fold = textwrap.TextWrapper(
        max(width, 2 * LABEL), break_long_words=False, break_on_hyphens=False
    )
    lines = [
        f"  {name:<{LABEL}}  {line}"
        for label, text in rows
        for name, line in zip_longest([label] * bool(text), fold.wrap(text), fillvalue="")
    ]
    return "\n".join(["", title, *lines])
