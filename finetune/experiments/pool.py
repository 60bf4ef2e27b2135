"""Runs, several at once where there is room, that can be stopped and started again at any time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from statistics import fmean

import torch

from finetune.errors import refusal
from finetune.experiments import work
from finetune.experiments.runs import Run
from finetune.experiments.work import DONE, Options, Outcome

PATIENCE = 10.0  # seconds that a run which is asked to end may take


def slots(processes: int | None, threads: int | None) -> list[dict[str, str]]:
    """Environments for ``processes`` runs at once: a share of the GPUs, or of the CPU's threads.

    By default one run for each GPU that is visible, one in all on the CPU. ``threads`` of the CPU
    for each; by default all of them, shared out where several run at once.
    """
    gpus = _visible_gpus()
    count = processes or max(len(gpus), 1)
    if threads is None and count > 1:
        threads = max(_cores() // count, 1)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    shared = {} if threads is None else dict.fromkeys(names, str(threads))
    if not gpus:
        return [dict(shared) for _ in range(count)]
    shares = [gpus[i::count] or [gpus[i % len(gpus)]] for i in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share), **shared} for share in shares]


def check(wanted: Sequence[Run]) -> None:
    """Raise ``ValueError`` if a folder holds a run with other settings; nothing is started then."""
    for run in wanted:
        faults = run.faults()
        if faults:
            raise refusal(
                f"what is in {run.folder}",
                "a run with other settings",
                f"a run with those asked for (then -> now): {'; '.join(faults)}",
                "Give those of the run, choose another output_dir, or remove that folder.",
            )


def said(line: str) -> None:
    """Print a line at once, into a file too."""
    print(line, flush=True)


def execute(
    wanted: Sequence[Run],
    options: Options = work.DEFAULT,
    slots: Sequence[Mapping[str, str]] = ({},),
    *,
    say: Callable[[str], None] = said,
    shown: Callable[[Run], str] = lambda run: "done",
) -> dict[str, str]:
    """Run what is not done yet, in this order; returns the names of runs without results, and why.

    A run that was killed goes on from its last checkpoint, or begins again. One that another
    process works on is left to it (``elsewhere``). After one that fails (``failed``) the others go
    on. An interrupt ends those that run.

    Args:
        wanted: each with a folder of its own.
        options: how they are started.
        slots: environment variables of each run that may run at the same time.
        say: takes a line for each run that ends, and the log's end of one that failed.
        shown: what that line says of a finished run.

    Raises ``ValueError`` before anything starts if a folder holds a run with other settings.
    """
    check(wanted)
    _tidy(wanted, options.keep_models, say)
    waiting = [run for run in wanted if not run.is_done()]
    progress = _Progress(len(wanted), len(waiting), len(slots), say)
    missing = {}
    with closing(_outcomes(waiting, options, slots)) as outcomes:
        for run, outcome in outcomes:
            if outcome.status != DONE:
                missing[run.name] = outcome.status
            progress.tell(run, outcome, shown(run) if outcome.status == DONE else outcome.reason)
    check([run for run in wanted if run.is_done()])  # other processes may have been at work
    still = [run.name for run in waiting if not run.is_done()]
    return {name: missing[name] for name in still if name in missing}


def duration(seconds: float) -> str:
    """In words: 42 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _tidy(wanted: Sequence[Run], keep_models: bool, say: Callable[[str], None]) -> None:
    """Remove weights of runs whose parent was killed before it could, or say that some are gone."""
    if not keep_models:
        for run in wanted:
            run.remove_weights()
        return
    gone = sum(run.is_done() and not run.has_weights() for run in wanted)
    if gone:
        say(f"Of {gone} finished runs the weights are gone: to have them, remove their folders")


def _outcomes(
    waiting: Sequence[Run], options: Options, slots: Sequence[Mapping[str, str]]
) -> Generator[tuple[Run, Outcome]]:
    """Each run as it ends, begun in this order, as many at once as there are slots.

    Whoever stops this early ends those that run.
    """
    queue, free = iter(waiting), list(slots)
    active: dict[Future[Outcome], tuple[Run, Mapping[str, str]]] = {}
    with ThreadPoolExecutor(len(slots)) as executor:
        try:
            while True:
                while free and (run := next(queue, None)) is not None:
                    env = free.pop(0)
                    active[executor.submit(work.do, run, options, env)] = run, env
                if not active:
                    return
                for future in wait(active, return_when=FIRST_COMPLETED).done:
                    run, env = active.pop(future)
                    free.append(env)
                    yield run, future.result()
        finally:
            _end(active)


def _end(active: Mapping[Future[Outcome], object]) -> None:
    """End the runs and what they have started: ask first, then kill; returns when all are over."""
    began, asked = time.monotonic(), set()
    while wait(active, timeout=0.1).not_done:
        is_late = time.monotonic() - began > PATIENCE
        for child in list(work.CHILDREN):
            if is_late:
                work.ask_to_end(child, signal.SIGKILL)
            elif child not in asked:
                work.ask_to_end(child, signal.SIGTERM)
                asked.add(child)


class _Progress:
    """Says a line for each run that ends."""

    def __init__(self, total: int, waiting: int, slots: int, say: Callable[[str], None]) -> None:
        self.total, self.ended, self.slots, self.say = total, total - waiting, slots, say
        self.seconds: list[float] = []
        if self.ended:
            say(f"{self.ended} of {total} runs were done before")

    def tell(self, run: Run, outcome: Outcome, text: str) -> None:
        self.ended += 1
        if outcome.seconds is not None:
            self.seconds.append(outcome.seconds)
            text += f"; {duration(outcome.seconds)}{self._left()}"
        self.say(f"[{self.ended}/{self.total}] {run.name}: {text}")
        if outcome.log:
            self.say("    " + outcome.log.replace("\n", "\n    "))

    def _left(self) -> str:
        remaining = self.total - self.ended
        if not remaining:
            return ""
        running = min(remaining, self.slots - 1)  # each half done, say
        seconds = fmean(self.seconds) * (remaining - running / 2) / self.slots
        return f", about {duration(seconds)} left"


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
