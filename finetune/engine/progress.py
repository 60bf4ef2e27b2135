"""What a run has done so far, which epoch was best, and the log of its steps."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.engine import storage
from finetune.errors import refusal
from finetune.settings.training import TrainArguments

WARM_UP_STEPS = 3  # not timed: the first steps allocate memory and choose kernels
LOG = "train_log.jsonl"


@dataclass
class Progress:
    """What training has done and measured so far. A step is one update of the weights."""

    step: int = 0
    epoch: int = 0  # finished and evaluated ones
    batches: int = 0  # of the current epoch, that each process has trained on
    loss_sum: float = 0.0  # of the current epoch, over all processes
    weight_sum: float = 0.0  # examples or tokens that it sums over
    train_loss: float = math.nan  # mean over the examples or tokens of the last epoch
    best_value: float | None = None
    best_epoch: int | None = None
    best_name: str | None = None  # the checkpoint with the best weights, if they are kept
    epochs_without_better: int = 0
    step_seconds: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)  # after each step
    history: list[dict[str, float]] = field(default_factory=list)

    def seconds_per_step(self) -> float | None:
        """Median time of a step, without the first few; None if there were no others."""
        timed = self.step_seconds[WARM_UP_STEPS:] or self.step_seconds
        return statistics.median(timed) if timed else None


@dataclass(frozen=True)
class Selection:
    """Which epoch is best, and after how many worse ones training stops.

    Attributes:
        metric: the evaluation's key, ``eval_<metric>``.
        greater_is_better: which way it is better.
        patience: so many epochs in a row without a better one end the training; None: never.
    """

    metric: str
    greater_is_better: bool
    patience: int | None

    @classmethod
    def of(
        cls, train: TrainArguments, main_metric: str, directions: Mapping[str, bool | None]
    ) -> Selection:
        """As the flags ask; by default of the task's main metric.

        Args:
            train: the flags.
            main_metric: the task's.
            directions: of each key of an evaluation whether greater is better; None is not known.

        Raises ``ValueError`` for a metric that is not measured, or whose direction nobody knows.
        """
        name = (train.metric_for_best_model or main_metric).removeprefix("eval_")
        metric = f"eval_{name}"
        if metric not in directions:
            allowed = ", ".join(key.removeprefix("eval_") for key in directions)
            raise refusal("metric_for_best_model", name, allowed, "Choose one of these.")
        greater = train.greater_is_better
        if greater is None:
            greater = directions[metric]
        if greater is None:
            raise refusal(
                "metric_for_best_model",
                name,
                "with --greater_is_better, since the metric's module does not say what is better",
                "Give --greater_is_better true or false.",
            )
        return cls(metric, greater, train.early_stopping_patience)

    def update(self, progress: Progress, metrics: Mapping[str, float]) -> bool:
        """Take the epoch's metrics into the progress; whether it is the best so far."""
        value = metrics[self.metric]
        best = progress.best_value
        sign = 1 if self.greater_is_better else -1
        # A first epoch counts whatever it is; after it NaN is never better.
        is_best = best is None or sign * value > sign * best or math.isnan(best) > math.isnan(value)
        if is_best:
            progress.best_value, progress.best_epoch = value, progress.epoch
            progress.epochs_without_better = 0
        else:
            progress.epochs_without_better += 1
        return is_best

    def ends(self, progress: Progress) -> bool:
        """Whether patience is used up."""
        return self.patience is not None and progress.epochs_without_better >= self.patience


class StepLog:
    """A file with a JSON line a step and an epoch, kept by the main process."""

    def __init__(self, folder: Path, is_main_process: bool) -> None:
        self.path = folder / LOG if is_main_process else None

    def start(self, step: int) -> None:
        """Keep the lines up to this step: what follows is done again. 0 starts anew."""
        if self.path is None:
            return
        lines = []
        if step and self.path.is_file():
            lines = [x for x in self.path.read_text("utf-8").splitlines() if _step(x) <= step]
        storage.write_text(self.path, "".join(f"{line}\n" for line in lines))

    def write(self, values: Mapping[str, Any]) -> None:
        """One line more; NaN and infinity become null."""
        if self.path is None:
            return
        plain = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        with (
            storage.clear_errors(self.path, "the checkpoints are whole"),
            self.path.open("a", encoding="utf-8") as stream,
        ):
            stream.write(json.dumps(plain) + "\n")


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):  # cut short when the run was killed
        return math.inf
