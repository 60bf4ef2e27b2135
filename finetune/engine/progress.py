"""What a run has done so far, which evaluation was best, and the log of its steps."""

from __future__ import annotations

import json
import logging
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune import terminal
from finetune.engine import storage
from finetune.engine.results import finite
from finetune.errors import refusal
from finetune.settings.training import TrainArguments

logger = logging.getLogger(__name__)
WARM_UP_STEPS = 3  # not timed: the first steps allocate memory and choose kernels
LOG = "train_log.jsonl"
EVERY = 60.0  # seconds between two lines of the log, where no bar is shown
Evaluation = dict[str, float]  # epoch, step, learning rate, and what was measured


@dataclass
class Progress:
    """What training has done and measured so far. A step is one update of the weights."""

    step: int = 0
    epoch: int = 0  # finished ones
    batches: int = 0  # of the current epoch, that each process has trained on
    loss_sum: float = 0.0  # since the last evaluation, over all processes
    weight_sum: float = 0.0  # examples or tokens that it sums over
    train_loss: float = math.nan  # mean over those between the last two evaluations
    best_name: str | None = None  # the checkpoint with the best weights, if they are kept
    train_seconds: float = 0.0  # of all parts of a resumed run, with evaluations and checkpoints
    step_seconds: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)  # after each step
    history: list[Evaluation] = field(default_factory=list)

    def take(self, metrics: Mapping[str, float]) -> None:
        """Take an evaluation into the history; the sums of the training loss begin anew.

        Its epoch is the one that was trained in last, counted from 1.
        """
        self.train_loss = self.loss_sum / self.weight_sum
        self.loss_sum, self.weight_sum = 0.0, 0.0
        epoch, rate = self.epoch + (self.batches > 0), self.learning_rates[-1]
        self.history.append({"epoch": epoch, "step": self.step, "learning_rate": rate, **metrics})

    def seconds_per_step(self) -> float | None:
        """Median time of a step, without the first few; None if there were no others."""
        timed = self.step_seconds[WARM_UP_STEPS:] or self.step_seconds
        return statistics.median(timed) if timed else None


@dataclass(frozen=True)
class Selection:
    """Which evaluation is best, and after how many worse ones training stops.

    Attributes:
        metric: the evaluation's key, ``eval_<metric>``.
        greater_is_better: which way it is better.
        patience: so many in a row without a better one end the training; None: never.
    """

    metric: str
    greater_is_better: bool
    patience: int | None

    @classmethod
    def of(
        cls, train: TrainArguments, main_metric: str, directions: Mapping[str, bool | None]
    ) -> Selection:
        """The selection of the flags; by default of the task's main metric.

        Args:
            train: the flags.
            main_metric: the task's.
            directions: of each key of an evaluation whether greater is better; None is not known.

        Raises:
            ValueError: a metric that is not measured, or whose direction nobody knows.
        """
        flag, name = "metric_for_best_model", train.metric_for_best_model or main_metric
        key = f"eval_{name.removeprefix('eval_')}"
        if key not in directions:
            allowed = ", ".join(key.removeprefix("eval_") for key in directions)
            raise refusal(flag, name, allowed, "Choose one of these.")
        greater = train.greater_is_better
        if greater is None:
            greater = directions[key]
        if greater is None:
            remedy = "Give --greater_is_better true or false: the metric's module does not say it."
            raise refusal(flag, name, "with --greater_is_better", remedy)
        return cls(key, greater, train.early_stopping_patience)

    def best(self, history: list[Evaluation]) -> Evaluation:
        """The best evaluation, the first of equal ones; NaN is never better."""
        sign = 1 if self.greater_is_better else -1
        return max(history, key=lambda x: (not math.isnan(x[self.metric]), sign * x[self.metric]))

    def ends(self, history: list[Evaluation]) -> bool:
        """Whether patience is used up."""
        if self.patience is None or not history:
            return False
        return len(history) - 1 - history.index(self.best(history)) >= self.patience


class StepLog:
    """A JSON line for each step and evaluation in a file, and now and then a line of the log.

    Args:
        folder: of the file.
        is_main_process: only it writes.
        steps: of the whole run.
        every: steps between two lines of the log; None is a line a minute where no bar is shown.
    """

    def __init__(
        self, folder: Path, is_main_process: bool, steps: int, every: int | None = None
    ) -> None:
        self.path = folder / LOG if is_main_process else None
        self.steps, self.every = steps, every
        self._losses: list[float] = []  # since the last line of the log

    def start(self, step: int) -> None:
        """Keep the lines up to this step: what follows is done again. 0 starts anew."""
        self._first, self._began = step, time.monotonic()
        self._printed = self._began
        if self.path is None:
            return
        lines = []
        if step and self.path.is_file():
            lines = [x for x in self.path.read_text("utf-8").splitlines() if _step(x) <= step]
        storage.write_text(self.path, "".join(f"{line}\n" for line in lines))

    def write(self, values: Mapping[str, Any]) -> None:
        """Append a line; NaN and infinity become null."""
        if self.path is None:
            return
        with (
            storage.clear_errors(self.path, "the checkpoints are whole"),
            self.path.open("a", encoding="utf-8") as stream,
        ):
            stream.write(json.dumps(finite(values)) + "\n")

    def report(self, step: int, epoch: float, loss: float, rate: float) -> None:
        """Log the mean loss since the last line, if it is time for a line."""
        self._losses.append(loss)
        now = time.monotonic()
        is_due = terminal.BARS.disable and now - self._printed >= EVERY
        if self.every is not None:
            is_due = step % self.every == 0
        if is_due:
            left = (now - self._began) / (step - self._first) * (self.steps - step)
            logger.info(
                f"step {step} of {self.steps}, epoch {epoch:.2f}: loss "
                f"{statistics.fmean(self._losses):.4f}, learning rate {rate:.2e}, "
                f"{terminal.duration(left)} left"
            )
            self._printed, self._losses = now, []


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):  # cut short when the run was killed
        return math.inf
