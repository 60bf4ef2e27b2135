"""The studies of docs/evidence.md: running them, and writing the page from their numbers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


@cache
def _written() -> dict[str, dict[str, Any]]:
    path = ROOT / "finetune" / "evidence.yaml"
    return dict(yaml.safe_load(path.read_text("utf-8")))


def rows_by_name() -> dict[str, dict[str, Any]]:
    """The rows of `evidence.yaml`, in their order."""
    return {name: row for name, row in _written().items() if name != "margins"}


def margin(metric: str) -> float:
    """The least change of a metric that counts, in per cent."""
    return float(_written()["margins"][metric.removeprefix("eval_")])
