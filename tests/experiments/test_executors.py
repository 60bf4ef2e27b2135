"""Executors: their flags and options, what any of them may do, and runs far from here."""

from __future__ import annotations

import argparse
import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from stepwise import job_of, run_all, wait_for

from finetune.engine import locks
from finetune.experiments import execute, executors
from finetune.experiments.execute import Job, Options, Outcome
from finetune.experiments.executors import Executor


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("slurm_partition=gpu", r"'slurm_partition=gpu'; allowed: .* like timeout_min=600"),
        ("timeout_min=5 cluster=debug", r"allowed: .*cluster=local tries it here"),
        ("timeout_min=5 gpus", r"Parameter 'gpus' need to be prefixed by an executor name"),
        ("timeout_min=5h", r"\"timeout_min\" expected type <class 'int'> \(but value: \"5h\"\)"),
    ],
)
def test_options_that_submitit_does_not_know_are_refused(
    words: str, message: str, tmp_path: Path, srun: Path
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        executors.slurm(words.split(), tmp_path, {}, None)
    assert "\n" not in str(error.value)


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What submitit takes for a sign that slurm is here."""
    pytest.importorskip("submitit")
    path = tmp_path / "bin" / "srun"
    path.parent.mkdir()
    path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    return path


def given(folder: Path, executor: str, **others: object) -> argparse.Namespace:
    named = {"executor_options": None, "processes": None, "threads": None} | others
    return argparse.Namespace(executor=executor, output_dir=folder, **named)


def test_options_reach_slurm_with_their_types(tmp_path: Path, srun: Path) -> None:
    words = ["timeout_min=90", "slurm_time=2:00:00", 'slurm_setup=["module load cuda"]']
    words += ["slurm_max_num_timeout=9", "slurm_account=007", "slurm_exclusive=true"]
    asked = given(tmp_path, "slurm", executor_options=words, threads=3, processes=5)
    with executors.opened(asked) as executor:
        assert executor._max_workers == 5
        slurm = inspect.getclosurevars(executor._call).nonlocals["jobs"]._executor
    parameters = {"setup": ["module load cuda"], "account": "007", "exclusive": True}
    expected = {"time": "2:00:00", "cpus_per_task": 3, **parameters}
    assert slurm.parameters == expected
    assert slurm.max_num_timeout == 9


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("ray", None, r"executor is 'ray'; allowed: local, dask://HOST:PORT or slurm"),
        ("dask://", None, r"executor is 'dask://'; allowed: local"),
        ("dask://here", None, r"executor is 'dask://here'; allowed: a cluster.*missing port"),
        ("slurm", ["timeout_min=5"], r"where slurm is, .*cluster=local tries it here\..*srun"),
        ("local", ["a=b"], r"executor_options is \['a=b'\]; allowed: None"),
    ],
)
def test_an_executor_that_is_none_is_refused(
    place: str,
    options: list[str] | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=message):
        executors.opened(given(tmp_path, place, executor_options=options))


def distant(call: Callable[[Job], Outcome]) -> Executor:
    """Calls something else instead of `execute.do`."""
    return Executor(lambda job, options: call(job), 1)


def test_results_that_are_seen_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, whose clients look again after a while."""
    run, lines = job_of(tmp_path, 1), list[str]()
    run.folder.mkdir(parents=True)

    def late(run: Job) -> Outcome:
        write = (run.folder / "all_results.json").write_text
        threading.Timer(0.3, write, ['{"settings": {"seed": 1}}']).start()
        return Outcome(execute.DONE, seconds=1.0)

    with distant(late) as executor:
        assert run_all([run], executor=executor, log=lines.append) == {}
    assert lines == ["[1/1] seed-1: done; 00:01"]
    monkeypatch.setattr(execute, "ARRIVAL", 0.1)
    with distant(lambda run: Outcome(execute.DONE)) as executor:
        never = job_of(tmp_path, 2)
        missing = run_all([never], executor=executor, log=lines.append)
    assert missing == {"seed-2": execute.FAILED}
    assert "has no results. Put output_dir on a file system that all machines share" in lines[-1]


def test_a_run_that_its_executor_has_lost_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    lost, other, lines = job_of(tmp_path, 1), job_of(tmp_path, 2), list[str]()

    def lose(run: Job) -> Outcome:
        if run is lost:
            raise RuntimeError("\n".join(f"line {i}" for i in range(30)))
        return execute.do(run, Options())

    with distant(lose) as executor:
        missing = run_all([lost, other], executor=executor, log=lines.append)
    assert missing == {"seed-1": execute.FAILED}
    assert lines[0].startswith("[1/2] seed-1: failed: RuntimeError: line 18\n    line 19\n")
    assert other.is_done()


def test_another_machine_needs_the_folder_and_begins_paths_where_they_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(job_of(tmp_path, 1), script=Path("script.py"))
    monkeypatch.chdir(tmp_path)
    options = Options()
    monkeypatch.chdir("/")
    outcome = execute.do(job, options)
    assert outcome.status == execute.FAILED
    assert f"does not see {job.folder}. Put output_dir on" in outcome.reason
    job.folder.mkdir(parents=True)
    assert execute.do(job, options).status == execute.DONE
    assert job.results()["settings"] == {"seed": 1}


def test_a_lost_workers_folder_is_waited_for(tmp_path: Path) -> None:
    job, options = job_of(tmp_path, 1), Options(owner="somebody")
    with ThreadPoolExecutor() as threads:
        with locks.held(job.folder):
            waiting = threads.submit(execute.do, job, options)
            stopped = threads.submit(execute.do, job, replace(options, owner="another"))
            wait_for(lambda: len(execute.RUNNING) == 2)
            assert execute.stop("another") == 1
            assert stopped.result().reason == "stopped"
            assert not waiting.done()
        assert waiting.result().status == execute.DONE
    assert execute.do(job, Options(owner="another")).reason == "stopped"
    assert not execute.RUNNING
