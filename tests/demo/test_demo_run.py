"""The demo's plan: every arm for fine-tuning, whose flags parse; and the table of its results."""

from __future__ import annotations

import importlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import tasks
from finetune.demo import run
from finetune.demo.run import FAMILIES, ROOT, TITLES, Row

ROWS = run.planned()


def settings(row: Row) -> Any:
    return importlib.import_module(f"finetune.{row.family}").SCHEMA.parse(row.arguments)


@pytest.fixture
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_every_filter_starts_as_plain_attention_and_learns(in_the_root: None) -> None:
    """A pretrained checkpoint is changed at once by the values that papers train from nothing."""
    configs = {row.arm: settings(row).variant for row in ROWS}
    starts = {"gfsa": {"w_0": 0, "w_1": 1, "w_K": 0}, "plat": {"p": (2.0,)}}
    starts |= {"laplacian": {"step": 0}, "polynomial": {"coefficients": (0, 1, 0)}}
    starts |= {"gain": {"beta": 1}, "degree1": {"w_0": 0, "w_1": 1}}
    assert starts.keys() | {"none"} == configs.keys() == TITLES.keys()
    for arm, scalars in starts.items():
        assert {name: getattr(configs[arm], name) for name in scalars} == scalars
        assert configs[arm].trainable


@pytest.mark.parametrize("family", FAMILIES)
def test_recipes_need_no_network_and_flags_are_those_of_the_script(
    family: str, in_the_root: None
) -> None:
    for row in ROWS:
        if row.family == family:
            found = settings(row)
            assert tasks.get(found.data.task_name, family).builder is not None
            path = found.model.model_name_or_path
            assert path is None or Path(path, "config.json").is_file()
            assert found.filter.variant == row.flags["variant"]
            assert Path(found.train.output_dir) == row.folder


def test_a_run_calls_main_and_writes_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, redirected = [], []
    script = SimpleNamespace(main=calls.append)
    monkeypatch.setattr(run.importlib, "import_module", {"finetune.glue": script}.get)
    monkeypatch.setattr(run.os, "dup2", lambda _, stream: redirected.append(stream))
    monkeypatch.chdir(tmp_path)
    console = Console(width=80, record=True)
    with ThreadPoolExecutor(1) as pool:
        run.execute(ROWS[:2], pool, console)
    assert calls == [row.arguments for row in ROWS[:2]]
    assert redirected == [1, 2, 1, 2]
    assert all(row.log.is_file() for row in ROWS[:2])
    assert all(f"glue: {TITLES[row.arm]}" in console.export_text(clear=False) for row in ROWS[:2])


def test_a_run_that_fails_ends_the_demo_and_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(row: Row) -> None:
        raise ValueError("no")

    monkeypatch.setattr(run, "call", fail)
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="no") as raised:
        run.execute(ROWS[:1], pool, Console())
    assert raised.value.__notes__ == [f"glue, none: see {ROWS[0].log}."]


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = next(row for row in ROWS if row.arm == "gfsa")
    key = "eval_matthews_correlation"
    results = {key: 0.1234, "filter_scalars": 16, "seconds_per_step": 0.0456}
    results |= {"best": {"metric": key}, "greater_is_better": {key: True}}
    row.folder.mkdir(parents=True)
    (row.folder / "all_results.json").write_text(json.dumps(results))
    console = Console(width=80, record=True)
    console.print(run.table([(row, row.results())]))
    printed = console.export_text()
    for value in ("matthews correlation ↑", TITLES["gfsa"], "0.123", "16", "0.046"):
        assert value in printed
