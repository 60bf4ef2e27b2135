"""Executors whose runs are done on other machines: a dask cluster's workers, and slurm's jobs.

The machines share the folders, and have this project installed. A run there ends with the process
that does it; of one that was lost, the next to begin it goes on from its last checkpoint.
"""

from __future__ import annotations

import importlib
import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock
from typing import Any
from uuid import uuid4

from finetune.errors import Refused, refusal
from finetune.experiments import work
from finetune.experiments.command_line import CLUSTER, DASK, EXAMPLE, LIMIT, LOCAL, SLURM
from finetune.experiments.runs import Run
from finetune.experiments.work import FAILED, Options, Outcome
from hf_graphattn.version import how_to_install

ANSWER = 30  # seconds in which a dask cluster answers, and has a worker
JOBS = 256  # that slurm has at once, where --processes does not say how many
TASKS = ("nodes", "tasks_per_node", "ntasks_per_node")


class Dask(Executor):
    """The workers of a dask cluster, a run a thread. dask gives a lost worker's runs to others.

    Args:
        word: where its scheduler is: ``dask://HOST:PORT``.
        folder: of the experiment.
        env: environment variables of each run, beside the workers' own.

    Attributes:
        at_once: how many runs there are at once: the threads that its workers have at first.

    Raises ``ValueError`` if it does not answer, has no workers, or one that cannot do a run.
    """

    def __init__(self, word: str, folder: Path, env: Mapping[str, str]) -> None:
        distributed = _installed("distributed", DASK)
        self._word, self._env, self._asker = word, env, uuid4().hex
        self._address = word.removeprefix(f"{DASK}://")
        try:
            self._client = distributed.Client(self._address, timeout=ANSWER, set_as_default=False)
        except (OSError, ValueError) as error:
            remedy = f"Start it with `dask scheduler`, and give its address: {error}."
            raise self._refusal(f"that answers within {ANSWER} seconds", remedy) from error
        try:
            self._check_workers(folder)
        except BaseException:
            self._client.close()
            raise
        # Each call is a task of its own: a run that has failed may be asked for again.
        self._executor = self._client.get_executor(pure=False)
        self.at_once = max(1, sum(self._client.nthreads().values()))

    def submit(self, do: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Have a worker call ``do(run, options, env)``."""
        run, options = _sent(*given)
        options = replace(options, asker=self._asker)
        future: Future[Any] = self._executor.submit(do, run, options, self._env, **named)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the runs on the workers; returns when all are over."""
        if self._client.status == "running":  # else the cluster is gone, and its runs with it
            self._executor.shutdown(wait=False)
            while any(self._client.run(work.stop, self._asker).values()):
                time.sleep(0.1)
        self._client.close()

    def _check_workers(self, folder: Path) -> None:
        try:
            self._client.wait_for_workers(1, timeout=ANSWER)
        except TimeoutError as error:
            remedy = f"Start workers: dask worker {self._address}"
            raise self._refusal(f"with a worker within {ANSWER} seconds", remedy) from error
        seen = folder / f".{self._asker}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            seen.touch()
        except OSError as error:
            allowed = f"a folder that can be made and written to; here: {error.strerror}"
            raise refusal("output_dir", str(folder), allowed, "Choose another.") from error
        try:
            self._check_each(f"see {folder}", work.BLIND, seen.is_file)
        finally:
            seen.unlink()
        remedy = "Install this project in their Python too: pip install -e ."
        self._check_each("import finetune", remedy, Options)

    def _check_each(self, what: str, remedy: str, *call: Any) -> None:
        for worker, answer in self._client.run(*call, on_error="return").items():
            if answer is False or isinstance(answer, Exception):
                said = f" ({answer})" if answer else ""
                raise self._refusal(f"whose workers {what}", f"{worker} does not{said}. {remedy}")

    def _refusal(self, allowed: str, remedy: str) -> Refused:
        return refusal("executor", self._word, f"a cluster {allowed}", remedy)


class Slurm(ThreadPoolExecutor):
    """Jobs of slurm through submitit, a run a job; threads of this process wait for them.

    Args:
        words: submitit's options, each ``NAME=VALUE``; ``cluster=local`` are processes here.
        folder: of the experiment; submitit's files are in ``slurm`` there.
        env: environment variables of each run, beside its job's own.
        processes: how many jobs there are at once; None is as slurm sees fit.

    Attributes:
        at_once: as many; None where nobody knows.

    Raises ``ValueError`` for options that submitit does not know, and without slurm.
    """

    def __init__(
        self, words: Sequence[str], folder: Path, env: Mapping[str, str], processes: int | None
    ) -> None:
        options = dict(map(_option, words))
        self.at_once = processes or (1 if options.get(CLUSTER) == LOCAL else None)
        self._jobs, self._env = _submitit(folder / SLURM, options), env
        self._submitting, self._closing = Lock(), Event()
        super().__init__(self.at_once or JOBS)

    def submit(self, do: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Have a job call ``do(run, options, env)``."""
        return super().submit(self._in_job, Requeued(do), *given, **named)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Cancel the jobs: slurm ends them."""
        self._closing.set()
        super().shutdown(cancel_futures=True)

    def _in_job(self, do: Requeued, *given: Any, **named: Any) -> Outcome:
        with self._submitting:  # one after another, for the scheduler's sake
            job = self._jobs.submit(do, *_sent(*given), self._env, **named)
        while not job.done():
            if self._closing.wait(1):
                job.cancel(check=False)
                return Outcome(FAILED, f"job {job.job_id} was cancelled")
        outcome: Outcome = job.result()
        return outcome


@dataclass(frozen=True)
class Requeued:
    """What a job calls, and calls again where slurm has preempted it or its time was over."""

    do: Callable[..., Outcome]

    def __call__(self, *given: Any, **named: Any) -> Outcome:
        return self.do(*given, **named)

    def checkpoint(self, *given: Any, **named: Any) -> Any:
        """What submitit calls next: the same, since the run has checkpoints of its own."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *given, **named)


def _submitit(folder: Path, options: dict[str, Any]) -> Any:
    """submitit's executor with these options."""
    submitit = _installed("submitit", SLURM)
    told = " ".join(f"{name}={value}" for name, value in options.items())
    kinds = {SLURM: submitit.SlurmExecutor, LOCAL: submitit.LocalExecutor}
    cluster = options.pop(CLUSTER, SLURM)
    if cluster not in kinds or LIMIT not in options:
        allowed = f"with {LIMIT}, the minutes of a job, and {CLUSTER} {' or '.join(kinds)}"
        raise refusal("executor_options", told, allowed, f"Like {EXAMPLE}.")
    own = {f"{cluster}_{name}" for name in inspect.signature(kinds[cluster]).parameters}
    try:
        first = {name: options.pop(name) for name in own & options.keys()}
        made = submitit.AutoExecutor(folder, cluster, **first)
        made.update_parameters(**options)
    except RuntimeError as error:
        remedy = f"Call this where jobs are submitted, or try it here with {CLUSTER}={LOCAL}."
        raise refusal("executor", SLURM, f"where slurm is ({error})", remedy) from error
    except (AssertionError, NameError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise refusal("executor_options", told, "what submitit knows", said) from error
    if any(made.parameters.get(name, 1) != 1 for name in TASKS):
        remedy = "Several processes of a run are the --launcher's: accelerate launch ..."
        raise refusal("executor_options", told, "one task a job", remedy)
    return made


def _option(word: str) -> tuple[str, Any]:
    """A name, and its value: JSON, or the text that it is."""
    name, is_given, value = word.partition("=")
    if not is_given:
        raise refusal("executor_options", word, "NAME=VALUE", f"Like {EXAMPLE}.")
    with suppress(ValueError):
        return name, json.loads(value)
    return name, value


def _sent(run: Run, options: Options) -> tuple[Run, Options]:
    """What another machine gets: there relative paths begin in the folder in which they do here."""
    home = Path.cwd()
    (home / run.folder).mkdir(parents=True, exist_ok=True)  # what it has to see
    return replace(run, folder=home / run.folder), replace(options, home=home)


def _installed(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        allowed = f"{LOCAL}, or {extra} where {package} is installed"
        remedy = f"Run: {how_to_install(extra)}"
        raise refusal("executor", extra, allowed, remedy) from error
