"""Many runs: resumed, shared between processes, gone on after failures, ended with their parent."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from finetune.comparison import arms, grid, pool, runs
from finetune.comparison.runs import Run
from finetune.comparison.scripts import Script, deciding

GLUE = Script(Path(grid.__file__).parents[1] / "glue.py")
# Does what a run does to its folder, without the training.
FAKE = """
import json, os, sys, time
from pathlib import Path

words = sys.argv[1:]
given = {name.removeprefix("--"): value for name, value in zip(words, words[1:])}
out = Path(given["output_dir"])
print("begins", "resume_from_checkpoint" in given, flush=True)
if given.get("do") == "fail" and not (out / "mended").exists():
    print("Training 10%\\rTraining 20%\\rTraining 30%")
    sys.exit("the disk is full")
if given.get("do") == "wait" and not (out / "began").exists():
    (out / "step_5").mkdir(exist_ok=True)
    (out / "began").touch()
    time.sleep(60)
(out / "model.safetensors").write_text("weights")
(out / "step_9").mkdir(exist_ok=True)
threads = os.environ.get("OMP_NUM_THREADS")
results = {"settings": {"seed": int(given["seed"])}, "threads": threads}
(out / "all_results.json").write_text(json.dumps(results))
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    return path


def run_of(script: Path, seed: int, *flags: str, name: str = "") -> Run:
    folder = script.parent / "out" / (name or f"seed-{seed}")
    words = ("--seed", str(seed), *flags)
    return Run(folder.name, script, folder, words, {"seed": seed})


def test_runs_are_done_once_and_leave_no_weights(fake: Path) -> None:
    wanted = [run_of(fake, seed) for seed in range(3)]
    lines: list[str] = []
    assert pool.execute(wanted, pool.Options(pool.slots(2, 3)), say=lines.append) == {}
    assert sorted(line[:5] for line in lines) == ["[1/3]", "[2/3]", "[3/3]"]
    for run in wanted:
        assert run.results() == {"settings": run.settings, "threads": "3"}
        assert run.record()["wall_seconds"] > 0
        assert not (run.folder / "model.safetensors").exists()
        assert not (run.folder / "step_9").exists()
    before = (wanted[0].folder / runs.LOG).read_text()
    assert "begins False" in before
    lines.clear()
    assert pool.execute(wanted, pool.Options(), say=lines.append) == {}
    assert lines == ["3 of 3 runs were done before"]
    assert (wanted[0].folder / runs.LOG).read_text() == before


def test_weights_are_kept_when_asked_and_those_of_other_runs_always(fake: Path) -> None:
    kept, own = run_of(fake, 1), run_of(fake, 2)
    pool.execute([kept], pool.Options(keep_models=True), say=str)
    own.folder.mkdir()
    for name, text in (("all_results.json", '{"settings": {"seed": 2}}'), ("a.safetensors", "w")):
        (own.folder / name).write_text(text)
    pool.execute([kept, own], pool.Options(), say=str)
    assert (kept.folder / "model.safetensors").exists()
    assert (own.folder / "a.safetensors").exists()


def test_weights_are_removed_once(fake: Path) -> None:
    run = run_of(fake, 1)
    pool.execute([run], pool.Options(), say=str)
    weights = run.folder / "model.safetensors"
    weights.touch()  # by somebody who trains here again
    pool.execute([run], pool.Options(), say=str)
    assert weights.exists()
    record = run.record()
    del record[runs.CLOSED]  # as of a run whose parent was killed before it could clean up
    (run.folder / runs.RECORD).write_text(json.dumps(record))
    lines: list[str] = []
    pool.execute([run], pool.Options(keep_models=True), say=lines.append)
    assert weights.exists()
    assert lines == ["1 of 1 runs were done before"]
    pool.execute([run], pool.Options(), say=str)
    assert not weights.exists()
    pool.execute([run], pool.Options(keep_models=True), say=lines.append)
    assert lines[1].startswith("Of 1 finished runs the weights are gone")


def test_a_failed_run_is_told_with_its_log_and_the_others_go_on(fake: Path) -> None:
    wanted = [run_of(fake, 0, "--do", "fail"), run_of(fake, 1)]
    lines: list[str] = []
    assert pool.execute(wanted, pool.Options(), say=lines.append) == {"seed-0": pool.FAILED}
    told = "\n".join(lines)
    assert "failed with exit code 1" in told
    assert "    the disk is full" in told
    assert "Training 30%" in told
    assert "Training 20%" not in told
    assert wanted[1].is_done()
    (wanted[0].folder / "mended").touch()
    assert pool.execute(wanted, pool.Options(), say=str) == {}


def test_a_run_with_other_settings_is_refused_before_anything_starts(fake: Path) -> None:
    done = run_of(fake, 1, name="cell")
    pool.execute([done], pool.Options(), say=str)
    fresh = run_of(fake, 5)
    with pytest.raises(ValueError, match=r"cell.*seed: 1 -> 2.*remove that folder"):
        pool.execute([fresh, run_of(fake, 2, name="cell")], pool.Options(), say=str)
    assert not fresh.folder.exists()


def test_an_unfinished_run_with_other_settings_is_refused_if_it_has_checkpoints(
    fake: Path,
) -> None:
    begun = run_of(fake, 1, name="cell")
    begun.folder.mkdir(parents=True)
    (begun.folder / runs.RECORD).write_text(json.dumps({"settings": {"seed": 1}}))
    other = run_of(fake, 2, name="cell")
    assert other.faults() == []  # nothing is lost when it begins again
    (begun.folder / "step_3").mkdir()
    assert other.faults() == ["seed: 1 -> 2"]
    assert begun.faults() == []


def wait_for(path: Path, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)


def execute_one(run: Run) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool.execute([run], pool.Options(), say=str)


def parent(run: Run) -> multiprocessing.Process:
    """Another process that executes the run, which has begun."""
    process = multiprocessing.get_context("fork").Process(target=execute_one, args=(run,))
    process.start()
    wait_for(run.folder / "began")
    return process


def child_of(run: Run) -> int:
    return int((run.folder / runs.LOCK).read_text().split()[1])


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_an_interrupt_ends_the_run_which_then_resumes(fake: Path) -> None:
    run = run_of(fake, 1, "--do", "wait")
    process, child = parent(run), child_of(run)
    assert is_alive(child)
    process.terminate()
    process.join(20)
    assert process.exitcode != 0
    assert not is_alive(child)
    assert run.command()[-2:] == ["--resume_from_checkpoint", "last"]
    assert pool.execute([run], pool.Options(), say=str) == {}
    assert "begins True" in (run.folder / runs.LOG).read_text()


def test_an_orphan_keeps_its_folder_until_it_ends(fake: Path) -> None:
    run, other = run_of(fake, 1, "--do", "wait"), run_of(fake, 2)
    process, child = parent(run), child_of(run)
    process.kill()
    process.join(20)
    lines: list[str] = []
    missing = pool.execute([run, other], pool.Options(), say=lines.append)
    assert missing == {"seed-1": pool.ELSEWHERE}
    assert f"left to process {child} on" in "\n".join(lines)
    assert other.is_done()
    os.kill(child, signal.SIGKILL)
    while is_alive(child):
        time.sleep(0.02)
    assert pool.execute([run], pool.Options(), say=str) == {}


def test_slots_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_visible_gpus", lambda: [])
    monkeypatch.setattr(pool, "_cores", lambda: 7)
    assert pool.slots(None, None) == [{}]
    assert [s["OMP_NUM_THREADS"] for s in pool.slots(3, None)] == ["2"] * 3
    assert [s["OMP_NUM_THREADS"] for s in pool.slots(2, 5)] == ["5"] * 2
    monkeypatch.setattr(pool, "_visible_gpus", lambda: ["4", "6"])
    assert [s["CUDA_VISIBLE_DEVICES"] for s in pool.slots(None, None)] == ["4", "6"]
    assert [s["CUDA_VISIBLE_DEVICES"] for s in pool.slots(3, 1)] == ["4", "6", "4"]
    assert [s["CUDA_VISIBLE_DEVICES"] for s in pool.slots(1, None)] == ["4,6"]


COMMON = ("--model_name_or_path", "m", "--learning_rate", "1e-3")


def planned(tmp_path: Path, *common: str, tasks: tuple[str, ...] = (), **choice) -> list[grid.Cell]:
    given = {"names": None, "path": None, "own_flags": (), "baseline": None} | choice
    chosen = arms.chosen(*(given[name] for name in ("names", "path", "own_flags", "baseline")))
    return grid.plan(GLUE, chosen, [3, 4], tasks, [*COMMON, *common], tmp_path)


def test_the_grid_goes_seed_by_seed_and_pairs_differ_in_their_arm_alone(tmp_path: Path) -> None:
    cells = planned(tmp_path, names=["gfsa", "none"], tasks=("cola", "mrpc"))
    assert [cell.run.name for cell in cells] == [
        f"{task}/{arm}/seed-{seed}"
        for seed in (3, 4)
        for task in ("cola", "mrpc")
        for arm in ("none", "gfsa")
    ]
    plain, filtered = cells[0].run.settings, cells[1].run.settings
    different = {n for n in plain | filtered if plain.get(n) != filtered.get(n)}
    own = {name for name, value in filtered.items() if name not in plain and value is not None}
    assert different == {"variant", *own}
    assert {"order", "w_K"} <= own
    assert plain["seed"] == 3
    assert plain["learning_rate"] == 1e-3
    assert cells[0].run.folder == tmp_path / "cola" / "none" / "seed-3"
    assert "output_dir" not in plain


def test_common_settings_of_a_variant_go_to_its_arms_alone(tmp_path: Path) -> None:
    common = ("--task_name", "cola", "--order", "5", "--p", "1.9", "--filter_learning_rate", "0.1")
    cells = planned(tmp_path, *common, names=["none", "gfsa", "plat", "laplacian"])
    found = {cell.arm: cell.run.settings for cell in cells[:4]}
    assert found["gfsa"]["order"] == 5
    assert found["plat"]["p"] in (1.9, [1.9])
    assert "order" not in found["plat"]
    rates = {name: settings["filter_learning_rate"] for name, settings in found.items()}
    assert rates == {"none": None, "gfsa": 0.1, "plat": None, "laplacian": None}


def test_arms_of_a_file_and_of_flags(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text("plain: {variant: none}\ngfsa: {order: 7}\nplat: {p: 2.0, trainable: p}\n")
    own = ["wide: --variant gfsa --order 9 --w_0 -1e-3", "plat: --eps 0.1"]
    cells = planned(
        tmp_path,
        *("--task_name", "cola"),
        names=["plat", "plain", "gfsa", "wide"],
        path=str(path),
        own_flags=own,
    )
    found = {cell.arm: cell.run.settings for cell in cells[:4]}
    assert list(found) == ["plain", "plat", "gfsa", "wide"]  # the baseline first
    assert (found["plat"]["trainable"], found["plat"]["eps"]) == (["p"], 0.1)
    assert (found["gfsa"]["order"], found["wide"]["order"], found["wide"]["w_0"]) == (7, 9, -0.001)


@pytest.mark.parametrize(
    ("choice", "common", "message"),
    [
        ({"names": ["none", "gfas"]}, (), r"variants is 'gfas'; allowed: none, .*gfsa"),
        ({"names": ["none"]}, (), r"two or more different names"),
        ({"names": ["none", "none"]}, (), r"two or more different names"),
        ({"names": ["none", "gfsa"], "baseline": "plat"}, (), r"baseline is 'plat'"),
        ({"own_flags": ["heat: --step 1"]}, (), r"variant_flags is 'heat: --step 1'"),
        ({"own_flags": ["gfsa: --w_0 'x"]}, (), r"variant_flags is .*Write it so, in quotes"),
        ({"path": "missing.yaml"}, (), r"arms is 'missing.yaml'; allowed: an existing YAML"),
        ({}, ("--seed", "3"), r"--seed is 'given'; allowed: flags that all runs can have"),
        ({}, ("--push_to_hub",), r"--push_to_hub"),
        ({}, ("--epochs", "3"), r"Arm none: .*--epochs"),
        (
            {"names": ["none", "plat"], "own_flags": ["plat: --filter_learning_rate 0.1"]},
            (),
            r"Arm plat: filter_learning_rate with variant plat is 0.1.*--trainable",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, choice: dict, common: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, "--task_name", "cola", *common, **choice)


def test_a_file_of_arms_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "arms.yaml").write_text("none: {order: [}")
    with pytest.raises(ValueError, match=r"arms is .*arms.yaml'; allowed: valid YAML"):
        arms.chosen(None, str(tmp_path / "arms.yaml"), (), None)


def test_an_unknown_script_is_refused() -> None:
    with pytest.raises(ValueError, match=r"script is 'train.py'; allowed: finetune/glue.py"):
        Script(Path("train.py"))


@pytest.mark.parametrize("path", sorted((GLUE.path.parent / "arms").glob("*.yaml")))
@pytest.mark.parametrize("family", ["glue", "lm", "code_classification"])
def test_shipped_arms_are_taken_by_every_script(path: Path, family: str) -> None:
    script = Script(GLUE.path.with_name(f"{family}.py"))
    for arm in arms.chosen(None, str(path), (), None):
        flags = arms.flags_for(arm, ["--task_name", "demo", "--model_name_or_path", "m"], script)
        settings = deciding(script.settings(flags))
        assert settings["variant"] == arm.name
