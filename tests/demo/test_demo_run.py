"""The demo's plan: every variant is in it, its flags parse, the table shows what was measured."""

from __future__ import annotations

import pytest
from rich.console import Console

import hf_graphattn as ga
import tasks
from finetune import arguments
from finetune.code_models import CodeModelArguments
from finetune.demo import run
from finetune.lm_arguments import LanguageDataArguments, LanguageModelArguments

GROUPS = {
    "glue": {},
    "lm": {"data_group": LanguageDataArguments, "model_group": LanguageModelArguments},
    "code_classification": {"model_group": CodeModelArguments},
}


def test_every_variant_and_every_script_is_shown() -> None:
    assert set(run.VARIANTS) == set(run.LINES[0].variants) == {"none", *ga.variant_configs()}
    assert {line.family for line in run.LINES} == {family for family, _ in tasks.registered()}


@pytest.mark.parametrize("line", run.LINES, ids=lambda line: line.family)
def test_flags_are_those_of_the_script(line: run.Line) -> None:
    for variant in line.variants:
        base = ["--model_name_or_path", line.checkpoint, "--task_name", run.TASK]
        flags = ["--variant", variant, *run.VARIANTS[variant], *line.recipe, "--output_dir", "o"]
        settings = arguments.parse([*base, *flags], **GROUPS[line.family])
        assert settings.filter.variant == variant


def test_lines_name_what_exists() -> None:
    for line in run.LINES:
        assert (run.ROOT / line.script).is_file()
        assert (run.ROOT / line.checkpoint / "config.json").is_file()
        assert tasks.get(run.TASK, line.family).name == run.TASK


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
    for value in (
        "variant",
        "seconds",
        "scalars",
        *line.metric.split("_"),
        "gfsa",
        "0.123",
        "16",
        "0.046",
    ):
        assert value in shown
