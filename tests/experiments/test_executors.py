"""Executors: their flags and options, what any of them may do, and runs far from here."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import glue_stand_in
import pytest
from stepwise import job_of, run_all, wait_for

from finetune import sweep
from finetune.engine import locks
from finetune.experiments import execute, executors
from finetune.experiments.execute import Job, Options, Outcome
from finetune.experiments.executors import Executor


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("slurm_partition=gpu", r"'slurm_partition=gpu'; allowed: with timeout_min, the minutes"),
        ("timeout_min=5 cluster=debug", r"allowed: .*cluster slurm or local\. Like timeout_min="),
        ("timeout_min=5 gpus", r"executor_options is 'gpus'; allowed: NAME=VALUE\. Like"),
        ("timeout_min=5 gpu=1", r"Parameter 'gpu' need to be prefixed by an executor name"),
        ("timeout_min=5 slurm_gpu=1", r"Unknown argument 'gpu'.*Valid arguments: .*gpus_per_node"),
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
        assert executor.at_once == 5
        slurm = inspect.getclosurevars(executor._call).nonlocals["jobs"]._executor
    parameters = {"setup": ["module load cuda"], "account": "007", "exclusive": True}
    expected = {"time": "2:00:00", "cpus_per_task": 3, **parameters}
    assert slurm.parameters == expected
    assert slurm.max_num_timeout == 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ray"], r"executor is 'ray'; allowed: local, dask://HOST:PORT or slurm\. HOST:PORT is"),
        (["dask://here"], r"executor is 'dask://here'; allowed: local"),
        (["dask://here:1/x"], r"executor is 'dask://here:1/x'; allowed: local"),
        (["local", "--executor_options", "a=b"], r"executor_options is \['a=b'\]; allowed: None"),
        (["dask://h:1", "--processes", "2"], r"processes is 2; allowed: None with dask://h:1\."),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(
    words: list[str], message: str, tmp_path: Path
) -> None:
    folder = glue_stand_in.save(tmp_path)
    with pytest.raises(ValueError, match=message):
        sweep.main(glue_stand_in.argv(folder, "order: [2]", "--dry_run", "--executor", *words))


@pytest.mark.parametrize(
    ("package", "word", "extra"),
    [("distributed", "dask://h:1", "dask"), ("submitit", "slurm", "slurm")],
)
def test_without_an_extra_the_error_says_how_to_get_it(
    package: str, word: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"pip install -e '\.\[{extra}\]' "):
        executors.opened(given(tmp_path, word, executor_options=["timeout_min=5"]))


def test_without_slurm_the_error_says_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        ValueError, match=r"allowed: .* where slurm is; cluster=local tries it here\..*srun"
    ):
        executors.opened(given(tmp_path, "slurm", executor_options=["timeout_min=5"]))


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
        assert run_all([run], executor=executor, say=lines.append) == {}
    assert lines == ["[1/1] seed-1: done; 00:01"]
    monkeypatch.setattr(execute, "ARRIVAL", 0.1)
    with distant(lambda run: Outcome(execute.DONE)) as executor:
        never = job_of(tmp_path, 2)
        missing = run_all([never], executor=executor, say=lines.append)
    assert missing == {"seed-2": execute.FAILED}
    assert "has no results. Put output_dir on a file system that all machines share" in lines[-1]


def test_a_run_that_its_executor_has_lost_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    lost, other, lines = job_of(tmp_path, 1), job_of(tmp_path, 2), list[str]()

    def lose(run: Job) -> Outcome:
        if run is lost:
            raise RuntimeError("\n".join(f"line {i}" for i in range(30)))
        return execute.do(run, Options())

    with distant(lose) as executor:
        missing = run_all([lost, other], executor=executor, say=lines.append)
    assert missing == {"seed-1": execute.FAILED}
    assert lines[0].startswith("[1/2] seed-1: failed: RuntimeError: line 18\n    line 19\n")
    assert other.is_done()


def test_another_machine_needs_the_folder_and_begins_paths_where_they_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = job_of(tmp_path, 1)
    relative = replace(run, script=Path("script.py"), folder=run.folder.relative_to(tmp_path))
    options = Options(home=tmp_path)
    monkeypatch.chdir("/")
    outcome = execute.do(relative, options)
    assert outcome.status == execute.FAILED
    assert f"does not see {run.folder}. Put output_dir on" in outcome.reason
    run.folder.mkdir(parents=True)
    assert execute.do(relative, options).status == execute.DONE
    assert run.results()["settings"] == {"seed": 1}


def test_a_lost_workers_folder_is_waited_for(tmp_path: Path) -> None:
    job, options = job_of(tmp_path, 1), Options(home=tmp_path, asker="somebody")
    with ThreadPoolExecutor() as threads:
        with locks.held(job.folder):
            waiting = threads.submit(execute.do, job, options)
            stopped = threads.submit(execute.do, job, replace(options, asker="another"))
            wait_for(lambda: len(execute.RUNNING) == 2)
            assert execute.stop("another") == 1
            assert stopped.result().reason == "stopped"
            assert not waiting.done()
        assert waiting.result().status == execute.DONE
    assert execute.do(job_of(tmp_path, 3), Options(asker="another")).reason == "stopped"
    assert not execute.RUNNING
