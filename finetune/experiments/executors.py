"""Where runs are done: in this process, by the workers of a dask cluster, or as jobs of slurm.

Each is an executor for `work.do`, to which it gives environment variables. Closed, it ends the
runs that go on.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import torch
from joblib import cpu_count

from finetune.errors import refusal
from finetune.experiments import work
from finetune.experiments.clusters import Dask, Slurm
from finetune.experiments.command_line import DASK, LOCAL, SLURM
from finetune.experiments.work import Outcome

_WORD = re.compile(rf"{LOCAL}|{SLURM}|{DASK}://[^\s/]+:\d+")


def check(given: argparse.Namespace) -> None:
    """Raise ``ValueError`` for a malformed executor, and for flags that do not fit to it."""
    if not _WORD.fullmatch(given.executor):
        allowed = f"{LOCAL}, {DASK}://HOST:PORT or {SLURM}"
        raise refusal("executor", given.executor, allowed, "HOST:PORT is a dask scheduler's.")
    if given.executor_options and given.executor != SLURM:
        allowed = f"None, or options of submitit with --executor {SLURM}"
        raise refusal("executor_options", given.executor_options, allowed, "Drop the flag.")
    if given.processes is not None and given.executor.startswith(DASK):
        remedy = "Its workers do as many runs at once as they have threads: drop the flag."
        raise refusal("processes", given.processes, f"None with {given.executor}", remedy)


def opened(given: argparse.Namespace) -> Local | Dask | Slurm:
    """The executor asked for, which has to be closed.

    Raises ``ValueError`` if it is not there, or cannot do runs.
    """
    folder, processes = given.output_dir.absolute(), given.processes
    if given.executor == LOCAL:
        return Local(slots(processes, given.threads))
    env = _threads(given.threads)
    if given.executor == SLURM:
        words = [] if given.threads is None else [f"cpus_per_task={given.threads}"]
        return Slurm([*words, *(given.executor_options or ())], folder, env, processes)
    return Dask(given.executor, folder, env)


def slots(processes: int | None, threads: int | None) -> list[dict[str, str]]:
    """Environments for ``processes`` runs at once: a share of the GPUs, or of the CPU's threads.

    By default one run for each GPU that is visible, one in all on the CPU. ``threads`` of the CPU
    for each; by default all of them, shared out where several run at once.
    """
    gpus = _visible_gpus()
    count = processes or max(len(gpus), 1)
    if threads is None and count > 1:
        threads = max(cpu_count() // count, 1)
    shared = _threads(threads)
    if not gpus:
        return [dict(shared) for _ in range(count)]
    shares = [gpus[i::count] or [gpus[i % len(gpus)]] for i in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share), **shared} for share in shares]


class Local(ThreadPoolExecutor):
    """Threads of this process that each do a run, as many at once as there are slots.

    Args:
        slots: environment variables of each run that may run at the same time.

    Attributes:
        at_once: how many runs there are at once.
    """

    def __init__(self, slots: Sequence[Mapping[str, str]] = ({},)) -> None:
        super().__init__(len(slots))
        self.at_once = len(slots)
        self._free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for slot in slots:
            self._free.put(slot)
        self._asker = uuid4().hex

    def submit(self, do: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Have ``do(run, options, slot)`` called as soon as a slot is free."""
        run, options = given
        options = replace(options, asker=self._asker)
        return super().submit(self._in_slot, do, run, options, **named)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the runs and what they have started; returns when all are over."""
        work.stop(self._asker)
        super().shutdown(cancel_futures=True)

    def _in_slot(self, do: Callable[..., Outcome], *given: Any, **named: Any) -> Outcome:
        slot = self._free.get()
        try:
            return do(*given, slot, **named)
        finally:
            self._free.put(slot)


def _threads(threads: int | None) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {} if threads is None else dict.fromkeys(names, str(threads))


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
