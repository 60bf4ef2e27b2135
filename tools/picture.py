"""The picture of README: what the filters bring on Penn Treebank, and what their attention costs.

    python tools/picture.py

Drawn from committed numbers alone: a study of docs/evidence.md, and `benchmarks/attention.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_graphattn.diagnostics.palette import PLAIN, looks

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "docs" / "evidence" / "field-ptb.json"
TIMES = ROOT / "benchmarks" / "results" / "attention-cpu.json"
PAPERS = ("gfsa", "plat", "laplacian")  # whose attention was timed
PUBLISHED = {"published gfsa": "gfsa", "published plat": "plat"}


def main(argv: Sequence[str] | None = None) -> None:
    """Draw it into the file of the first argument; by default into the one that README shows."""
    from matplotlib.figure import Figure

    (target,) = (sys.argv[1:] if argv is None else argv) or [str(ROOT / "docs" / "overview.png")]
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    brings, costs = figure.subplots(1, 2)
    gains(brings, json.loads(STUDY.read_text("utf-8"))["tasks"][0]["arms"])
    times(costs, json.loads(TIMES.read_text("utf-8"))["lengths"])
    figure.savefig(target, dpi=150)


def gains(axes: Any, arms: list[dict[str, Any]]) -> None:
    """Each arm's difference to plain attention in per cent, with its interval, the best on top."""
    plain = next(arm["mean"] for arm in arms if arm["arm"] in PLAIN)
    rows = sorted((arm for arm in arms if arm["paired"]), key=lambda arm: -arm["paired"]["mean"])
    look = looks({arm["arm"]: arm["arm"] for arm in rows})
    for place, arm in enumerate(rows):
        ends = arm["paired"]["interval"]
        mean, low, high = (
            100 * value / plain for value in (arm["paired"]["mean"], ends["low"], ends["high"])
        )
        own = look[arm["arm"]]
        axes.plot([low, high], [place, place], color=own.colour, linewidth=2.5)
        axes.plot(mean, place, own.marker, color=own.colour, markersize=7)
    axes.axvline(0, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [look[arm["arm"]].label for arm in rows])
    axes.set_xlabel("perplexity: difference to plain attention, in % (less is better)")
    axes.set_title("What they bring: Penn Treebank, a GPT-2 of 1.4 M", fontsize=10)
    axes.grid(axis="x", alpha=0.3)


def times(axes: Any, lengths: dict[str, Any]) -> None:
    """Attention's time against the length, as a multiple of plain attention's in the same run."""
    look = looks({name: name for name in PAPERS})
    for name in (*PAPERS, *PUBLISHED):
        points = {int(n): row[name]["ratio"] for n, row in lengths.items() if name in row}
        own, is_published = look[PUBLISHED.get(name, name)], name in PUBLISHED
        axes.plot(
            *zip(*sorted(points.items()), strict=True),
            "--" if is_published else "-",
            marker=own.marker,
            color=own.colour,
            markersize=5,
            alpha=0.6 if is_published else 1.0,
            label=f"{own.label}, as published" if is_published else own.label,
        )
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_yticks([1, 2, 4, 8, 16], ["plain", "2 x", "4 x", "8 x", "16 x"])
    axes.set_xticks([int(n) for n in lengths], list(lengths))
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_title("What they cost: attention forward and backward", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
