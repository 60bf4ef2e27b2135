"""Executors: their flags and options, what any of them may do, and runs far from here."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import glue_stand_in
import pytest
from stepwise import run_of, wait_for

from finetune import sweep
from finetune.engine import locks
from finetune.experiments import executors, pool, work
from finetune.experiments.clusters import Slurm
from finetune.experiments.runs import Run
from finetune.experiments.work import Options, Outcome


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("slurm_partition=gpu", r"'slurm_partition=gpu'; allowed: with timeout_min, the minutes"),
        ("timeout_min=5 cluster=debug", r"allowed: .*cluster slurm or local\. Like timeout_min="),
        ("timeout_min=5 gpus", r"executor_options is 'gpus'; allowed: NAME=VALUE\. Like"),
        ("timeout_min=5 gpu=1", r"Parameter 'gpu' need to be prefixed by an executor name"),
        ("timeout_min=5 slurm_gpu=1", r"Unknown argument 'gpu'.*Valid arguments: .*gpus_per_node"),
        ("timeout_min=5h", r"\"timeout_min\" expected type <class 'int'> \(but value: \"5h\"\)"),
        ("timeout_min=5 tasks_per_node=2", r"tasks_per_node=2'; allowed: one task a job.*launch"),
    ],
)
def test_options_that_submitit_does_not_know_are_refused(
    words: str, message: str, tmp_path: Path, srun: Path
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Slurm(words.split(), tmp_path, {}, None)
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
        slurm = executor._jobs._executor
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
        ValueError, match=r"where slurm is \(.*srun.*\)\..*submitted, or try it here"
    ):
        executors.opened(given(tmp_path, "slurm", executor_options=["timeout_min=5"]))


def test_any_executor_will_do(tmp_path: Path) -> None:
    wanted = [run_of(tmp_path, seed) for seed in range(2)]
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as executor:
        assert pool.execute(wanted, executor=executor, say=str) == {}
    assert all(run.is_done() for run in wanted)


class Distant(ThreadPoolExecutor):
    """Calls something else instead of `work.do`."""

    def __init__(self, do: Callable[[Run], Outcome]) -> None:
        super().__init__(1)
        self.do = do

    def submit(self, do, /, run, options):
        return super().submit(self.do, run)


def test_results_that_are_seen_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, whose clients look again after a while."""
    run, lines = run_of(tmp_path, 1), list[str]()
    run.folder.mkdir(parents=True)

    def late(run: Run) -> Outcome:
        write = (run.folder / "all_results.json").write_text
        threading.Timer(0.3, write, ['{"settings": {"seed": 1}}']).start()
        return Outcome(work.DONE, seconds=1.0)

    with Distant(late) as executor:
        assert pool.execute([run], executor=executor, say=lines.append) == {}
    assert lines == ["[1/1] seed-1: done; 00:01"]
    monkeypatch.setattr(pool, "ARRIVAL", 0.1)
    with Distant(lambda run: Outcome(work.DONE)) as executor:
        never = run_of(tmp_path, 2)
        missing = pool.execute([never], executor=executor, say=lines.append)
    assert missing == {"seed-2": work.FAILED}
    assert "has no results. Put output_dir on a file system that all machines share" in lines[-1]


def test_a_run_that_its_executor_has_lost_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    lost, other, lines = run_of(tmp_path, 1), run_of(tmp_path, 2), list[str]()

    def lose(run: Run) -> Outcome:
        if run is lost:
            raise RuntimeError("\n".join(f"line {i}" for i in range(30)))
        return work.do(run, Options())

    with Distant(lose) as executor:
        missing = pool.execute([lost, other], executor=executor, say=lines.append)
    assert missing == {"seed-1": work.FAILED}
    assert lines[0].startswith("[1/2] seed-1: failed: RuntimeError: line 18\n    line 19\n")
    assert other.is_done()


def test_another_machine_needs_the_folder_and_begins_paths_where_they_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, 1)
    relative = replace(run, script=Path("script.py"), folder=run.folder.relative_to(tmp_path))
    options = Options(home=tmp_path)
    monkeypatch.chdir("/")
    outcome = work.do(relative, options)
    assert outcome.status == work.FAILED
    assert f"does not see {run.folder}. Put output_dir on" in outcome.reason
    run.folder.mkdir(parents=True)
    assert work.do(relative, options).status == work.DONE
    assert run.results()["settings"] == {"seed": 1}


def test_a_lost_workers_folder_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, options = run_of(tmp_path, 1), Options(home=tmp_path, asker="somebody")
    with ThreadPoolExecutor() as executor:
        with locks.held(run.folder):
            waiting = executor.submit(work.do, run, options)
            stopped = executor.submit(work.do, run, replace(options, asker="another"))
            wait_for(lambda: len(work.RUNNING) == 2)
            assert work.stop("another") == 1
            assert stopped.result().reason == "stopped"
            assert not waiting.done()
        assert waiting.result().status == work.DONE
    assert work.do(run_of(tmp_path, 3), Options(asker="another")).reason == "stopped"
    monkeypatch.setattr(work, "LOST", 0.0)
    run = run_of(tmp_path, 2)
    with locks.held(run.folder):
        assert "which works on it" in work.do(run, options).reason
    assert not work.RUNNING
