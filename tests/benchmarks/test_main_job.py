"""The benchmark of the main job, on a tiny model: every case runs, and is told apart."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import tiny_task
import warm

import tasks

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "main_job.py"

pytestmark = pytest.mark.full


CASES = ("Trainer", "glue.py --group_by_length", "minimal loop", "glue.py, evaluation")


def test_cases_are_measured_and_rounds_are_added(tmp_path: Path) -> None:
    tiny_task.save_data(tasks.get("sst2"), tmp_path / "glue")
    tiny_task.save_bert(tmp_path / "bert")
    target = tmp_path / "out.json"
    job = {"task": "sst2", "rows": 8, "batch": 4}
    target.write_text(json.dumps({"job": job, "rounds": [{}]}))
    command = [
        *(warm.python("finetune"), SCRIPT, "--model", tmp_path / "bert"),
        *("--dataset", tmp_path / "glue", "--rows", "8", "--batch", "4"),
        *("--rounds", "1", "--output", target, "--cases", *CASES),
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads(target.read_text())
    _, added = written["rounds"]
    assert tuple(added) == CASES
    assert all(value > 0 for case in added.values() for value in case.values())
    assert written["job"] == job
    assert tuple(line.split("  ")[0] for line in done.stdout.splitlines()) == CASES
    command[command.index("8")] = "16"
    other = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert "name another file" in other.stderr
