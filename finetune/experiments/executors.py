"""Where runs are done: on this machine, by the workers of a dask cluster, or as jobs of slurm.

One `Executor` for all three: a thread waits for each run, and `call` does it or has it done. The
machines share the folders, and have this project installed. Closed, it ends the runs that go on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
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

TIMEOUT = 30  # seconds in which a dask cluster answers, and has a worker
JOBS = 256  # that a cluster has at once, where nothing says how many

Call = Callable[[Job, Options], Outcome]


class Executor(ThreadPoolExecutor):
    """Threads that each have a run done.

    Args:
        call: does one run, or has it done elsewhere.
        at_once: how many runs there are at once.
        close: ends the runs that go on elsewhere.
    """

    def __init__(
        self, call: Call, at_once: int, close: Callable[[str], object] = execute.stop
    ) -> None:
        super().__init__(at_once)
        self._call, self._close, self._owner = call, close, uuid4().hex

    def submit(self, job: Job, options: Options) -> Future[Outcome]:  # type: ignore[override]
        """Have the run done as soon as a thread is free."""
        return super().submit(self._call, job, replace(options, owner=self._owner))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the runs and what they have started; returns when all are over."""
        self._close(self._owner)
        super().shutdown(cancel_futures=True)


def opened(options: argparse.Namespace) -> Executor:
    """The executor that the flags name, which has to be closed.

    Raises ``Refused`` if it is not there, or cannot do runs.
    """
    kind, _, address = options.executor.partition("://")
    env = _threads(options.threads)
    if kind == SLURM:
        cpus = [] if options.threads is None else [f"cpus_per_task={options.threads}"]
        folder = options.output_dir.absolute() / SLURM
        return slurm([*cpus, *(options.executor_options or ())], folder, env, options.processes)
    if options.executor_options:
        allowed = f"None, or options of submitit with --executor {SLURM}"
        raise refusal("executor_options", options.executor_options, allowed, "Drop the flag.")
    if kind == DASK and address:
        return dask(address, env, options.processes)
    if options.executor == LOCAL:
        return local(slots(options.processes, options.threads))
    allowed = f"{LOCAL}, {DASK}://HOST:PORT or {SLURM}"
    raise refusal("executor", options.executor, allowed, "HOST:PORT is a dask scheduler's.")


def slots(processes: int | None, threads: int | None) -> list[dict[str, str]]:
    """Environments for ``processes`` runs at once: a share of the GPUs, or of the CPU's threads.

    By default one run for each GPU that is visible, one in all on the CPU. ``threads`` of the CPU
    for each; by default all of them, shared out where several run at once.
    """
    gpus = _visible_gpus()
    count = processes or max(len(gpus), 1)
    if threads is None and count > 1:
        threads = max(torch.get_num_threads() // count, 1)
    shares = [gpus[i::count] or gpus[i % len(gpus) :][:1] for i in range(count)] if gpus else []
    visible = [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares] or [{}] * count
    return [{**each, **_threads(threads)} for each in visible]


def local(environments: Sequence[Mapping[str, str]] = ({},)) -> Executor:
    """This machine: as many runs at once as there are environments for them."""
    free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
    for env in environments:
        free.put(env)

    def call(job: Job, options: Options) -> Outcome:
        env = free.get()
        try:
            return execute.do(job, replace(options, env=env))
        finally:
            free.put(env)

    return Executor(call, len(environments))


def dask(address: str, env: Mapping[str, str], processes: int | None = None) -> Executor:
    """The workers of a scheduler, ``HOST:PORT``, by default a run a thread of theirs.

    dask gives a lost worker's runs to others. Raises ``Refused`` if it does not answer, or has no
    worker.
    """
    import distributed

    try:
        client = distributed.Client(address, timeout=TIMEOUT, set_as_default=False)
        client.wait_for_workers(1, timeout=TIMEOUT)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        allowed = f"a cluster that answers within {TIMEOUT} seconds, and has a worker"
        remedy = f"Start `dask scheduler`, and workers: dask worker {address} ({error})."
        raise refusal("executor", f"{DASK}://{address}", allowed, remedy) from error

    def call(job: Job, options: Options) -> Outcome:
        # Not pure: a run that has failed may be submitted again.
        sent = replace(options, env=env)
        outcome: Outcome = client.submit(execute.do, job, sent, pure=False).result()
        return outcome

    def close(owner: str) -> None:
        if client.status == "running":  # else the cluster is gone, and its runs with it
            while any(client.run(execute.stop, owner).values()):
                time.sleep(0.1)
        client.close()

    return Executor(call, processes or max(1, sum(client.nthreads().values())), close)


def slurm(
    texts: Sequence[str], folder: Path, env: Mapping[str, str], processes: int | None
) -> Executor:
    """Jobs of slurm through submitit, a run a job.

    Args:
        texts: submitit's options, each ``NAME=VALUE``; ``cluster=local`` are processes here.
        folder: for submitit's files.
        env: environment variables of each run, beside its job's own.
        processes: how many jobs there are at once; None is as slurm sees fit.

    Raises ``Refused`` for options that submitit does not know, and without slurm.
    """
    jobs, submitting, closing = _submitit(texts, folder), Lock(), Event()

    def call(job: Job, options: Options) -> Outcome:
        with submitting:  # one after another, for the scheduler's sake
            submitted = jobs.submit(Requeued(), job, replace(options, env=env))
        while not submitted.done():
            if closing.wait(1):
                submitted.cancel(check=False)
                return Outcome(FAILED, f"job {submitted.job_id} was cancelled")
        outcome: Outcome = submitted.result()
        return outcome

    at_once = processes or (1 if jobs.cluster == LOCAL else JOBS)
    return Executor(call, at_once, lambda owner: closing.set())


@dataclass(frozen=True)
class Requeued:
    """What a job calls, and calls again where slurm has preempted it or its time was over."""

    def __call__(self, job: Job, options: Options) -> Outcome:
        return execute.do(job, options)

    def checkpoint(self, *arguments: Any) -> Any:
        """What submitit calls next: the same, since the run has checkpoints of its own."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def _submitit(texts: Sequence[str], folder: Path) -> Any:
    """submitit's executor with these options."""
    import submitit

    options: dict[str, Any] = {}
    for name, _, value in (text.partition("=") for text in texts):
        options[name] = value
        with suppress(ValueError):
            options[name] = json.loads(value)
    cluster = options.pop(CLUSTER, SLURM)
    try:
        if cluster not in (SLURM, LOCAL) or LIMIT not in options:
            raise ValueError(f"{LIMIT} are the minutes of a job")
        # Options of the executor itself; all others are of its jobs.
        names = [name for name in options if name.endswith(("_python", "_num_timeout"))]
        executor = submitit.AutoExecutor(folder, cluster, **{n: options.pop(n) for n in names})
        executor.update_parameters(**options)
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        allowed = f"what submitit takes where slurm is, with {LIMIT}, like {EXAMPLE}; "
        allowed += f"{CLUSTER}={LOCAL} tries it here"
        remedy = " ".join(str(error).split())
        raise refusal("executor_options", " ".join(texts), allowed, remedy) from error
    return executor


def _threads(threads: int | None) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {} if threads is None else dict.fromkeys(names, str(threads))


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
