"""Time and peak memory against the length, log-log, with the floors drawn.

python benchmarks/plot.py benchmarks/results/attention-cpu.json
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import forms

from hf_graphattn.diagnostics.drawing import COLOURS

BLUE, VERMILION, GREEN, _, ORANGE, SKY_BLUE, BLACK = COLOURS
STYLES = {
    "plain": (BLACK, "plain (fused)"),
    "gfsa": (BLUE, "GFSA"),
    "laplacian": (GREEN, "A - I"),
    "plat": (VERMILION, "p-LaT"),
    "published gfsa": (SKY_BLUE, "GFSA as published"),
    "published plat": (ORANGE, "p-LaT as published"),
}
FLOORS = {"gfsa": 10 / 7, "plat": 11 / 7}  # in plain passes, of 7 matrix products each


def draw(source: Path) -> Path | None:
    """Write the plot of a result of `attention.py` beside it, as PNG; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No plot: matplotlib is missing (pip install 'hf_graphattn[plots]').")
        return None
    found = json.loads(source.read_text("utf-8"))
    rows = {int(length): row for length, row in found["lengths"].items()}
    measured = any("peak_bytes" in timing for row in rows.values() for timing in row.values())
    figure = Figure(figsize=(11 if measured else 6, 4.4), layout="constrained")
    axes = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
    _time(axes[0], rows)
    if measured:
        _memory(axes[1], rows)
    settings, machine = found["settings"], found["machine"]
    figure.suptitle(
        f"Attention alone, forward and backward: {settings['heads']} heads of {settings['width']}, "
        f"{'bidirectional' if settings['bidirectional'] else 'causal'}, {settings['dtype']}\n"
        f"{machine['device']}, {machine['threads']} threads, torch {machine['versions']['torch']}",
        fontsize=10,
    )
    target = source.with_suffix(".png")
    figure.savefig(target, dpi=130)
    return target


def _time(axes: Any, rows: dict[int, Any]) -> None:
    plain = {length: row["plain"]["seconds"] for length, row in rows.items()}
    for name, (colour, label) in STYLES.items():
        points = {n: 1e3 * row[name]["seconds"] for n, row in rows.items() if name in row}
        if points:
            _line(axes, points, name, colour, label)
    run = {name for row in rows.values() for name in row}
    for name, passes in FLOORS.items():
        if name not in run:
            continue
        floor = {length: 1e3 * passes * value for length, value in plain.items()}
        label = f"floor of {STYLES[name][1]}: {passes:.2g} x plain"
        axes.plot(*zip(*floor.items(), strict=True), ":", color=STYLES[name][0], label=label)
    _finish(axes, sorted(rows), "milliseconds")


def _memory(axes: Any, rows: dict[int, Any]) -> None:
    for name, (colour, label) in STYLES.items():
        points = {
            n: row[name]["peak_bytes"] / 2**20
            for n, row in rows.items()
            if row.get(name, {}).get("peak_bytes", 0) > 0
        }
        if points:
            _line(axes, points, name, colour, label + _kept_to(points))
    _finish(axes, sorted(rows), "peak memory of the call, MB")


def _kept_to(points: dict[int, float]) -> str:
    """What a fall says: a longer call takes less memory only where "auto" keeps A no longer."""
    falls = [length for length, longer in pairwise(points) if points[longer] < points[length]]
    return f" (keeps A up to N = {falls[-1]}: faster)" if falls else ""


def _line(axes: Any, points: dict[int, float], name: str, colour: str, label: str) -> None:
    style = "--" if name in forms.KEEPS_MATRICES else "-"
    axes.plot(
        *zip(*points.items(), strict=True), style, marker="o", ms=4, color=colour, label=label
    )


def _finish(axes: Any, lengths: list[int], what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(length) for length in lengths], minor=False)
    axes.set_xlabel("length N, tokens")
    axes.set_ylabel(what)
    axes.grid(which="major", alpha=0.3)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(draw(Path(path)))
