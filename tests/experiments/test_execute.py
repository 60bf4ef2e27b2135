"""Many runs: resumed, shared between processes, gone on after failures, ended with their parent."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from stepwise import made_job, run_all, wait_for

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
if given["model_name_or_path"] == "fail" and not (out / "mended").exists():
    print("Training 10%\\rTraining 20%\\rTraining 30%")
    sys.exit("the disk is full")
with (out.parent / "calls.txt").open("a") as calls:
    calls.write(out.name + "\\n")
if given["model_name_or_path"] == "trained":
    (out / "train_log.jsonl").touch()
if given["model_name_or_path"] in ("column", "trained"):
    print("error: column is 'x'; allowed: y. Mend it.")
    sys.exit(2)
if given["model_name_or_path"] == "wait" and not (out / "began").exists():
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


def job_of(script: Path, seed: int, do: str = "m", name: str = "", **flags: object) -> Job:
    return made_job(script, script.parent / "out" / (name or f"seed-{seed}"), do, seed, **flags)


def test_runs_are_done_once_and_leave_no_weights(fake: Path) -> None:
    wanted = [job_of(fake, seed) for seed in range(3)]
    lines: list[str] = []
    with executors.local(executors.slots(2, 3)) as executor:
        assert run_all(wanted, executor=executor, log=lines.append) == {}
    assert sorted(line[:5] for line in lines) == ["[1/3]", "[2/3]", "[3/3]"]
    for run in wanted:
        assert run.results() == {"settings": {"seed": run.seed}, "threads": "3"}
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
        (["column none", "ok gfsa", "ok plat"], 1),
        (["ok none", "column gfsa", "ok plat"], None),  # that filter's own mistake
        (["trained none", "column gfsa", "ok plat"], None),  # of one seed, perhaps
    ],
)
def test_a_run_that_is_refused_first_ends_all(
    fake: Path, asked: list[str], started: int | None
) -> None:
    """Here a word of what is wrong, and the variant of each run; others go on to the last."""
    wanted = []
    for seed, words in enumerate(asked):
        do, variant = words.split()
        wanted.append(job_of(fake, seed, do, variant=variant))
    if started is None:
        missing = run_all(wanted)
        assert len(missing) == sum(not words.startswith("ok") for words in asked)
    else:
        with pytest.raises(Refused, match=r"^seed-0 is refused: column is 'x'; allowed: y\."):
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


def test_a_run_ends_with_its_killed_comparison_and_goes_on_with_the_next(fake: Path) -> None:
    run = job_of(fake, 1, "wait")
    process, child = parent(run), child_of(run)
    process.kill()
    process.join(200)
    assert run_all([run]) == {}
    assert not is_alive(child)
    assert "begins True" in (run.folder / execute.LOG).read_text()


def test_a_run_that_another_comparison_does_is_awaited(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = job_of(fake, 1, "wait"), job_of(fake, 2)
    process, child = parent(run), child_of(run)
    with executors.local([{}] * 2) as executor, ThreadPoolExecutor() as threads:
        second = threads.submit(run_all, [run, other], executor=executor)
        wait_for(other.is_done)
        assert not second.done()
        os.kill(child, signal.SIGKILL)
        assert second.result(200) == {}
    process.join(200)
    assert f"seed-1: process {child} on " in capsys.readouterr().out
    assert "begins True" in (run.folder / execute.LOG).read_text()


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
        assert job_of(fake, 1, metric=asked).faults() == []
    (fault,) = job_of(fake, 1, metric=["recall"]).faults()
    assert fault == "metric: ['f1', 'own.py'] -> ['recall']"
    (run.folder / "all_results.json").write_text('{"settings": {"seed": 1}}')
    assert job_of(fake, 1).faults() == []
    (fault,) = job_of(fake, 1, metric=["f1"]).faults()
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
