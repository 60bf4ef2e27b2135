"""The script of the GPU figures, whole, at sizes that measure nothing and on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = ("--device", "cpu", "--tiny")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="Triton is published for Linux alone"),
]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    return gpu


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [warm.python(), str(BENCHMARKS / "gpu.py"), *map(str, arguments)]
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(command, capture_output=True, text=True, env=settings | environment)


def test_every_row_runs_and_one_that_failed_is_done_again_alone(tmp_path: Path) -> None:
    """Without Triton's interpreter p-LaT's own kernels cannot run here: their rows alone fail."""
    target = tmp_path / "dry.json"
    first = run(*TINY, "--output", target)
    assert first.returncode == 1, first.stderr
    found = json.loads(target.read_text("utf-8"))["rows"]
    failed = [name for name, row in found.items() if "failed" in row]
    assert failed == ["exact dropout", *(name for name in found if name.startswith("blocks"))]
    assert all(found[name]["failed"] for name in failed)
    assert list(found) == run(*TINY, "--list").stdout.splitlines()
    row = found["attention 32"]
    assert row["plain"]["ratio"] == 1.0
    assert set(row["peak_bytes"]) < set(row)
    again = run(*TINY, "--output", target, TRITON_INTERPRET="1")
    assert again.returncode == 0, again.stderr
    assert [line.split("  ")[0] for line in again.stdout.splitlines()[:-1]] == failed
    assert "0 rows failed, 0 are left" in again.stdout
    values = json.loads(target.read_text("utf-8"))
    assert values["machine"]["versions"]["torch"]
    assert all(values["rows"][name] == found[name] for name in found if name not in failed)
    assert values["rows"]["exact dropout"]["error"] < 1e-5


def raises() -> Iterator[tuple[str, object]]:
    yield "kept", 1
    raise ValueError("in words")


def hangs() -> Iterator[tuple[str, object]]:
    yield "kept", 1
    time.sleep(600)


def dies() -> Iterator[tuple[str, object]]:
    yield "kept", 1
    os._exit(3)


@pytest.mark.parametrize(
    ("row", "limit", "expected"),
    [
        (raises, 60.0, "ValueError: in words"),
        (hangs, 1.0, "not done within 1 seconds"),
        (dies, 60.0, "its process ended with exit code 3"),
    ],
)
def test_how_a_row_ends(gpu: Any, row: Any, limit: float, expected: str | None) -> None:
    found = gpu.measured(row, limit)
    assert found.pop("failed", None) == expected
    assert found.pop("seconds") < 600
    assert found == ({"kept": 1} if limit > 1.0 else found)


def test_what_failed_comes_after_what_was_never_measured(gpu: Any) -> None:
    done = {"a": {"failed": "x"}, "c": {"seconds": 1}}
    assert gpu.order(dict.fromkeys("abcd"), done) == ["b", "d", "a"]


def test_a_stop_while_writing_leaves_the_old_file(gpu: Any, tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    gpu.write(target, {"rows": 1})
    with pytest.raises(TypeError, match="serializable"):
        gpu.write(target, {"rows": gpu})
    assert json.loads(target.read_text("utf-8")) == {"rows": 1}


def test_what_is_missing_or_too_old_is_named(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict.fromkeys(gpu.LOWEST, "99.0+cu130") | {"transformers": "5.9.2"}
    del given["lazy_loader"]
    monkeypatch.setattr(gpu.metadata, "version", given.__getitem__)
    monkeypatch.setattr(gpu.metadata, "PackageNotFoundError", KeyError)
    assert [name.split(">=")[0] for name in gpu.missing()] == ["transformers", "lazy_loader"]


def test_without_a_gpu_nothing_is_measured() -> None:
    done = run()
    assert done.returncode == 1
    assert "nothing is measured on cuda" in done.stderr


def test_results_of_another_machine_are_not_continued(tmp_path: Path) -> None:
    target = tmp_path / "other.json"
    target.write_text('{"machine": {"device": "another"}, "rows": {}}', "utf-8")
    done = run(*TINY, "--output", target)
    assert "is of another" in done.stderr
    assert json.loads(target.read_text("utf-8"))["rows"] == {}


def test_a_budget_ends_a_call_and_the_next_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    done = run(*TINY, "--output", target, "--budget", 0)
    assert done.returncode == 0, done.stderr
    assert not target.exists()
    assert "0 rows failed" in done.stdout
    unknown = run(*TINY, "--rows", "attention")
    assert "no such row: attention; allowed: exact float32" in unknown.stderr
