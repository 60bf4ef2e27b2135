"""README's picture: what filters bring on a checkpoint and from nothing, and what they cost.

    python tools/picture.py

Drawn from committed numbers alone: two studies of docs/evidence.md, and `benchmarks/attention.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetune.experiments import analyze
from finetune.experiments.analyze import TaskResult
from hf_graphattn.diagnostics.drawing import looks

ROOT = Path(__file__).resolve().parents[1]
STUDIES = {
    "controls-ptb-tuned": "On a checkpoint: Penn Treebank, perplexity",
    "depth4": "From nothing: Shakespeare, 2,000 steps, loss",
}
SAME_TIME = "none-2260"  # plain attention with as many steps as take GFSA's seconds
TIMES = ROOT / "benchmarks" / "results" / "attention-cpu.json"
PAPERS = ("gfsa", "plat", "laplacian")  # whose attention was timed
PUBLISHED = {"published gfsa": "gfsa", "published plat": "plat"}


def main(argv: Sequence[str] | None = None) -> None:
    """Draw it into the file of the first argument; by default into the one that README shows."""
    from matplotlib.figure import Figure

    (target,) = (sys.argv[1:] if argv is None else argv) or [str(ROOT / "docs" / "overview.png")]
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    *brings, costs = figure.subplots(1, 3)
    for axes, (study, title) in zip(brings, STUDIES.items(), strict=True):
        numbers = ROOT / "docs" / "evidence" / f"{study}.json"
        gains(axes, analyze.results_of(json.loads(numbers.read_text("utf-8")))[0], title)
    times(costs, json.loads(TIMES.read_text("utf-8"))["lengths"])
    figure.savefig(target, dpi=150)


def gains(axes: Any, task: TaskResult, title: str) -> None:
    """Each arm's difference to plain attention in per cent, with its interval, the best on top."""
    plain, *arms = task.arms
    rows = sorted(((arm, arm.paired) for arm in arms if arm.paired), key=lambda row: -row[1].mean)
    kinds = {arm.name: arm.name.partition("-")[0] for arm in arms}  # gfsa-3e-2: GFSA
    look = looks({kinds[arm.name]: arm.variant for arm in arms})
    for place, (arm, paired) in enumerate(rows):
        ends = paired.interval.ends if paired.interval else (paired.mean, paired.mean)
        own = look[kinds[arm.name]]
        low, mean, high = (100 * value / plain.mean for value in (ends[0], paired.mean, ends[1]))
        axes.plot([low, high], [place, place], color=own.colour, linewidth=2.5)
        axes.plot(mean, place, "o", color=own.colour, markersize=7)
    axes.axvline(0, color="black", linewidth=1)
    labels = {SAME_TIME: "plain,\nGFSA's time"}
    names = [labels.get(arm.name, look[kinds[arm.name]].label) for arm, _ in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_xlabel("difference to plain attention, in % (less is better)")
    axes.set_title(title, fontsize=10)
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
    axes.set_title("Cost: attention forward and backward", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
