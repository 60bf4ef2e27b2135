"""Every script of examples/ runs; that of timm where timm is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"timm_vit.py": "timm"}
SHOWN = {"laplacian_eigenmaps.py": "block 8 "}  # the others print the report


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(script: Path, tmp_path: Path) -> None:
    package = NEEDS.get(script.name)
    if package and find_spec(package) is None:
        pytest.skip(f"needs {package}")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [sys.executable, script]
    done = subprocess.run(call, capture_output=True, text=True, env=one_thread, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert SHOWN.get(script.name, "self-attention modules filtered") in done.stdout
