"""Many runs: resumed, shared between processes, gone on after failures, ended with their parent."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from stepwise import run_all, wait_for

from finetune.engine import locks
from finetune.errors import Refused
from finetune.experiments import execute, executors
from finetune.experiments.execute import Job, Options

# Does what a run does to its folder, without the training.
FAKE = """
import json, os, sys, time
from pathlib import Path

import yaml

words = sys.argv[1:]
given = yaml.safe_load(Path(words[words.index("--recipe") + 1]).read_text())
out = Path(given["output_dir"])
print("begins", words[2:] == ["--resume_from_checkpoint", "last"], flush=True)
if given.get("do") == "fail" and not (out / "mended").exists():
    print("Training 10%\\rTraining 20%\\rTraining 30%")
    sys.exit("the disk is full")
with (out.parent / "calls.txt").open("a") as calls:
    calls.write(out.name + "\\n")
if given.get("do") == "trained":
    (out / "train_log.jsonl").touch()
if given.get("do") in ("column", "trained", given.get("variant", "none")):
    print("error: column is 'x'; allowed: y. Mend it.")
    sys.exit(2)
if given.get("do") == "wait" and not (out / "began").exists():
    (out / "step_5").mkdir(exist_ok=True)
    (out / "step_5" / "manifest.json").touch()
    (out / "began").touch()
    time.sleep(600)
(out / "model.safetensors").write_text("weights")
(out / "step_9").mkdir(exist_ok=True)
threads = os.environ.get("OMP_NUM_THREADS")
results = {"settings": {"seed": given["seed"]}, "threads": threads}
(out / "all_results.json").write_text(json.dumps(results))
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    return path


def job_of(script: Path, seed: int, do: str = "", name: str = "") -> Job:
    folder = script.parent / "out" / (name or f"seed-{seed}")
    return Job(folder.name, script, folder, {"seed": seed, "do": do}, {"seed": seed})


def test_runs_are_done_once_and_leave_no_weights(fake: Path) -> None:
    wanted = [job_of(fake, seed) for seed in range(3)]
    lines: list[str] = []
    with executors.local(executors.slots(2, 3)) as executor:
        assert run_all(wanted, executor=executor, log=lines.append) == {}
    assert sorted(line[:5] for line in lines) == ["[1/3]", "[2/3]", "[3/3]"]
    for run in wanted:
        assert run.results() == {"settings": run.settings, "threads": "3"}
        assert run.record()["wall_seconds"] > 0
        assert not (run.folder / "model.safetensors").exists()
        assert not (run.folder / "step_9").exists()
    before = (wanted[0].folder / execute.LOG).read_text()
    assert "begins False" in before
    lines.clear()
    assert run_all(wanted, log=lines.append) == {}
    assert lines == ["3 of 3 runs were done before"]
    assert (wanted[0].folder / execute.LOG).read_text() == before


def test_weights_are_removed_once(fake: Path) -> None:
    run = job_of(fake, 1)
    run_all([run])
    weights = run.folder / "model.safetensors"
    weights.touch()  # by somebody who trains here again
    run_all([run])
    assert weights.exists()
    record = run.record()
    del record[execute.CLOSED]  # as of a run whose parent was killed before it could clean up
    (run.folder / execute.RECORD).write_text(json.dumps(record))
    lines: list[str] = []
    run_all([run], Options(keep_models=True), log=lines.append)
    assert weights.exists()
    assert lines == ["1 of 1 runs were done before"]
    run_all([run])
    assert not weights.exists()
    kept = job_of(fake, 2)
    for keep_models in (True, False):  # the run was started with keeping
        run_all([kept], Options(keep_models=keep_models))
        assert (kept.folder / "model.safetensors").exists()


def test_a_failed_run_is_told_with_its_log_and_the_others_go_on(fake: Path) -> None:
    wanted = [job_of(fake, 0, "fail"), job_of(fake, 1)]
    lines: list[str] = []
    assert run_all(wanted, log=lines.append) == {"seed-0": execute.FAILED}
    told = "\n".join(lines)
    assert "failed with exit code 1" in told
    assert "    the disk is full" in told
    assert "Training 30%" in told
    assert "Training 20%" not in told
    assert wanted[1].is_done()
    (wanted[0].folder / "mended").touch()
    assert run_all(wanted) == {}


@pytest.mark.parametrize(
    ("asked", "started"),
    [
        (["column none cola", "column gfsa cola", "column plat cola"], 1),
        (["column gfsa cola", "column gfsa cola", "column plat cola", "column xsa cola"], 3),
        (["column none cola", "column none mrpc", "column gfsa cola"], 2),
        (["column none cola", "ok none mrpc", "column gfsa cola"], None),
        (["gfsa gfsa cola", "ok none cola", "ok plat cola"], None),  # that filter's own mistake
        (["trained none cola", "ok gfsa cola", "ok plat cola"], None),  # of one seed, perhaps
    ],
)
def test_what_every_run_is_refused_for_is_met_once(
    fake: Path, asked: list[str], started: int | None
) -> None:
    """Here a word of what is wrong, variant and task of each run; others go on to the last."""
    wanted = []
    for seed, words in enumerate(asked):
        do, variant, task = words.split()
        run = job_of(fake, seed, do)
        wanted.append(replace(run, flags=run.flags | {"variant": variant, "task_name": task}))
    if started is None:
        missing = run_all(wanted)
        assert len(missing) == sum(not words.startswith("ok") for words in asked)
    else:
        with pytest.raises(Refused, match=r"every other run: error: column is 'x'; allowed: y\."):
            run_all(wanted)
    calls = (fake.parent / "out" / "calls.txt").read_text().splitlines()
    assert len(calls) == (started or len(wanted))


def test_a_run_with_other_settings_is_refused_before_anything_starts(fake: Path) -> None:
    done = job_of(fake, 1, name="cell")
    run_all([done])
    fresh = job_of(fake, 5)
    with pytest.raises(ValueError, match=r"cell.*seed: 1 -> 2.*remove that folder"):
        run_all([fresh, job_of(fake, 2, name="cell")])
    assert not fresh.folder.exists()


def test_an_unfinished_run_with_other_settings_is_refused_if_it_has_checkpoints(
    fake: Path,
) -> None:
    begun = job_of(fake, 1, name="cell")
    begun.folder.mkdir(parents=True)
    (begun.folder / execute.RECORD).write_text(json.dumps({"settings": {"seed": 1}}))
    other = job_of(fake, 2, name="cell")
    assert other.faults() == []  # nothing is lost when it begins again
    (begun.folder / "step_3").mkdir()
    assert other.faults() == []  # it is unfinished
    (begun.folder / "step_3" / "manifest.json").touch()
    assert other.faults() == ["seed: 1 -> 2"]
    assert begun.faults() == []


def execute_one(run: Job) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_all([run])


def parent(run: Job) -> multiprocessing.Process:
    """Another process that executes the run, which has begun."""
    process = multiprocessing.get_context("fork").Process(target=execute_one, args=(run,))
    process.start()
    wait_for((run.folder / "began").exists)
    return process


def child_of(run: Job) -> int:
    return int((run.folder / locks.LOCK).read_text().split()[1])


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_an_orphan_keeps_its_folder_until_it_ends(fake: Path) -> None:
    run, other = job_of(fake, 1, "wait"), job_of(fake, 2)
    process, child = parent(run), child_of(run)
    process.kill()
    process.join(200)
    lines: list[str] = []
    missing = run_all([run, other], log=lines.append)
    assert missing == {"seed-1": execute.ELSEWHERE}
    assert f"left to process {child} on" in "\n".join(lines)
    assert other.is_done()
    os.kill(child, signal.SIGKILL)
    while is_alive(child):
        time.sleep(0.02)
    assert run_all([run]) == {}


def test_an_interrupt_ends_all_that_run(fake: Path) -> None:
    wanted = [job_of(fake, seed, "wait") for seed in (1, 2)]

    def interrupt(run: Job) -> str:
        for other in wanted:
            wait_for((other.folder / "began").exists)
        raise KeyboardInterrupt

    first = job_of(fake, 3)
    with pytest.raises(KeyboardInterrupt), executors.local([{}] * 3) as executor:
        run_all([*wanted, first], executor=executor, log=str, summary=interrupt)
    assert not any(is_alive(child_of(run)) for run in wanted)
    assert not execute.RUNNING
    assert wanted[0].command()[-2:] == ["--resume_from_checkpoint", "last"]
    assert run_all(wanted[:1]) == {}
    assert "begins True" in (wanted[0].folder / execute.LOG).read_text()


def test_a_damaged_file_of_a_run_is_named(fake: Path) -> None:
    run = job_of(fake, 1)
    run_all([run])
    for name in ("all_results.json", "run.json"):
        (run.folder / name).write_text("{")
        with pytest.raises(ValueError, match=rf"{name} is 'damaged'.*run is done again"):
            run_all([run])
        (run.folder / name).unlink()


def test_a_run_that_measured_more_than_is_asked_is_as_good(fake: Path) -> None:
    run = job_of(fake, 1)
    run.folder.mkdir(parents=True)
    settings = {"seed": 1, "metric": ["f1", "own.py"]}
    (run.folder / "all_results.json").write_text(json.dumps({"settings": settings}))
    for asked in (None, ["f1"], ["own.py", "f1"]):
        assert replace(run, settings={"seed": 1, "metric": asked}).faults() == []
    (fault,) = replace(run, settings={"seed": 1, "metric": ["recall"]}).faults()
    assert fault == "metric: ['f1', 'own.py'] -> ['recall']"
    (run.folder / "all_results.json").write_text('{"settings": {"seed": 1}}')
    assert replace(run, settings={"seed": 1, "metric": None}).faults() == []
    (fault,) = replace(run, settings={"seed": 1, "metric": ["f1"]}).faults()
    assert fault == "metric: None -> ['f1']"


def test_slots_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_visible_gpus", lambda: [])
    monkeypatch.setattr(executors.torch, "get_num_threads", lambda: 7)
    assert executors.slots(None, None) == [{}]
    assert [s["OMP_NUM_THREADS"] for s in executors.slots(3, None)] == ["2"] * 3
    assert [s["OMP_NUM_THREADS"] for s in executors.slots(2, 5)] == ["5"] * 2
    monkeypatch.setattr(executors, "_visible_gpus", lambda: ["4", "6"])
    assert [s["CUDA_VISIBLE_DEVICES"] for s in executors.slots(None, None)] == ["4", "6"]
    assert [s["CUDA_VISIBLE_DEVICES"] for s in executors.slots(3, 1)] == ["4", "6", "4"]
    assert [s["CUDA_VISIBLE_DEVICES"] for s in executors.slots(1, None)] == ["4,6"]
