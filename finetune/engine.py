"""The loop that all scripts share: accumulate, clip, schedule, evaluate, measure, stop on NaN."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import DataLoaderConfiguration, tqdm
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import get_scheduler

from finetune.arguments import Settings, TrainArguments, refusal
from finetune.data import Loaders
from finetune.models import parameter_groups
from tasks import Task

logger = get_logger(__name__)
WARM_UP_STEPS = 3  # not timed: the first steps allocate memory and choose kernels


class DivergedError(RuntimeError):
    """The training loss became NaN or infinite."""


@dataclass
class Progress:
    """What training has measured so far. A step is one update of the weights."""

    step: int = 0
    train_loss: float = math.nan  # mean over the examples of the epoch
    step_seconds: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)  # after each step
    history: list[dict[str, float]] = field(default_factory=list)

    def seconds_per_step(self) -> float | None:
        """Median time of a step, without the first few; None if there were no others."""
        timed = self.step_seconds[WARM_UP_STEPS:] or self.step_seconds
        return statistics.median(timed) if timed else None


def make_accelerator(train: TrainArguments) -> Accelerator:
    """The accelerator of a run: seeded order of rows, a schedule that counts updates."""
    accelerator = Accelerator(
        mixed_precision=train.mixed_precision,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        log_with=train.report_to if train.with_tracking else None,
        project_dir=train.output_dir,
        # By default accelerate steps a schedule once for each process and update.
        step_scheduler_with_optimizer=False,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=train.seed),
    )
    _check_launch(accelerator)
    return accelerator


def _check_launch(accelerator: Accelerator) -> None:
    """Refuse the lone process that `accelerate launch --cpu --num_processes 2` starts."""
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    # The launcher sets the address where several processes meet, and no rank for any of them.
    meets_others = "MASTER_ADDR" in os.environ and "RANK" not in os.environ
    if on_cpu and meets_others and accelerator.num_processes == 1:
        raise refusal(
            "num_processes",
            "more than 1",
            "1, since `accelerate launch --cpu` starts a single process without MPI",
            "Start several with `ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 SCRIPT ...`.",
        )


def plan(batches: int, train: TrainArguments) -> tuple[int, int, int]:
    """Number of epochs, updates and warm-up updates for so many batches an epoch and process.

    The last update of an epoch may hold fewer than ``gradient_accumulation_steps`` batches.
    """
    an_epoch = math.ceil(batches / train.gradient_accumulation_steps)
    steps = train.max_train_steps or train.num_train_epochs * an_epoch
    warm_up = train.num_warmup_steps or math.ceil(train.warmup_ratio * steps)
    return math.ceil(steps / an_epoch), steps, warm_up


class Trainer:
    """One model, its data and its optimizer, prepared by accelerate."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        loaders: Loaders,
        task: Task,
        label_order: Sequence[int],
        settings: Settings,
    ) -> None:
        self.accelerator, self.task, self.settings = accelerator, task, settings
        self.label_order = list(label_order)
        train = settings.train
        groups = parameter_groups(
            model, train.learning_rate, train.weight_decay, settings.filter.filter_learning_rate
        )
        optimizer = torch.optim.AdamW(groups)
        self.model, self.optimizer, self.train_loader = accelerator.prepare(
            model, optimizer, loaders.train
        )
        self.validation = {n: accelerator.prepare(x) for n, x in loaders.validation.items()}
        self.test = {n: accelerator.prepare(x) for n, x in loaders.test.items()}
        # The prepared loader's length is that of one process, as the schedule needs it.
        self.epochs, self.steps, warm_up = plan(len(self.train_loader), train)
        schedule = get_scheduler(train.lr_scheduler_type, optimizer, warm_up, self.steps)
        self.schedule = accelerator.prepare(schedule)
        self.progress = Progress()

    def train(self) -> Progress:
        """Train and evaluate each epoch.

        Raises ``DivergedError`` with the step if the loss becomes NaN or infinite.
        """
        bar = tqdm(total=self.steps, desc="Training", unit="step")
        for epoch in range(self.epochs):
            self._train_epoch(epoch, bar)
            metrics = self.evaluate()
            self.progress.history.append(self._state(epoch + 1) | metrics)
            self._log({"train_loss": self.progress.train_loss} | metrics)
            shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            logger.info(f"epoch {epoch + 1} of {self.epochs}: {shown}")
        bar.close()
        return self.progress

    def evaluate(self) -> dict[str, float]:
        """Loss and the task's metrics on every validation split, as ``eval_<metric><suffix>``."""
        found = {}
        for split in self.task.validation_splits:
            logits, labels = self.outputs(self.validation[split.name], f"Evaluating {split.name}")
            for name, value in score(self.task, logits, labels).items():
                found[f"eval_{name}{split.key_suffix}"] = value
        return found

    def outputs(self, loader: DataLoader, description: str) -> tuple[Tensor, Tensor | None]:
        """Logits (examples, labels) in float32, and labels if the split has them, on the CPU.

        Both are in the task's numbering of labels, of all processes, without the examples that
        were repeated to fill the last batch.
        """
        self.model.eval()
        logits, labels = [], []
        for batch in tqdm(loader, desc=description, leave=False):
            references = batch.pop("labels", None)
            with torch.no_grad():
                outputs = self.model(**batch)
            gathered = self.accelerator.gather_for_metrics(outputs.logits.float())
            logits.append(gathered.cpu())
            if references is not None:
                labels.append(self.accelerator.gather_for_metrics(references).cpu())
        all_labels = torch.cat(labels) if labels else None
        return self._in_task_order(torch.cat(logits), all_labels)

    def _in_task_order(self, logits: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if not self.label_order:
            return logits, labels
        order = torch.tensor(self.label_order)
        return logits[:, order], None if labels is None else torch.argsort(order)[labels]

    def _train_epoch(self, epoch: int, bar: Any) -> None:
        self.model.train()
        # Without it every epoch would have the first one's order.
        self.train_loader.set_epoch(epoch)
        window, epoch_total = self._zeros(), self._zeros()
        start = time.perf_counter()
        for batch in self.train_loader:
            with self.accelerator.accumulate(self.model):
                loss = self.model(**batch).loss
                examples = len(batch["labels"])
                window = window + torch.stack(
                    [loss.detach().double() * examples, window.new_tensor(examples)]
                )
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    update_total = self._checked(window)
                    epoch_total += update_total
                    self._clip()
                self.optimizer.step()
                if self.accelerator.sync_gradients and not self.optimizer.step_was_skipped:
                    self.schedule.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients:
                mean_loss = float(update_total[0] / update_total[1])
                self._end_step(mean_loss, time.perf_counter() - start, bar)
                window, start = self._zeros(), time.perf_counter()
                if self.progress.step >= self.steps:
                    break
        self.progress.train_loss = float(epoch_total[0] / epoch_total[1])

    def _state(self, epochs: int) -> dict[str, float]:
        rate = self.progress.learning_rates[-1]
        return {"epoch": epochs, "step": self.progress.step, "learning_rate": rate}

    def _zeros(self) -> Tensor:
        return torch.zeros(2, device=self.accelerator.device, dtype=torch.float64)

    def _checked(self, window: Tensor) -> Tensor:
        """Summed loss and examples of an update over all processes, if the loss is finite."""
        total = self.accelerator.reduce(window, reduction="sum")
        # Every process sees the same sum, so all of them stop, and none waits for the others.
        if not bool(torch.isfinite(total[0])):
            raise DivergedError(
                f"The training loss is {float(total[0])} at step {self.progress.step + 1}. Lower "
                "learning_rate or filter_learning_rate, or lengthen the warm-up."
            )
        return total

    def _clip(self) -> None:
        limit = self.settings.train.max_grad_norm
        if limit > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), limit)

    def _end_step(self, loss: float, seconds: float, bar: Any) -> None:
        progress = self.progress
        progress.step += 1
        progress.step_seconds.append(seconds)
        progress.learning_rates.append(self.schedule.get_last_lr()[0])
        bar.update()
        rate = progress.learning_rates[-1]
        bar.set_postfix(loss=f"{loss:.4f}", lr=f"{rate:.2e}", s_step=f"{seconds:.3f}")
        self._log({"loss": loss, "learning_rate": rate})

    def _log(self, values: dict[str, float]) -> None:
        if self.settings.train.with_tracking:
            self.accelerator.log(values, step=self.progress.step)


def score(task: Task, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """``loss``, the mean over the examples, and the task's metrics."""
    if task.objective == "regress":
        loss = functional.mse_loss(logits.squeeze(-1), labels.float())
    else:
        loss = functional.cross_entropy(logits, labels)
    return {"loss": float(loss)} | task.metrics(predictions(task, logits), labels.numpy())


def predictions(task: Task, logits: Tensor) -> np.ndarray:
    """The predicted label's number, or the score, of each example; of shape (examples,)."""
    if task.objective == "regress":
        return logits.squeeze(-1).numpy()
    # argmax calls NaN the largest: say so instead of predicting it.
    if not bool(torch.isfinite(logits).all()):
        raise DivergedError("The model's logits are NaN or infinite. Lower learning_rate.")
    return logits.argmax(-1).numpy()
