"""The benchmark behind "auto" on a CPU runs, and says what "auto" would choose: at no size."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import warm

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "choice.py"

pytestmark = pytest.mark.full


def test_every_row_has_the_backends_and_the_choice(tmp_path: Path) -> None:
    target = tmp_path / "choice.json"
    arguments = ("--shapes", "1x130", "--threads", "1", "--dropout", "0", "0.1", "--rounds", "1")
    command = [warm.python("transformers"), str(SCRIPT), *arguments, "--output", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(target.read_text("utf-8"))["rows"]
    assert len(done.stdout.splitlines()) == len(rows) == 6
    for row in rows:
        expected = (
            ["plain", "sdpa", "eager"] if row["dropout"] else ["plain", "shared", "sdpa", "eager"]
        )
        assert list(row["times"]) == expected
        assert row["auto"] == ("eager" if row["dropout"] else "shared")
