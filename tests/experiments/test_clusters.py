"""Clusters, here processes of this machine: workers and jobs lost, interrupted, refused."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import warm
from stepwise import has_two_checkpoints, job_of, run_all, undisturbed, wait_for

from finetune.engine import locks
from finetune.experiments import execute, executors
from finetune.experiments.execute import Job


def worker_of(run: Job) -> psutil.Process:
    """The process that waits for the run's script."""
    return psutil.Process(int((run.folder / locks.LOCK).read_text().split()[1])).parent()


def is_over(run: Job) -> bool:
    """Whether nobody works in its folder, no orphan either."""
    with locks.held(run.folder) as lock:
        return lock is not None


def log_of(run: Job) -> str:
    return (run.folder / execute.LOG).read_text()


@contextlib.contextmanager
def started(*words: str) -> Iterator[None]:
    process = subprocess.Popen([warm.python("finetune"), *words], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Cluster:
    """A scheduler of dask, a process of its own, without workers."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        distributed = pytest.importorskip("distributed")
        self.folder, self.file = folder, folder / "scheduler.json"
        place = ("--scheduler-file", str(self.file), "--host", "127.0.0.1", "--no-dashboard")
        words = ("-m", "distributed.cli.dask_scheduler", "--port", "0", *place)
        stack.enter_context(started(*words))
        wait_for(lambda: self.file.exists() and self.file.read_text().endswith("}"))
        address = json.loads(self.file.read_text())["address"]
        self.address = address.removeprefix("tcp://")
        self._client = stack.enter_context(distributed.Client(address, set_as_default=False))

    @property
    def size(self) -> int:
        return len(self._client.nthreads())

    @contextlib.contextmanager
    def worker(self, *program: str) -> Iterator[None]:
        """One more of one thread, a process of its own, while this lasts."""
        before = self.size
        program = program or ("-m", "distributed.cli.dask_worker")
        place = ("--scheduler-file", str(self.file), "--local-directory", str(self.folder))
        plain = ("--no-nanny", "--no-dashboard", "--nthreads", "1", "--memory-limit", "0")
        with started(*program, *place, *plain, "--host", "127.0.0.1"):
            wait_for(lambda: self.size > before)
            yield
        wait_for(lambda: self.size <= before)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One with two workers."""
    with contextlib.ExitStack() as stack:
        made = Cluster(tmp_path_factory.mktemp("cluster"), stack)
        for _ in range(2):
            stack.enter_context(made.worker())
        yield made


def test_the_run_of_a_killed_worker_goes_on_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    wanted = [job_of(tmp_path, seed, waits=seed == 1) for seed in range(4)]
    waits, lines = wanted[1], list[str]()

    def kill() -> None:
        wait_for(lambda: has_two_checkpoints(waits))
        worker_of(waits).kill()

    killer = threading.Thread(target=kill)
    with cluster.worker(), executors.dask(cluster.address, {}) as executor:
        assert executor._max_workers == cluster.size
        killer.start()
        assert run_all(wanted, executor=executor, log=lines.append) == {}
        killer.join()
        assert cluster.size == executor._max_workers - 1
    assert [line[:5] for line in lines] == [f"[{i}/4]" for i in range(1, 5)]
    began = [line for line in log_of(waits).splitlines() if line.startswith("begins")]
    assert began == ["begins at 0", "begins at 2"]
    for run in wanted:
        assert run.results() == undisturbed(tmp_path / "here", run.seed)


def interrupted_in(others: Sequence[Job]) -> Callable[[Job], str]:
    """What says that a run is done, and is interrupted then: in the midst of another."""

    def shown(run: Job) -> str:
        wait_for(lambda: any(map(has_two_checkpoints, others)))
        raise KeyboardInterrupt

    return shown


def test_an_interrupt_ends_what_runs_on_workers(cluster: Cluster, tmp_path: Path) -> None:
    first, *others = (job_of(tmp_path, seed, waits=seed > 0) for seed in range(5))
    shown = interrupted_in(others)
    with pytest.raises(KeyboardInterrupt), executors.dask(cluster.address, {}) as executor:
        run_all([first, *others], executor=executor, log=str, summary=shown)
    assert all(map(is_over, others))
    begun = [run for run in others if has_two_checkpoints(run)]
    assert 0 < len(begun) < len(others)
    with executors.dask(cluster.address, {}) as executor:
        assert run_all([first, *begun], executor=executor) == {}
    for run in begun:
        assert run.results() == undisturbed(tmp_path / "here", run.seed)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_cluster_that_cannot_do_runs_is_refused(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "TIMEOUT", 3 if is_there else 0.3)
    with contextlib.ExitStack() as stack:
        address = Cluster(tmp_path, stack).address if is_there else "127.0.0.1:9"
        with pytest.raises(ValueError, match=rf"has a worker\. .*dask worker {address} "):
            executors.dask(address, {})


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Options of submitit whose jobs are processes of this machine."""
    pytest.importorskip("submitit")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job is cancelled with it
    others = psutil.Process().children()
    yield ["cluster=local", "timeout_min=2", f"local_python={warm.python('finetune')}"]
    signal.signal(signal.SIGINT, handler)
    jobs = [process for process in psutil.Process().children() if process not in others]
    for process in psutil.wait_procs(jobs, timeout=20)[1]:
        process.kill()


def test_a_preempted_job_goes_on_from_its_checkpoint(
    in_processes: list[str], tmp_path: Path
) -> None:
    wanted, lines = [job_of(tmp_path, seed, waits=seed == 1) for seed in range(2)], list[str]()

    def preempt() -> None:
        wait_for(lambda: has_two_checkpoints(wanted[1]))
        worker_of(wanted[1]).send_signal(signal.SIGUSR2)

    slurm = threading.Thread(target=preempt)
    slurm.start()
    with executors.slurm(in_processes, tmp_path / "out", {}, 2) as executor:
        assert run_all(wanted, executor=executor, log=lines.append) == {}
    slurm.join()
    assert lines[-1].startswith("[2/2] seed-1: done")
    assert "begins at 2" in log_of(wanted[1])
    for run in wanted:
        assert run.results() == undisturbed(tmp_path / "here", run.seed)


def test_an_interrupt_cancels_the_jobs(in_processes: list[str], tmp_path: Path) -> None:
    first, waits, later = (job_of(tmp_path, seed, waits=seed > 0) for seed in range(3))
    shown = interrupted_in([waits])
    with (
        pytest.raises(KeyboardInterrupt),
        executors.slurm(in_processes, tmp_path, {}, 2) as executor,
    ):
        run_all([first, waits, later], executor=executor, log=str, summary=shown)
    wait_for(lambda: is_over(waits) and is_over(later))
    assert waits.can_resume()
