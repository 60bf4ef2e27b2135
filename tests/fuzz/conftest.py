"""How much the fuzz draws for each target: a few examples, the same in every test run, more in
`make test-full`; or `HF_GRAPHATTN_FUZZ` new ones."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

MANY = int(os.environ.get("HF_GRAPHATTN_FUZZ", "0"))
FEW, MORE = 10, 30  # in `make test`, and in `make test-full`


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile(
        "graph filters",
        max_examples=MANY or (MORE if config.option.markexpr == "" else FEW),
        derandomize=not MANY,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("graph filters")
