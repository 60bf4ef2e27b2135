"""Many runs: resumed, shared between processes, gone on after failures, ended with their parent."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import warm

import hf_graphattn as ga
from finetune.engine import locks
from finetune.errors import Refused
from finetune.experiments import arms, executors, grid, metrics, pool, runs, work
from finetune.experiments.runs import Run
from finetune.experiments.scripts import Script, families
from finetune.experiments.work import Options
from hf_graphattn.diagnostics.palette import PRESETS

GLUE = Script(Path(grid.__file__).parents[1] / "glue.py")
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


def run_of(script: Path, seed: int, do: str = "", name: str = "") -> Run:
    folder = script.parent / "out" / (name or f"seed-{seed}")
    return Run(folder.name, script, folder, {"seed": seed, "do": do}, {"seed": seed})


def test_runs_are_done_once_and_leave_no_weights(fake: Path) -> None:
    wanted = [run_of(fake, seed) for seed in range(3)]
    lines: list[str] = []
    with executors.Local(executors.slots(2, 3)) as executor:
        assert pool.execute(wanted, executor=executor, say=lines.append) == {}
    assert sorted(line[:5] for line in lines) == ["[1/3]", "[2/3]", "[3/3]"]
    for run in wanted:
        assert run.results() == {"settings": run.settings, "threads": "3"}
        assert run.record()["wall_seconds"] > 0
        assert not (run.folder / "model.safetensors").exists()
        assert not (run.folder / "step_9").exists()
    before = (wanted[0].folder / runs.LOG).read_text()
    assert "begins False" in before
    lines.clear()
    assert pool.execute(wanted, say=lines.append) == {}
    assert lines == ["3 of 3 runs were done before"]
    assert (wanted[0].folder / runs.LOG).read_text() == before


def test_weights_are_kept_when_asked_and_those_of_other_runs_always(fake: Path) -> None:
    kept, own = run_of(fake, 1), run_of(fake, 2)
    pool.execute([kept], Options(keep_models=True), say=str)
    own.folder.mkdir()
    for name, text in (("all_results.json", '{"settings": {"seed": 2}}'), ("a.safetensors", "w")):
        (own.folder / name).write_text(text)
    pool.execute([kept, own], say=str)
    assert (kept.folder / "model.safetensors").exists()
    assert (own.folder / "a.safetensors").exists()


def test_weights_are_removed_once(fake: Path) -> None:
    run = run_of(fake, 1)
    pool.execute([run], say=str)
    weights = run.folder / "model.safetensors"
    weights.touch()  # by somebody who trains here again
    pool.execute([run], say=str)
    assert weights.exists()
    record = run.record()
    del record[runs.CLOSED]  # as of a run whose parent was killed before it could clean up
    (run.folder / runs.RECORD).write_text(json.dumps(record))
    lines: list[str] = []
    pool.execute([run], Options(keep_models=True), say=lines.append)
    assert weights.exists()
    assert lines == ["1 of 1 runs were done before"]
    pool.execute([run], say=str)
    assert not weights.exists()
    pool.execute([run], Options(keep_models=True), say=lines.append)
    assert lines[1].startswith("Of 1 finished runs the weights are gone")


def test_a_failed_run_is_told_with_its_log_and_the_others_go_on(fake: Path) -> None:
    wanted = [run_of(fake, 0, "fail"), run_of(fake, 1)]
    lines: list[str] = []
    assert pool.execute(wanted, say=lines.append) == {"seed-0": work.FAILED}
    told = "\n".join(lines)
    assert "failed with exit code 1" in told
    assert "    the disk is full" in told
    assert "Training 30%" in told
    assert "Training 20%" not in told
    assert wanted[1].is_done()
    (wanted[0].folder / "mended").touch()
    assert pool.execute(wanted, say=str) == {}


REFUSED = """
import sys
from pathlib import Path

import yaml

from finetune.errors import exit_with, refusal


def main():
    given = yaml.safe_load(Path(sys.argv[sys.argv.index("--recipe") + 1]).read_text())
    out = Path(given["output_dir"])
    with (out.parent / "calls.txt").open("a") as calls:
        calls.write(given["do"] + "\\n")
    if given["do"] == "trained":
        (out / "train_log.jsonl").touch()
    if given["do"] in ("column", "trained", given.get("variant")):
        raise refusal("column", "x", "y", "Mend it.")
    (out / "all_results.json").write_text('{"settings": {"seed": %s}}' % given["seed"])


exit_with(main)
"""


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
    tmp_path: Path, asked: list[str], started: int | None
) -> None:
    """Here a word of what is wrong, variant and task of each run; others go on to the last."""
    script = tmp_path / "fake.py"
    script.write_text(REFUSED)
    wanted = []
    for seed, words in enumerate(asked):
        do, variant, task = words.split()
        run = run_of(script, seed, do)
        wanted.append(replace(run, flags=run.flags | {"variant": variant, "task_name": task}))
    options = Options([warm.python("finetune")])
    if started is None:
        missing = pool.execute(wanted, options, say=str)
        assert len(missing) == sum(not words.startswith("ok") for words in asked)
    else:
        with pytest.raises(Refused, match=r"every other run: error: column is 'x'; allowed: y\."):
            pool.execute(wanted, options, say=str)
    calls = (tmp_path / "out" / "calls.txt").read_text().splitlines()
    assert len(calls) == (started or len(wanted))


def test_a_run_with_other_settings_is_refused_before_anything_starts(fake: Path) -> None:
    done = run_of(fake, 1, name="cell")
    pool.execute([done], say=str)
    fresh = run_of(fake, 5)
    with pytest.raises(ValueError, match=r"cell.*seed: 1 -> 2.*remove that folder"):
        pool.execute([fresh, run_of(fake, 2, name="cell")], say=str)
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
    assert other.faults() == []  # it is unfinished
    (begun.folder / "step_3" / "manifest.json").touch()
    assert other.faults() == ["seed: 1 -> 2"]
    assert begun.faults() == []


def wait_for(path: Path, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)


def execute_one(run: Run) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool.execute([run], say=str)


def parent(run: Run) -> multiprocessing.Process:
    """Another process that executes the run, which has begun."""
    process = multiprocessing.get_context("fork").Process(target=execute_one, args=(run,))
    process.start()
    wait_for(run.folder / "began")
    return process


def child_of(run: Run) -> int:
    return int((run.folder / locks.LOCK).read_text().split()[1])


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_an_interrupt_ends_the_run_which_then_resumes(fake: Path) -> None:
    run = run_of(fake, 1, "wait")
    process, child = parent(run), child_of(run)
    assert is_alive(child)
    process.terminate()
    process.join(200)
    assert process.exitcode != 0
    assert not is_alive(child)
    assert run.command()[-2:] == ["--resume_from_checkpoint", "last"]
    assert pool.execute([run], say=str) == {}
    assert "begins True" in (run.folder / runs.LOG).read_text()


def test_an_orphan_keeps_its_folder_until_it_ends(fake: Path) -> None:
    run, other = run_of(fake, 1, "wait"), run_of(fake, 2)
    process, child = parent(run), child_of(run)
    process.kill()
    process.join(200)
    lines: list[str] = []
    missing = pool.execute([run, other], say=lines.append)
    assert missing == {"seed-1": work.ELSEWHERE}
    assert f"left to process {child} on" in "\n".join(lines)
    assert other.is_done()
    os.kill(child, signal.SIGKILL)
    while is_alive(child):
        time.sleep(0.02)
    assert pool.execute([run], say=str) == {}


def test_an_interrupt_ends_all_that_run(fake: Path) -> None:
    wanted = [run_of(fake, seed, "wait") for seed in (1, 2)]

    def interrupt(run: Run) -> str:
        for other in wanted:
            wait_for(other.folder / "began")
        raise KeyboardInterrupt

    first = run_of(fake, 3)
    with pytest.raises(KeyboardInterrupt), executors.Local([{}] * 3) as executor:
        pool.execute([*wanted, first], executor=executor, say=str, shown=interrupt)
    assert not any(is_alive(child_of(run)) for run in wanted)
    assert not work.RUNNING


def test_a_run_can_be_done_by_another_process_of_a_pool(fake: Path) -> None:
    run = run_of(fake, 1)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor:
        outcome = executor.submit(work.do, run, Options(), {"OMP_NUM_THREADS": "5"}).result()
    assert outcome.status == work.DONE
    assert run.results()["threads"] == "5"
    assert run.record()["wall_seconds"] == outcome.seconds


def test_the_child_gets_one_file_that_its_script_reads_as_asked(tmp_path: Path) -> None:
    own = ["gfsa: --w_0 -1e-5 --trainable w_0 w_K --layers 0 -1", "plat: --p 1.5 2.5"]
    common = ("--task_name", "cola", "--mixed_precision", "no", "--pad_to_max_length")
    for cell in planned(tmp_path, *common, names=["none", "gfsa", "plat"], own_flags=own):
        run = cell.run
        run.folder.mkdir(parents=True)
        run.write_settings()
        _, script, *words = run.command()
        assert (script, words[0], len(words)) == (str(GLUE.path), "--recipe", 2)
        for asked in (words, run.command(in_full=True)[2:]):
            found = GLUE.schema.parse(asked)
            assert json.loads(json.dumps(found.deciding())) == run.settings
            assert found.train.output_dir == str(run.folder)


def test_a_damaged_file_of_a_run_is_named(fake: Path) -> None:
    run = run_of(fake, 1)
    pool.execute([run], say=str)
    for name in ("all_results.json", "run.json"):
        for text in ("{", "[]"):
            (run.folder / name).write_text(text)
            with pytest.raises(ValueError, match=rf"{name} is 'damaged'.*run is done again"):
                pool.execute([run], say=str)
        (run.folder / name).unlink()


def test_a_run_that_measured_more_than_is_asked_is_as_good(fake: Path) -> None:
    run = run_of(fake, 1)
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


@pytest.mark.parametrize(
    ("found", "asked", "faults"),
    [
        ((0.01, 8), None, []),
        ((0.01, 8), 0.01, []),
        ((0.01, 8), 5e-4, ["filter_learning_rate: 0.01 -> 0.0005"]),
        ((None, 0), None, []),
    ],
)
def test_runs_of_two_learning_rates_of_the_scalars_are_not_mixed(
    fake: Path, found: tuple[float | None, int], asked: float | None, faults: list[str]
) -> None:
    rates = {"learning_rate": 5e-4, "filter_learning_rate": asked}
    run = replace(run_of(fake, 1), settings=rates)
    run.folder.mkdir(parents=True)
    then = {"settings": rates | {"filter_learning_rate": found[0]}, "filter_scalars": found[1]}
    (run.folder / "all_results.json").write_text(json.dumps(then))
    assert run.faults() == faults


def test_slots_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_visible_gpus", lambda: [])
    monkeypatch.setattr(executors, "cpu_count", lambda: 7)
    assert executors.slots(None, None) == [{}]
    assert [s["OMP_NUM_THREADS"] for s in executors.slots(3, None)] == ["2"] * 3
    assert [s["OMP_NUM_THREADS"] for s in executors.slots(2, 5)] == ["5"] * 2
    monkeypatch.setattr(executors, "_visible_gpus", lambda: ["4", "6"])
    assert [s["CUDA_VISIBLE_DEVICES"] for s in executors.slots(None, None)] == ["4", "6"]
    assert [s["CUDA_VISIBLE_DEVICES"] for s in executors.slots(3, 1)] == ["4", "6", "4"]
    assert [s["CUDA_VISIBLE_DEVICES"] for s in executors.slots(1, None)] == ["4,6"]


COMMON = ("--model_name_or_path", "m", "--learning_rate", "1e-3")


def planned(tmp_path: Path, *common: str, tasks: tuple[str, ...] = (), **choice) -> list[grid.Cell]:
    given = {"names": None, "path": None, "own_flags": (), "baseline": None} | choice
    chosen = arms.chosen(**given, script=GLUE)
    flags = grid.common_flags(GLUE, [*COMMON, *common])
    return grid.plan(GLUE, chosen, [3, 4], tasks, flags, tmp_path)


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
    found = {cell.arm.name: cell.run.settings for cell in cells[:4]}
    assert found["gfsa"]["order"] == 5
    assert found["plat"]["p"] in (1.9, [1.9])
    assert "order" not in found["plat"]
    rates = {name: settings["filter_learning_rate"] for name, settings in found.items()}
    assert rates == {"none": None, "gfsa": 0.1, "plat": None, "laplacian": None}


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"train_file": "data/cola.csv"}, "cola"),
        ({"dataset_name": "user/reviews"}, "reviews"),
        ({"dataset_name": "data/reviews/"}, "reviews"),
    ],
)
def test_own_data_are_called_by_their_name(tmp_path: Path, data: dict[str, str], name: str) -> None:
    """Even if a task has that name, whose metrics they do not have; the folder stays the same."""
    chosen = arms.chosen(["none", "gfsa"], None, [], None, GLUE)
    cell, _ = grid.plan(GLUE, chosen, [0], [], {**data, "model_name_or_path": "m"}, tmp_path)
    assert (cell.task, cell.run.name) == (name, "run/none/seed-0")
    assert metrics.main_metric(cell) is None


def test_a_recipe_gives_common_flags_and_the_arms_own_win(tmp_path: Path) -> None:
    recipe, other = tmp_path / "recipe.yaml", tmp_path / "other.yaml"
    recipe.write_text(
        "{variant: gfsa, order: 4, w_0: -0.01, seed: 9, output_dir: x, task_name: cola,"
        " learning_rate: 0.5, filter_learning_rate: 0.2}"
    )
    other.write_text("{variant: gfsa, order: 8, weight_decay: 0.3}")
    common = ["--model_name_or_path", "m", "--recipe", str(recipe), "--weight_decay", "0.1"]
    flags = grid.common_flags(GLUE, common)
    assert not flags.keys() & {"variant", "seed", "output_dir", "recipe"}
    own = ["gfsa: --w_0 0.5", f"wide: --variant gfsa --recipe {other}"]
    chosen = arms.chosen(["none", "gfsa", "plat", "wide"], None, own, None, GLUE)
    cells = grid.plan(GLUE, chosen, [3], [], flags, tmp_path)
    found = {cell.arm.name: cell.run.settings for cell in cells}
    assert [cell.run.folder.parent.parent.name for cell in cells] == ["cola"] * 4
    assert {settings["seed"] for settings in found.values()} == {3}
    assert [found["gfsa"][name] for name in ("order", "w_0")] == [4, 0.5]
    assert [found["wide"][name] for name in ("order", "weight_decay")] == [8, 0.3]
    assert [found["none"][n] for n in ("weight_decay", "learning_rate")] == [0.1, 0.5]
    rates = [settings["filter_learning_rate"] for settings in found.values()]
    assert rates == [None, 0.2, None, 0.2]
    recipe.write_text("push_to_hub: true")
    with pytest.raises(ValueError, match=r"--push_to_hub is 'given'"):
        grid.common_flags(GLUE, common)


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
    found = {cell.arm.name: cell.run.settings for cell in cells[:4]}
    assert list(found) == ["plain", "plat", "gfsa", "wide"]  # the baseline first
    assert (found["plat"]["trainable"], found["plat"]["eps"]) == (["p"], 0.1)
    assert (found["gfsa"]["order"], found["wide"]["order"], found["wide"]["w_0"]) == (7, 9, -0.001)


@pytest.mark.parametrize(
    ("own", "baseline", "names"),
    [
        (["none: --weight_decay 0.1", "gfsa: --order 4"], None, ["none", "gfsa"]),
        (["gfsa: --order 4"], None, ["none", "gfsa"]),
        (["deep: --variant gfsa --order 4", "plat: --p 1.5"], None, ["none", "deep", "plat"]),
        (["mine: --variant none --weight_decay 0.1", "gfsa: --order 4"], None, ["mine", "gfsa"]),
        (["mine: --variant none", "gfsa: --order 4"], "none", ["none", "mine", "gfsa"]),
        (["gfsa: --order 4", "plat: --p 1.5"], "plat", ["plat", "gfsa"]),
    ],
)
def test_arms_named_by_their_flags_alone_are_all_there_are(
    tmp_path: Path, own: list[str], baseline: str | None, names: list[str]
) -> None:
    cells = planned(tmp_path, "--task_name", "cola", own_flags=own, baseline=baseline)
    assert [cell.arm.name for cell in cells if cell.seed == 3] == names


def test_without_a_word_on_arms_every_variant_is_one(tmp_path: Path) -> None:
    cells = planned(tmp_path, "--task_name", "cola")
    assert {cell.arm.name for cell in cells} == {"none", *ga.variant_configs()}


@pytest.mark.parametrize(
    ("choice", "common", "message"),
    [
        ({"names": ["none", "gfas"]}, (), r"variants is 'gfas'; allowed: none, .*gfsa"),
        ({"names": ["none"]}, (), r"two or more different names"),
        ({"names": ["none", "none"]}, (), r"two or more different names"),
        ({"names": ["none", "gfsa"], "baseline": "plat"}, (), r"baseline is 'plat'"),
        ({"own_flags": ["heat: --step 1"]}, (), r"variant_flags is 'heat: --step 1'"),
        ({"own_flags": ["gfsa: --w_0 'x"]}, (), r"variant_flags is .*between one pair of quotes"),
        ({"path": "missing.yaml"}, (), r"arms is 'missing.yaml'; allowed: an existing YAML"),
        ({}, ("--seed", "3"), r"--seed is 'given'; allowed: flags that all runs can have"),
        ({}, ("--push_to_hub",), r"--push_to_hub"),
        ({}, ("--overwrite_output_dir",), r"--overwrite_output_dir is 'given'"),
        ({}, ("--epochs", "3"), r"unrecognized arguments: --epochs 3"),
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
        arms.chosen(None, str(tmp_path / "arms.yaml"), (), None, GLUE)


def test_an_unknown_script_is_refused() -> None:
    with pytest.raises(ValueError, match=r"script is 'train.py'; allowed: .*finetune/glue.py"):
        Script(Path("train.py"))


@pytest.mark.parametrize("path", sorted((GLUE.path.parent / "arms").glob("*.yaml")))
@pytest.mark.parametrize("family", families())
def test_shipped_arms_are_taken_by_every_script(path: Path, family: str) -> None:
    script = Script(GLUE.path.with_name(f"{family}.py"))
    for arm in arms.chosen(None, str(path), (), None, script):
        flags = arms.flags_for(arm, {"task_name": "demo", "model_name_or_path": "m"}, script)
        assert script.settings(flags).deciding()["variant"] == arm.variant
        assert arm.name in (arm.variant, *PRESETS)
