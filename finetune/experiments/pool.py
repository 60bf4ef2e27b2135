"""Runs, several at once where there is room, that can be stopped and started again at any time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing
from queue import SimpleQueue
from statistics import fmean
from typing import Any

import torch
from joblib import cpu_count
from tqdm import tqdm

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
        threads = max(cpu_count() // count, 1)
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
    waiting, missing = [run for run in wanted if not run.is_done()], {}
    before = len(wanted) - len(waiting)
    seconds: list[float] = []  # of each run that was done here
    if before:
        say(f"{before} of {len(wanted)} runs were done before")
    with closing(_outcomes(waiting, options, slots)) as outcomes:
        for ended, (run, outcome) in enumerate(outcomes, before + 1):
            if outcome.status != DONE:
                missing[run.name] = outcome.status
            text = shown(run) if outcome.status == DONE else outcome.reason
            if outcome.seconds is not None:
                seconds.append(outcome.seconds)
                left = len(wanted) - ended
                left_here = left - min(left, len(slots) - 1) / 2  # those that run are half done
                about = tqdm.format_interval(fmean(seconds) * left_here / len(slots))
                text += f"; {tqdm.format_interval(outcome.seconds)}"
                text += f", about {about} left" if left else ""
            say(f"[{ended}/{len(wanted)}] {run.name}: {text}")
    check([run for run in wanted if run.is_done()])  # other processes may have been at work
    still = [run.name for run in waiting if not run.is_done()]
    return {name: missing[name] for name in still if name in missing}


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
    free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
    for slot in slots:
        free.put(slot)

    def do(run: Run) -> tuple[Run, Outcome]:
        env = free.get()
        try:
            return run, work.do(run, options, env)
        finally:
            free.put(env)

    with ThreadPoolExecutor(len(slots)) as executor:
        futures = [executor.submit(do, run) for run in waiting]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            _end([future for future in futures if not future.cancel()])


def _end(running: Sequence[Future[Any]]) -> None:
    """End the runs and what they have started: ask first, then kill; returns when all are over."""
    began, asked = time.monotonic(), set()
    while wait(running, timeout=0.1).not_done:
        number = signal.SIGTERM if time.monotonic() - began < PATIENCE else signal.SIGKILL
        for child in [child for child in work.CHILDREN if (child, number) not in asked]:
            asked.add((child, number))
            work.ask_to_end(child, number)


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
