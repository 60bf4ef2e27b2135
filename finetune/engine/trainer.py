"""The loop that all scripts share: accumulate, clip, schedule, evaluate, save, stop."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import skip_first_batches
from accelerate.utils import send_to_device
from torch import Tensor, nn
from transformers import get_scheduler

from finetune import terminal
from finetune.data.loaders import Loaders
from finetune.engine import checkpoints, results
from finetune.engine.fingerprint import fingerprint
from finetune.engine.progress import Progress, Selection, StepLog
from finetune.errors import DivergedError
from finetune.models import tuning
from finetune.models.loading import trained_scalars
from finetune.objectives.base import Measured, Objective
from finetune.settings.schema import Run
from finetune.settings.training import EACH_EPOCH, TrainArguments
from tasks import Split

logger = logging.getLogger(__name__)


class Trainer:
    """One model, its data and its optimizer, prepared by accelerate."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        loaders: Loaders,
        objective: Objective,
        settings: Run[Any, Any],
    ) -> None:
        train, task = settings.train, objective.task
        self.accelerator, self.task, self.settings = accelerator, task, settings
        self.objective, self.folder = objective, Path(train.output_dir)
        self.data_origin, self.example = loaders.origin, loaders.example
        self._data = {name: x.dataset for name, x in loaders.validation.items()}
        self._data |= {"training": loaders.train.dataset}
        self.first_scalars, self.parameters = trained_scalars(model), tuning.counted(model)
        optimizer = tuning.optimizer(model, settings)
        self.model, self.optimizer, loader = accelerator.prepare(model, optimizer, loaders.train)
        self.updates = Updates(loader, accelerator, loaders.train_rows, train)
        self.validation = {n: accelerator.prepare(x) for n, x in loaders.validation.items()}
        self.test = {n: accelerator.prepare(x) for n, x in loaders.test.items()}
        self.epochs, self.steps, self.warm_up = plan(self.updates.batches, train)
        kind, options = train.lr_scheduler_type, train.schedule_settings
        schedule = get_scheduler(kind, optimizer, self.warm_up, self.steps, options)
        self.schedule = accelerator.prepare(schedule)
        self.directions = {
            f"eval_{metric.name}{split.key_suffix}": metric.greater_is_better
            for split in task.validation_splits
            for metric in objective.metrics
        }
        self.selection = Selection.of(train, task.main_metric, self.directions)
        self.progress = Progress()
        is_main = accelerator.is_main_process
        self._log = StepLog(self.folder, is_main, self.steps, train.logging_steps)
        self.eval_seconds = 0.0  # of the last evaluation; 0 before the first

    @property
    def filter_learning_rate(self) -> float | None:
        """The highest one of the filters' scalars; None if they learn none."""
        return self.schedule.scheduler.base_lrs[-1] if self.first_scalars else None

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a run that continues this one must have in common with it."""
        config = self.accelerator.unwrap_model(self.model).config
        return fingerprint(self.settings, config, self._data, self.accelerator)

    def resume(self, name: str) -> None:
        """Continue from a checkpoint, as if the run had never stopped.

        Raises:
            CheckpointError: there is none, it is damaged, or of another run.
        """
        path = checkpoints.find(name, self.folder)
        defaults = self.settings.defaults()
        self.progress = Progress(
            **checkpoints.load(self.accelerator, path, self.fingerprint, defaults)
        )
        if (best := self.progress.best_name) is not None:  # it is loaded at the end
            checkpoints.find(str(self.folder / best), self.folder)
        logger.info(f"resumed from {path}: step {self.progress.step} of {self.steps}")

    def train(self) -> Progress:
        """Train and evaluate until the last update or the end of patience; then the best weights.

        Raises:
            DivergedError: the loss becomes NaN or infinite; the message names the step.
        """
        progress = self.progress
        self._log.start(progress.step)
        self.model.train()
        start = time.perf_counter()
        self._began = start - progress.train_seconds
        with terminal.bar("Training", self.steps, progress.step) as advance:
            for window in self._windows():
                loss, tokens = self._update(window)
                self._end_step(loss, tokens, time.perf_counter() - start)
                advance(f"Training, loss {loss:.4f}")
                self._evaluate_and_save()
                start = time.perf_counter()
                progress.train_seconds = start - self._began
        self._load_best()
        return progress

    def evaluate(self) -> dict[str, float]:
        """The objective's metrics on the validation splits, as ``eval_<metric><suffix>``."""
        metrics: dict[str, float] = {}
        start = time.perf_counter()
        for split in self.task.validation_splits:
            measured = self._measure(split, self.validation)
            metrics |= measured.named("eval", split.key_suffix)
            if measured.references is not None and self.accelerator.is_main_process:
                pairs = measured.predictions, measured.references
                results.write_evaluated(split, *pairs, self.folder, self.task.label_names)
        self.eval_seconds = time.perf_counter() - start
        return metrics

    def predict(self) -> dict[str, float]:
        """Write each test split's answers; ``test_<metric><suffix>`` where its labels are known."""
        metrics: dict[str, float] = {}
        for split in self.task.test_splits:
            measured = self._measure(split, self.test)
            metrics |= measured.named("test", split.key_suffix)
            answers = measured.predictions if measured.answers is None else measured.answers
            if answers is not None and self.accelerator.is_main_process:
                results.write_answers(self.task, split, answers, self.folder)
        return metrics

    def _measure(self, split: Split, loaders: Mapping[str, Any]) -> Measured:
        return self.objective.measure(self.model, loaders[split.name], split, self.accelerator)

    def _windows(self) -> Iterator[list[Portion]]:
        """The batches of each update that is left."""
        progress = self.progress

        def is_over() -> bool:
            return progress.epoch >= self.epochs or self.selection.ends(progress.history)

        while not is_over():
            for window in self.updates.read(progress.epoch, progress.batches):
                yield window
                if is_over():
                    break

    def _update(self, window: list[Portion]) -> tuple[float, int]:
        """One update; returns its mean loss and the number of its tokens, of all processes.

        The gradient is that of the mean over all units of the window's batches on all processes,
        however they are spread.
        """
        accelerator = self.accelerator
        weights = [self.objective.weight(part.batch) * part.counts for part in window]
        counts = (self.objective.tokens(part.batch) * part.counts for part in window)
        total, tokens = self._summed(sum(weights), sum(counts))
        # Undoes the means that accelerate takes over batches and over processes.
        scale = self.updates.accumulation * accelerator.num_processes / total
        summed = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        for part, weight in zip(window, weights, strict=True):
            is_last = part is window[-1]
            accelerator.sync_gradients = is_last
            with nullcontext() if is_last else accelerator.no_sync(self.model):
                batch = send_to_device(part.batch, accelerator.device)
                loss = self.objective.loss(self.model, batch)
                accelerator.backward(loss * (weight * scale))
            summed += loss.detach().double() * weight
        # Every process sees the same sum, so all of them stop, and none waits for the others.
        (loss_sum,) = self._summed(float(summed))
        if not math.isfinite(loss_sum):
            raise DivergedError(
                f"The training loss is {loss_sum} at step {self.progress.step + 1}. Lower "
                "learning_rate or filter_learning_rate, or lengthen the warm-up."
            )
        if (norm := self.settings.train.max_grad_norm) > 0:
            accelerator.clip_grad_norm_(self.model.parameters(), norm)
        self.optimizer.step()
        if not self.optimizer.step_was_skipped:
            self.schedule.step()
        self.optimizer.zero_grad()
        self.progress.loss_sum += loss_sum
        self.progress.weight_sum += total
        self.progress.batches += len(window)
        return loss_sum / total, int(tokens)

    def _evaluate_and_save(self) -> None:
        """What is due after an update."""
        progress, train = self.progress, self.settings.train
        is_best = False
        if self._is_due(train.eval_steps or EACH_EPOCH) or progress.step == self.steps:
            metrics = self.evaluate()
            self.model.train()
            progress.take(metrics)
            last = progress.history[-1]
            is_best = self.selection.best(progress.history) is last
            self._record({"epoch": last["epoch"], "train_loss": progress.train_loss} | metrics)
            values = ", ".join(f"{x} {metrics[x]:.4f}" for x in self.directions if x in metrics)
            logger.info(f"epoch {last['epoch']} of {self.epochs}, step {progress.step}: {values}")
        if is_best and train.keeps_best:
            progress.best_name = checkpoints.name_of(progress.step)
            self._save()
        elif self._is_due(train.checkpointing_steps):
            self._save()

    def _is_due(self, every: int | str | None) -> bool:
        """Whether it is time for what is done every so many updates, or at each epoch's end."""
        if every is None or every == EACH_EPOCH:
            return every == EACH_EPOCH and self.progress.batches == 0
        return self.progress.step % int(every) == 0

    def _save(self) -> None:
        train = self.settings.train
        path = self.folder / checkpoints.name_of(self.progress.step)
        self.progress.train_seconds = time.perf_counter() - self._began
        checkpoints.save(self.accelerator, path, asdict(self.progress), self.fingerprint)
        only_best = 1 if train.checkpointing_steps is None else None
        limit = train.checkpoints_total_limit or only_best
        if self.accelerator.is_main_process:
            checkpoints.rotate(self.folder, limit, path)
        self.accelerator.wait_for_everyone()

    def _load_best(self) -> None:
        """The best evaluation's weights, if they are kept and were not the last one's."""
        best, is_evaluated = self.progress.best_name, self.eval_seconds > 0
        if best is not None and best != checkpoints.name_of(self.progress.step):
            path = checkpoints.find(str(self.folder / best), self.folder)
            checkpoints.restore(self.accelerator, path)
            logger.info(f"best evaluation: {best}; its weights are tested and saved")
            is_evaluated = False
        if not is_evaluated:
            self.evaluate()  # so that the predictions are of the weights that are saved

    def _summed(self, *values: float) -> list[float]:
        """Each value summed over all processes, in float64."""
        if self.accelerator.num_processes == 1:
            return list(values)
        tensor = torch.tensor(values, device=self.accelerator.device, dtype=torch.float64)
        return self.accelerator.reduce(tensor, reduction="sum").tolist()

    def _end_step(self, loss: float, tokens: int, seconds: float) -> None:
        progress = self.progress
        progress.step += 1
        if progress.batches == self.updates.batches or progress.step == self.steps:
            progress.epoch, progress.batches = progress.epoch + 1, 0
        progress.step_seconds.append(seconds)
        progress.learning_rates.append(self.schedule.get_last_lr()[0])
        rate, speed = progress.learning_rates[-1], tokens / seconds
        epoch = progress.epoch + progress.batches / self.updates.batches
        self._log.report(progress.step, epoch, loss, rate)
        self._record({"loss": loss, "learning_rate": rate, "tokens": tokens, "tokens_per_s": speed})

    def _record(self, values: dict[str, float]) -> None:
        self._log.write({"step": self.progress.step} | values)
        if self.settings.train.tracker is not None:
            self.accelerator.log(values, step=self.progress.step)


@dataclass(frozen=True)
class Portion:
    """A process's batch, on the CPU; ``counts`` is false where all its rows are another's."""

    batch: dict[str, Tensor]
    counts: bool


class Updates:
    """The batches of each update of an epoch, in the epoch's own order.

    Args:
        loader: as accelerate prepares it.
        accelerator: of the run.
        rows: of an epoch.
        train: the sizes of a batch and of an update.
    """

    def __init__(
        self, loader: Any, accelerator: Accelerator, rows: int, train: TrainArguments
    ) -> None:
        self.loader, self.accelerator, self.rows = loader, accelerator, rows
        # What is read of a batch before the model has it would wait for the device.
        self.loader.device = None
        self.batch_size = train.per_device_train_batch_size
        self.accumulation = train.gradient_accumulation_steps
        # The prepared loader's length is that of one process, as the schedule needs it.
        self.batches = len(loader)

    def read(self, epoch: int, done: int) -> Iterator[list[Portion]]:
        """What is left of the epoch after so many batches, an update at a time."""
        if done >= self.batches:
            return
        # Without it every epoch would have the first one's order.
        self.loader.set_epoch(epoch)
        batches = iter(skip_first_batches(self.loader, done) if done else self.loader)
        # To begin reading draws from torch's random state, which a resumed run must not notice.
        with torch.random.fork_rng(devices=[]):
            first = next(batches)
        numbered = enumerate(itertools.chain([first], batches), start=done)
        while window := list(itertools.islice(numbered, self.accumulation)):
            yield [self._portion(number, batch) for number, batch in window]

    def samples(self, steps: int) -> int:
        """How many rows so many updates train on, over all processes."""
        epochs, left = divmod(steps, math.ceil(self.batches / self.accumulation))
        batches = left * self.accumulation * self.accelerator.num_processes
        return epochs * self.rows + min(batches * self.batch_size, self.rows)

    def _portion(self, number: int, batch: dict[str, Tensor]) -> Portion:
        """The batch without the rows that were repeated to give each process as many."""
        accelerator = self.accelerator
        before = number * accelerator.num_processes + accelerator.process_index
        left = max(self.rows - before * self.batch_size, 0)
        # Where there is none, one row keeps the processes in step, with the weight 0.
        return Portion({name: value[: max(left, 1)] for name, value in batch.items()}, left > 0)


def plan(batches: int, train: TrainArguments) -> tuple[int, int, int]:
    """Number of epochs, updates and warm-up updates for so many batches an epoch and process.

    The last update of an epoch may hold fewer than ``gradient_accumulation_steps`` batches.
    """
    an_epoch = math.ceil(batches / train.gradient_accumulation_steps)
    steps = train.max_train_steps or train.num_train_epochs * an_epoch
    warm_up = train.num_warmup_steps or math.ceil(train.warmup_ratio * steps)
    return math.ceil(steps / an_epoch), steps, warm_up
