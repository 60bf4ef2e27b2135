"""The demo's plan: every arm for fine-tuning, whose flags parse; the table shows what was found."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import tasks
from finetune.demo import run
from finetune.demo.run import Run
from finetune.settings.recipes import load

RUNS = run.planned()
ARMS = run.ROOT / "finetune" / "arms" / "fine-tuning.yaml"
RECIPES = sorted((run.ROOT / "finetune" / "demo").glob("*.yaml"))


@pytest.fixture
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.ROOT)


def settings(row: Run) -> Any:
    return importlib.import_module(f"finetune.{row.family}").SCHEMA.parse(row.words)


def test_the_arms_for_fine_tuning_are_shown() -> None:
    shown = [row for row in RUNS if row.family == "glue"]
    arms = load("arms", str(ARMS), "name: {flag: value}")
    assert [row.flags for row in shown] == [{"variant": n, **flags} for n, flags in arms.items()]
    assert [row.title for row in shown] == [run.TITLES[name] for name in arms]
    assert shown[0].flags == {
        "variant": "none"
    }  # the row that is launched, and that the others are compared with
    assert len({row.folder for row in RUNS}) == len(RUNS)


def test_every_filter_starts_as_plain_attention_and_learns(in_the_root: None) -> None:
    """A pretrained checkpoint is changed at once by the values that papers train from nothing."""
    configs = {row.title: settings(row).variant for row in RUNS}
    starts = {"gfsa": {"w_0": 0, "w_1": 1, "w_K": 0}, "plat": {"p": (2.0,)}}
    starts |= {"laplacian": {"step": 0}, "polynomial": {"coefficients": (0, 1, 0)}}
    starts |= {"gain": {"beta": 1}, "degree1": {"w_0": 0, "w_1": 1}}
    assert starts.keys() | {"none"} == run.TITLES.keys()
    for arm, scalars in starts.items():
        config = configs[run.TITLES[arm]]
        assert {name: getattr(config, name) for name in scalars} == scalars
        assert config.trainable


def test_every_script_is_shown_by_a_task_that_needs_no_network() -> None:
    assert set(run.FAMILIES) == {row.family for row in RUNS}
    recipes = {path.stem: load("recipe", str(path), "flag: value") for path in RECIPES}
    assert set(run.FAMILIES) == set(recipes)
    for family, flags in recipes.items():
        assert tasks.get(flags["task_name"], family).builder is not None


@pytest.mark.parametrize("row", RUNS, ids=lambda row: row.folder.name)
def test_flags_are_those_of_the_script(row: Run, in_the_root: None) -> None:
    found = settings(row)
    assert found.filter.variant == row.flags["variant"]
    path = found.model.model_name_or_path
    assert path is None or Path(path, "config.json").is_file()
    assert Path(found.train.output_dir) == row.folder


def test_the_first_run_is_started_as_a_person_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(run.subprocess, "run", lambda command, **_: started.append(command))
    monkeypatch.chdir(tmp_path)
    run.launch(RUNS[0])
    assert started[0][3:] == RUNS[0].command[2:]
    assert RUNS[0].command[:2] == ["accelerate", "launch"]
    assert "finetune/glue.py" in RUNS[0].command


def test_as_many_workers_as_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda _: {1, 3}, raising=False)
    assert run.cores() == 2
    monkeypatch.delattr(run.os, "sched_getaffinity")
    monkeypatch.setattr(run.os, "cpu_count", lambda: 7)
    assert run.cores() == 7


def test_a_worker_calls_the_script_and_fills_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, redirected = [], []
    script = SimpleNamespace(main=called.append)
    monkeypatch.setattr(run.importlib, "import_module", {"finetune.lm": script}.get)
    monkeypatch.setattr(run.os, "dup2", lambda _, stream: redirected.append(stream))
    monkeypatch.chdir(tmp_path)
    row = next(row for row in RUNS if row.family == "lm")
    run.call(row)
    assert called == [row.words]
    assert redirected == [1, 2]
    assert row.log.is_file()


def test_each_run_is_said_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(run, "launch", lambda row: called.append(f"launched {row.title}"))
    monkeypatch.setattr(run, "call", lambda row: called.append(f"called {row.title}"))
    console = Console(width=80, record=True)
    with ThreadPoolExecutor(1) as pool:
        run.execute(RUNS[:3], pool, console)
    first, *others = (row.title for row in RUNS[:3])
    assert called == [f"launched {first}", *(f"called {title}" for title in others)]
    shown = console.export_text()
    assert all(f"glue: {row.title}" in shown for row in RUNS[:3])


def test_a_run_that_fails_ends_the_demo_and_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(row: Run) -> None:
        raise ValueError("no")

    monkeypatch.setattr(run, "launch", fail)
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="no") as raised:
        run.execute(RUNS[:1], pool, Console())
    assert raised.value.__notes__ == [f"{RUNS[0].title}, glue: see {RUNS[0].log}."]


def test_table() -> None:
    row = next(row for row in RUNS if row.flags["variant"] == "gfsa")
    key = "eval_matthews_correlation"
    found = {key: 0.1234, "filter_scalars": 16, "seconds_per_step": 0.0456, "best": {"metric": key}}
    console = Console(width=80, record=True)
    console.print(run.table([(row, found | {"greater_is_better": {key: True}})]))
    shown = console.export_text()
    for value in ("attention", "matthews correlation ↑", row.title, "0.123", "16", "0.046"):
        assert value in shown
    assert "One seed shows that they all train, not which is better." in " ".join(shown.split())
