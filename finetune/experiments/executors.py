"""Where runs are done: on this machine, by the workers of a dask cluster, or as jobs of slurm.

One `Executor` for all three: a thread waits for each run, and `call` does it or has it done. The
machines share the folders, and have this project installed. Closed, it ends the runs that go on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any
from uuid import uuid4

import torch

from finetune.errors import refusal
from finetune.experiments import execute
from finetune.experiments.command_line import CLUSTER, DASK, EXAMPLE, LIMIT, LOCAL, SLURM
from finetune.experiments.execute import FAILED, Job, Options, Outcome
from hf_graphattn.version import how_to_install

ANSWER = 30  # seconds in which a dask cluster answers, and has a worker
JOBS = 256  # that a cluster has at once, where nothing says how many
_PLACE = re.compile(rf"{LOCAL}|{SLURM}|{DASK}://[^\s/]+:\d+")

Call = Callable[[Job, Options], Outcome]


class Executor(ThreadPoolExecutor):
    """Threads that each have a run done.

    Args:
        call: does one run, or has it done elsewhere.
        at_once: how many runs there are at once; None where it is not known.
        close: ends the runs that go on elsewhere.
    """

    def __init__(
        self, call: Call, at_once: int | None, close: Callable[[str], object] = execute.stop
    ) -> None:
        super().__init__(at_once or JOBS)
        self.at_once, self._call, self._close, self._asker = at_once, call, close, uuid4().hex

    def submit(self, job: Job, options: Options) -> Future[Outcome]:  # type: ignore[override]
        """Have the run done as soon as a thread is free."""
        return super().submit(self._call, job, replace(options, asker=self._asker))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the runs and what they have started; returns when all are over."""
        self._close(self._asker)
        super().shutdown(cancel_futures=True)


def check(options: argparse.Namespace) -> None:
    """Raise ``Refused`` for a malformed executor, and for flags that do not fit to it."""
    place = options.executor
    if not _PLACE.fullmatch(place):
        allowed = f"{LOCAL}, {DASK}://HOST:PORT or {SLURM}"
        raise refusal("executor", place, allowed, "HOST:PORT is a dask scheduler's.")
    if options.executor_options and place != SLURM:
        allowed = f"None, or options of submitit with --executor {SLURM}"
        raise refusal("executor_options", options.executor_options, allowed, "Drop the flag.")
    if options.processes is not None and place.startswith(DASK):
        remedy = "Its workers do as many runs at once as they have threads: drop the flag."
        raise refusal("processes", options.processes, f"None with {place}", remedy)


def opened(options: argparse.Namespace) -> Executor:
    """The executor that the flags name, which has to be closed.

    Raises ``Refused`` if it is not there, or cannot do runs.
    """
    if options.executor == LOCAL:
        return local(slots(options.processes, options.threads))
    env = _threads(options.threads)
    if options.executor == SLURM:
        cpus = [] if options.threads is None else [f"cpus_per_task={options.threads}"]
        folder = options.output_dir.absolute() / SLURM
        return slurm([*cpus, *(options.executor_options or ())], folder, env, options.processes)
    return dask(options.executor, env)


def slots(processes: int | None, threads: int | None) -> list[dict[str, str]]:
    """Environments for ``processes`` runs at once: a share of the GPUs, or of the CPU's threads.

    By default one run for each GPU that is visible, one in all on the CPU. ``threads`` of the CPU
    for each; by default all of them, shared out where several run at once.
    """
    gpus = _visible_gpus()
    count = processes or max(len(gpus), 1)
    if threads is None and count > 1:
        threads = max(_cores() // count, 1)
    shared = _threads(threads)
    if not gpus:
        return [dict(shared) for _ in range(count)]
    shares = [gpus[i::count] or [gpus[i % len(gpus)]] for i in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share), **shared} for share in shares]


def local(environments: list[dict[str, str]] | None = None) -> Executor:
    """This machine: as many runs at once as there are environments for them."""
    environments = environments or [{}]
    free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
    for env in environments:
        free.put(env)

    def call(job: Job, options: Options) -> Outcome:
        env = free.get()
        try:
            return execute.do(job, options, env)
        finally:
            free.put(env)

    return Executor(call, len(environments))


def dask(place: str, env: Mapping[str, str]) -> Executor:
    """The workers of a cluster, ``dask://HOST:PORT``, a run a thread of theirs.

    dask gives a lost worker's runs to others. Raises ``Refused`` if it does not answer, or has no
    worker.
    """
    distributed, address = _installed("distributed", DASK), place.removeprefix(f"{DASK}://")
    try:
        client = distributed.Client(address, timeout=ANSWER, set_as_default=False)
    except (OSError, ValueError) as error:
        remedy = f"Start it with `dask scheduler`, and give its address: {error}."
        allowed = f"a cluster that answers within {ANSWER} seconds"
        raise refusal("executor", place, allowed, remedy) from error
    try:
        client.wait_for_workers(1, timeout=ANSWER)
    except TimeoutError as error:
        client.close()
        allowed, remedy = "a cluster with a worker", f"Start workers: dask worker {address}"
        raise refusal("executor", place, allowed, remedy) from error

    def call(job: Job, options: Options) -> Outcome:
        # Not pure: a run that has failed may be asked for again.
        outcome: Outcome = client.submit(execute.do, *_sent(job, options), env, pure=False).result()
        return outcome

    def close(asker: str) -> None:
        if client.status == "running":  # else the cluster is gone, and its runs with it
            while any(client.run(execute.stop, asker).values()):
                time.sleep(0.1)
        client.close()

    return Executor(call, max(1, sum(client.nthreads().values())), close)


def slurm(
    words: list[str], folder: Path, env: Mapping[str, str], processes: int | None
) -> Executor:
    """Jobs of slurm through submitit, a run a job.

    Args:
        words: submitit's options, each ``NAME=VALUE``; ``cluster=local`` are processes here.
        folder: for submitit's files.
        env: environment variables of each run, beside its job's own.
        processes: how many jobs there are at once; None is as slurm sees fit.

    Raises ``Refused`` for options that submitit does not know, and without slurm.
    """
    options = dict(map(_option, words))
    cluster = options.get(CLUSTER, SLURM)
    jobs, submitting, closing = _submitit(folder, options), Lock(), Event()

    def call(job: Job, options: Options) -> Outcome:
        with submitting:  # one after another, for the scheduler's sake
            submitted = jobs.submit(Requeued(), *_sent(job, options), env)
        while not submitted.done():
            if closing.wait(1):
                submitted.cancel(check=False)
                return Outcome(FAILED, f"job {submitted.job_id} was cancelled")
        outcome: Outcome = submitted.result()
        return outcome

    at_once = processes or (1 if cluster == LOCAL else None)
    return Executor(call, at_once, lambda asker: closing.set())


@dataclass(frozen=True)
class Requeued:
    """What a job calls, and calls again where slurm has preempted it or its time was over."""

    def __call__(self, job: Job, options: Options, env: Mapping[str, str]) -> Outcome:
        return execute.do(job, options, env)

    def checkpoint(self, *arguments: Any) -> Any:
        """What submitit calls next: the same, since the run has checkpoints of its own."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def _submitit(folder: Path, options: dict[str, Any]) -> Any:
    """submitit's executor with these options."""
    submitit = _installed("submitit", SLURM)
    text = " ".join(f"{name}={value}" for name, value in options.items())
    cluster = options.pop(CLUSTER, SLURM)
    if cluster not in (SLURM, LOCAL) or LIMIT not in options:
        allowed = f"with {LIMIT}, the minutes of a job, and {CLUSTER} {SLURM} or {LOCAL}"
        raise refusal("executor_options", text, allowed, f"Like {EXAMPLE}.")
    # Options of the executor itself; all others are of its jobs.
    own = {n: options.pop(n) for n in [*options] if n.endswith(("_python", "_num_timeout"))}
    try:
        executor = submitit.AutoExecutor(folder, cluster, **own)
        executor.update_parameters(**options)
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        allowed = f"what submitit takes where slurm is; {CLUSTER}={LOCAL} tries it here"
        remedy = " ".join(str(error).split())
        raise refusal("executor_options", text, allowed, remedy) from error
    return executor


def _option(word: str) -> tuple[str, Any]:
    """A name, and its value: JSON, or the text that it is."""
    name, has_value, value = word.partition("=")
    if not has_value:
        raise refusal("executor_options", word, "NAME=VALUE", f"Like {EXAMPLE}.")
    with suppress(ValueError):
        return name, json.loads(value)
    return name, value


def _sent(job: Job, options: Options) -> tuple[Job, Options]:
    """What another machine gets: there relative paths begin in the folder in which they do here."""
    home = Path.cwd()
    (home / job.folder).mkdir(parents=True, exist_ok=True)  # what it has to see
    return replace(job, folder=home / job.folder), replace(options, home=home)


def _installed(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        allowed = f"{LOCAL}, or {extra} where {package} is installed"
        remedy = f"Run: {how_to_install(extra)}"
        raise refusal("executor", extra, allowed, remedy) from error


def _threads(threads: int | None) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {} if threads is None else dict.fromkeys(names, str(threads))


def _cores() -> int:
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
