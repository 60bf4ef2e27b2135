"""The benchmarks run, and write what they say: at sizes that measure nothing."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import tiny_task
import warm
from PIL import Image

import tasks

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.full

IN_TURNS = """
import sys
from dataclasses import asdict
from pathlib import Path
import measure
order = Path(sys.argv[1]).open("a", buffering=1)
call = lambda: order.write(measure.ROOT.name + "\\n")
taken = measure.interleaved({"plain": call}, rounds=3)
found = {"machine": measure.origin(), "plain": asdict(taken["plain"])}
measure.write(Path(sys.argv[-1]), found)
"""


def run(script: str, *arguments: object, code: int = 0) -> str:
    """What it prints; where it fails so, its errors."""
    command = [warm.python("finetune"), str(BENCHMARKS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_attention_writes_a_table_its_numbers_and_a_plot(tmp_path: Path) -> None:
    target = tmp_path / "attention.json"
    shape = ("--heads", 2, "--width", 16, "--rounds", 3, "--lengths", 32, 48)
    shown = run("attention.py", *shape, "--memory", "--output", target)
    assert len(shown.splitlines()) == 2
    found = json.loads(target.read_text("utf-8"))
    assert found["machine"]["versions"]["torch"]
    for length in ("32", "48"):
        row = found["lengths"][length]
        forms = ("gfsa", "laplacian", "plat", "published gfsa", "published plat")
        assert set(row) == {"plain", *forms}
        assert row["plain"]["ratio"] == 1.0
        assert all(timing["seconds"] > 0 and timing["rounds"] == 3 for timing in row.values())
        assert all(timing["peak_bytes"] >= 0 for timing in row.values())
    with Image.open(target.with_suffix(".png")) as image:
        assert min(image.size) > 400


@pytest.mark.skipif(not (BENCHMARKS.parent / ".git").exists(), reason="there are no commits")
def test_two_commits_do_their_rounds_in_turns_each_with_its_own_library(tmp_path: Path) -> None:
    script, order, target = (tmp_path / name for name in ("script.py", "order", "commits.json"))
    script.write_text(IN_TURNS, "utf-8")
    shown = run("commits.py", "--base", "HEAD", "--output", target, script, order)
    assert shown.splitlines()[1].split() == ["plain", "1.00", "->", "1.00"]
    # A warm-up and three rounds.
    assert order.read_text("utf-8").split() == ["base", BENCHMARKS.parent.name] * 4
    (row,) = json.loads(target.read_text("utf-8")).values()
    assert [row["rows"]["plain"][name]["rounds"] for name in ("base", "new")] == [3, 3]


def test_peak_memory_is_what_a_call_needs() -> None:
    """In a process that has started no threads: a matrix of 64 MB is seen, to one."""
    script = "import measure, torch\n"
    script += "case = lambda: (lambda: torch.ones(4096, 4096).sum())\n"
    script += "print(measure.peak_memory(case))"
    done = subprocess.run(
        [warm.python("torch"), "-c", script], capture_output=True, text=True, cwd=BENCHMARKS
    )
    assert done.returncode == 0, done.stderr
    assert abs(int(done.stdout) - 2**26) < 2**20


def test_how_often_an_interval_holds() -> None:
    """Of four normal values Student's t about as often as it says, BCa far less often."""
    (line,) = run("interval_coverage.py", "--seeds", 4, "--draws", 300).splitlines()
    student, bca = (float(re.search(rf"{n} normal ([\d.]+)%", line)[1]) for n in ("t", "BCa"))
    assert 91 <= student <= 99
    assert 60 <= bca <= 88


def test_every_row_of_the_choice_has_the_backends_and_what_auto_chooses(tmp_path: Path) -> None:
    target = tmp_path / "choice.json"
    sizes = ("--shapes", "1x130", "--threads", 1, "--dropout", 0, 0.1, "--rounds", 1)
    shown = run("choice.py", *sizes, "--output", target)
    rows = json.loads(target.read_text("utf-8"))["rows"]
    assert len(shown.splitlines()) == len(rows) == 6
    for row in rows:
        backends = ["sdpa", "eager"] if row["dropout"] else ["shared", "sdpa", "eager"]
        assert list(row["times"]) == ["plain", *backends]
        assert row["auto"] == ("eager" if row["dropout"] else "shared")


CASES = ("Trainer", "glue.py --group_by_length", "minimal loop", "glue.py, evaluation")


def test_cases_of_the_main_job_are_measured_and_rounds_are_added(tmp_path: Path) -> None:
    tiny_task.save_data(tasks.get("sst2"), tmp_path / "glue")
    tiny_task.save_bert(tmp_path / "bert")
    target = tmp_path / "out.json"
    job = {"task": "sst2", "rows": 8, "batch": 4}
    target.write_text(json.dumps({"job": job, "rounds": [{}]}))
    sources = ("--model", tmp_path / "bert", "--dataset", tmp_path / "glue", "--batch", 4)
    words = ("main_job.py", *sources, "--rounds", 1, "--output", target, "--cases", *CASES)
    shown = run(*words, "--rows", 8)
    written = json.loads(target.read_text())
    _, added = written["rounds"]
    assert tuple(added) == CASES
    assert all(value > 0 for case in added.values() for value in case.values())
    assert written["job"] == job
    assert tuple(line.split("  ")[0] for line in shown.splitlines()) == CASES
    assert "name another file" in run(*words, "--rows", 16, code=1)
