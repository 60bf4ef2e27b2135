"""The demo's plan: every variant is in it, its flags parse, the table shows what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

import hf_graphattn as ga
import tasks
from finetune import arguments
from finetune.demo import run


def test_every_variant_is_shown() -> None:
    assert set(run.VARIANTS) == {"none", *ga.variant_configs()}


@pytest.mark.parametrize("variant", run.VARIANTS)
def test_flags_are_those_of_the_script(variant: str) -> None:
    for line in run.LINES:
        base = ["--model_name_or_path", line.checkpoint, "--task_name", line.task]
        flags = ["--variant", variant, *run.VARIANTS[variant], *line.recipe, "--output_dir", "o"]
        settings = arguments.parse([*base, *flags])
        assert settings.filter.variant == variant


def test_lines_name_what_exists() -> None:
    for line in run.LINES:
        assert (run.ROOT / line.script).is_file()
        assert (run.ROOT / line.checkpoint / "config.json").is_file()
        assert tasks.get(line.task, Path(line.script).stem).name == line.task


def test_the_launcher_uses_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    command = run.launcher()
    assert command[command.index("--num_cpu_threads_per_process") + 1] == "7"


def test_table() -> None:
    line = run.LINES[0]
    results = {f"eval_{line.metric}": 0.1234, "filter_scalars": 16, "seconds_per_step": 0.0456}
    console = Console(width=80, record=True)
    console.print(run.table([(line, "gfsa", results)]))
    shown = console.export_text()
    for value in ("variant", "seconds", "scalars", line.metric, "gfsa", "0.123", "16", "0.046"):
        assert value in shown
