"""How much the fuzz draws for each target: a few examples, the same in every test run, more in
`make test-full`; or `HF_GRAPHATTN_FUZZ` new ones, whose counts are printed at the end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from outcomes import COUNTS

MANY = int(os.environ.get("HF_GRAPHATTN_FUZZ", "0"))
FEW, MORE = 10, 30  # in `make test`, and in `make test-full`
COLUMNS = ("tried", "exact", "refused")


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    COUNTS.clear()
    try:
        return (yield)
    finally:
        COUNTS["exact"] = COUNTS["tried"] - COUNTS["refused"]
        item.user_properties.append(("fuzz", dict(COUNTS)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: dict[str, Counter[str]] = {}
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        counts = dict(report.user_properties).get("fuzz")
        if counts:
            rows[report.nodeid.partition("::")[2]] = Counter(counts)
    terminalreporter.section("fuzz")
    for name, counts in [*sorted(rows.items()), ("in all", sum(rows.values(), Counter()))]:
        shown = "  ".join(f"{counts[column]:7} {column}" for column in COLUMNS)
        terminalreporter.write_line(f"{shown}  {name}")
