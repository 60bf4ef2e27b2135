"""Runs, several at once where there is room, that can be stopped and started again at any time."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from finetune.comparison import runs
from finetune.comparison.runs import Process, Run
from finetune.flags import refusal

POLL_SECONDS = 0.1
FAILED, ELSEWHERE = "failed", "elsewhere"


@dataclass(frozen=True)
class Options:
    """How runs are started.

    Attributes:
        slots: one set of environment variables for each run that may run at the same time.
        launcher: words before the script; empty is this Python.
        keep_models: whether finished runs keep their weights.
    """

    slots: Sequence[Mapping[str, str]] = ({},)
    launcher: Sequence[str] = ()
    keep_models: bool = False


def slots(processes: int | None, threads: int | None) -> list[dict[str, str]]:
    """Environments for ``processes`` runs at once: a share of the GPUs, or of the CPU's threads.

    By default one run for each GPU that is visible, one in all on the CPU. ``threads`` of the CPU
    for each; by default all of them, shared out where several run at once.
    """
    gpus = _visible_gpus()
    count = processes or max(len(gpus), 1)
    found = []
    for i in range(count):
        env = (
            {"CUDA_VISIBLE_DEVICES": ",".join(gpus[i::count] or [gpus[i % len(gpus)]])}
            if gpus
            else {}
        )
        if threads is None and count > 1:
            threads = max(_cores() // count, 1)
        if threads is not None:
            env |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        found.append(env)
    return found


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
    options: Options,
    *,
    say: Callable[[str], None] = said,
    shown: Callable[[Run], str] = lambda run: "done",
) -> dict[str, str]:
    """Run what is not done yet, in this order; returns the names of runs without results, and why.

    A run that was killed goes on from its last checkpoint, or begins again. One that another
    process works on is left to it (``ELSEWHERE``). After one that fails (``FAILED``) the others go
    on. An interrupt ends those that run.

    Args:
        wanted: each with a folder of its own.
        options: how they are started.
        say: takes a line for each run that ends, and the log's end of one that failed.
        shown: what that line says of a finished run.

    Raises ``ValueError`` before anything starts if a folder holds a run with other settings.
    """
    check(wanted)
    if options.keep_models:
        gone = sum(run.is_done() and not run.has_weights() for run in wanted)
        if gone:
            say(f"Of {gone} finished runs the weights are gone: to have them, remove their folders")
    else:
        for run in wanted:
            run.remove_weights()  # of one that was killed between its end and this
    work = _Work(wanted, options, say, shown)
    try:
        while work.waiting or work.active:
            work.start()
            time.sleep(POLL_SECONDS)
            work.collect()
    finally:
        for process in work.active:
            process.end()
    check([run for run in wanted if run.is_done()])  # other processes may have been at work
    return {
        run.name: work.missing[run.name]
        for run in wanted
        if run.name in work.missing and not run.is_done()
    }


class _Work:
    """What is waiting, what runs, and on which slots."""

    def __init__(
        self,
        wanted: Sequence[Run],
        options: Options,
        say: Callable[[str], None],
        shown: Callable[[Run], str],
    ) -> None:
        self.options, self.say, self.shown = options, say, shown
        self.waiting = deque(run for run in wanted if not run.is_done())
        self.active: dict[Process, int] = {}
        self.missing: dict[str, str] = {}
        self.total, self.ended = len(wanted), len(wanted) - len(self.waiting)
        self._seconds: list[float] = []
        if self.ended:
            self.say(f"{self.ended} of {self.total} runs were done before")

    def start(self) -> None:
        free = [i for i in range(len(self.options.slots)) if i not in self.active.values()]
        while free and self.waiting:
            run = self.waiting.popleft()
            lock = runs.lock(run.folder)
            if lock is None:
                self.missing[run.name] = ELSEWHERE
                self._line(run, f"left to {runs.holder(run.folder)}, which works on it")
            elif run.is_done():  # by another process, since we looked
                os.close(lock)
                check([run])
                self._line(run, self.shown(run))
            else:
                self._start(run, lock, free)

    def _start(self, run: Run, lock: int, free: list[int]) -> None:
        options, slot = self.options, free[0]
        try:
            process = Process(run, lock, options.launcher, options.slots[slot], options.keep_models)
        except OSError as error:  # no such launcher, no room
            os.close(lock)
            self.missing[run.name] = FAILED
            self._line(run, f"could not be started: {error}")
        else:
            self.active[process] = free.pop(0)

    def collect(self) -> None:
        for process in [p for p in self.active if p.exit_code() is not None]:
            run, code = process.run, process.exit_code()
            done = process.close()
            del self.active[process]
            if done:
                self._seconds.append(process.seconds)
                took = f"{self.shown(run)}; {duration(process.seconds)}"
                self._line(run, took + self._left())
            else:
                self.missing[run.name] = FAILED
                self._line(run, f"failed with exit code {code}; the end of {run.folder / runs.LOG}")
                self.say("    " + run.log_tail().replace("\n", "\n    "))

    def _line(self, run: Run, text: str) -> None:
        self.ended += 1
        self.say(f"[{self.ended}/{self.total}] {run.name}: {text}")

    def _left(self) -> str:
        count = len(self.waiting) + len(self.active) / 2  # those that run are half done, say
        if not count:
            return ""
        each = sum(self._seconds) / len(self._seconds)
        return f", about {duration(each * count / len(self.options.slots))} left"


def duration(seconds: float) -> str:
    """In words: 42 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
