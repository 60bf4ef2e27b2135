"""`--push_to_hub` of a run, against the hub on the loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import warm
from glue_runs import ROOT, flags, written
from hub_server import HubServer

import tasks
from finetune.engine import publishing
from finetune.glue import SCHEMA


def test_a_run_is_pushed_with_its_metrics(tmp_path: Path) -> None:
    argv = flags(tmp_path, "cola", "--variant", "gfsa", "--order", "4", "--push_to_hub")
    argv += ["--hub_model_id", "user/cola", "--checkpointing_steps", "epoch"]
    with HubServer() as hub:
        done = subprocess.run(
            [warm.python("finetune"), "finetune/glue.py", *argv],
            cwd=ROOT,
            env=hub.environment(tmp_path / "home") | {"ACCELERATE_USE_CPU": "true"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        files = hub.files("user/cola")
    assert {"README.md", "graph_attn.py", "model.safetensors", "all_results.json"} <= set(files)
    assert not any(name.startswith("step_") or name.endswith(".lock") for name in files)
    card = files["README.md"].decode()
    assert "type: matthews_correlation" in card
    assert f"value: {written(tmp_path)['eval_loss']}" in card
    assert 'ga.from_pretrained("user/cola")' in card


def test_evaluations_are_the_numbers_of_the_run(tmp_path: Path) -> None:
    settings = SCHEMA.parse(flags(tmp_path, "mrpc"))
    found = publishing.evaluations(
        tasks.get("mrpc"),
        settings,
        {"eval_f1": 0.5, "eval_accuracy": 0.25, "train_loss": 1.0, "best": {"value": 2.0}},
    )
    assert [(each.metric_type, each.metric_value) for each in found] == [
        ("f1", 0.5),
        ("accuracy", 0.25),
    ]


def test_each_split_has_its_own_evaluations(tmp_path: Path) -> None:
    """MNLI's second validation set is not told as if it were the first."""
    settings = SCHEMA.parse(flags(tmp_path, "mnli"))
    results = {"eval_accuracy": 0.5, "eval_accuracy_mm": 0.25}
    found = publishing.evaluations(tasks.get("mnli"), settings, results)
    assert [(each.metric_type, each.dataset_split, each.metric_value) for each in found] == [
        ("accuracy", "validation_matched", 0.5),
        ("accuracy", "validation_mismatched", 0.25),
    ]
