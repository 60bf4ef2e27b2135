"""Time and peak memory against the length, log-log, with the floors drawn.

python benchmarks/plot.py benchmarks/results/attention-cpu.json
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import forms

from hf_graphattn.diagnostics.drawing import PLAIN, SMALL, Look, legend, looks, panels, save, style
from hf_graphattn.version import how_to_install

PUBLISHED = "published "  # begins the name of a form that keeps the matrices
FLOORS = {"gfsa": 10 / 7, "plat": 11 / 7}  # in plain passes, of 7 matrix products each


def draw(source: Path) -> Path | None:
    """Write the plot of a result of `attention.py` beside it; returns the PNG's path.

    None without matplotlib.
    """
    if importlib.util.find_spec("matplotlib") is None:
        print("No plot: matplotlib is missing . Run: " + how_to_install("plots"))
        return None
    found = json.loads(source.read_text("utf-8"))
    rows = {int(length): row for length, row in found["lengths"].items()}
    measured = any("peak_bytes" in timing for row in rows.values() for timing in row.values())
    settings, machine = found["settings"], found["machine"]
    title = (
        f"Attention alone, forward and backward: {settings['heads']} heads of {settings['width']}, "
        f"{'bidirectional' if settings['bidirectional'] else 'causal'}, {settings['dtype']}; "
        f"{machine['device']}, {machine['threads']} threads, torch {machine['versions']['torch']}"
    )
    figure, axes = panels(2 if measured else 1, title, height=2.6)
    drawn = _looks({name for row in rows.values() for name in row})
    _time(axes[0], rows, drawn)
    if measured:
        _memory(axes[1], rows, drawn)
    legend(figure, axes)
    save(figure, source.with_suffix(""))
    return source.with_suffix(".png")


def _looks(forms: Collection[str]) -> dict[str, Look]:
    """Each form's look, which is its variant's; what was published is dashed, and says so."""
    variants = {form.removeprefix(PUBLISHED) for form in forms}
    drawn = looks({variant: variant for variant in sorted(variants)})
    found = {form: drawn[form.removeprefix(PUBLISHED)] for form in sorted(forms)}
    notes = {form: " as published" for form in forms if form.startswith(PUBLISHED)}
    notes |= dict.fromkeys(PLAIN, " (fused)")
    return {
        form: replace(look, label=look.label + notes.get(form, ""))
        for form, look in sorted(found.items(), key=lambda item: item[0] not in PLAIN)
    }


def _time(axes: Any, rows: dict[int, Any], drawn: dict[str, Look]) -> None:
    plain = {length: row["plain"]["seconds"] for length, row in rows.items()}
    for name, look in drawn.items():
        points = {n: 1e3 * row[name]["seconds"] for n, row in rows.items() if name in row}
        _line(axes, points, name, look)
    for name, passes in FLOORS.items():
        if name not in drawn:
            continue
        floor = {length: 1e3 * passes * value for length, value in plain.items()}
        label = f"floor of {drawn[name].label}: {passes:.2g} x plain"
        axes.plot(*zip(*floor.items(), strict=True), ":", color=drawn[name].colour, label=label)
    _finish(axes, sorted(rows), "milliseconds")


def _memory(axes: Any, rows: dict[int, Any], drawn: dict[str, Look]) -> None:
    for name, look in drawn.items():
        points = {
            n: row[name]["peak_bytes"] / 2**20
            for n, row in rows.items()
            if row.get(name, {}).get("peak_bytes", 0) > 0
        }
        if points:
            _line(axes, points, name, look)
            _note(axes, points, look)
    _finish(axes, sorted(rows), "peak memory of the call, MB")


def _note(axes: Any, points: dict[int, float], look: Look) -> None:
    """What a fall says: a longer call takes less memory only where "auto" keeps A no longer."""
    falls = [length for length, longer in pairwise(points) if points[longer] < points[length]]
    if falls:
        how = {"textcoords": "offset points", "size": SMALL, "color": look.colour, "ha": "right"}
        axes.annotate("keeps A", (falls[-1], points[falls[-1]]), (-4, 4), **how)


def _line(axes: Any, points: dict[int, float], name: str, look: Look) -> None:
    dashes = "--" if name in forms.KEEPS_MATRICES else "-"
    how = {"marker": look.marker, "ms": 3.5, "lw": 1.2, "color": look.colour, "label": look.label}
    axes.plot(*zip(*points.items(), strict=True), dashes, **how)


def _finish(axes: Any, lengths: list[int], what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(length) for length in lengths], minor=False)
    style(axes, "length N, tokens", what)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(draw(Path(path)))
