"""How far training is: a bar on a terminal, and a line of the log now and then."""

from __future__ import annotations

import time
from statistics import fmean

from accelerate.logging import get_logger

from finetune import terminal
from finetune.engine.progress import Progress

logger = get_logger(__name__)
EVERY = 60.0  # seconds between two lines, where no bar is shown and nothing else was asked for


class Display:
    """What is shown of each update.

    Args:
        steps: the updates of the whole run.
        batches: those of an epoch, of one process.
        every: updates between two lines; None is a line a minute where no bar is shown.
    """

    def __init__(self, steps: int, batches: int, every: int | None) -> None:
        self.steps, self.batches, self.every = steps, batches, every
        self._losses: list[float] = []  # since the last line

    def start(self, done: int) -> None:
        """Training begins after so many updates."""
        self._first, self._began = done, time.monotonic()
        self._told = self._began
        self._bar = terminal.tqdm(total=self.steps, initial=done, desc="Training", unit="step")

    def step(self, progress: Progress, loss: float) -> None:
        """An update is done, whose mean loss was this."""
        self._losses.append(loss)
        rate = progress.learning_rates[-1]
        self._bar.set_postfix(loss=f"{loss:.4f}", lr=f"{rate:.2e}")
        self._bar.update()
        if self._is_due(progress.step):
            epoch = progress.epoch + progress.batches / self.batches
            logger.info(
                f"step {progress.step} of {self.steps}, epoch {epoch:.2f}: "
                f"loss {fmean(self._losses):.4f}, learning rate {rate:.2e}, "
                f"{self._left(progress.step)} left"
            )
            self._told = time.monotonic()
            self._losses.clear()

    def close(self) -> None:
        """Training has ended."""
        self._bar.close()

    def _is_due(self, step: int) -> bool:
        if self.every is not None:
            return step % self.every == 0
        return not terminal.is_watched() and time.monotonic() - self._told >= EVERY

    def _left(self, step: int) -> str:
        """The time that is left at the speed so far, evaluations included."""
        so_far = time.monotonic() - self._began
        left = so_far / (step - self._first) * (self.steps - step)
        return duration(left)


def duration(seconds: float) -> str:
    """Seconds in words: ``0.7 s``, ``48 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
