"""The papers' figures beside ours: docs/figures.png, in the papers' axes.

    python tools/figures.py

Drawn from committed numbers alone: a sweep and two looks inside of docs/evidence.md, and what
GFSA's Table 8 prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.experiments import analyze
from hf_graphattn.diagnostics.drawing import GREY, looks

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence"
# arXiv 2312.04234, Table 8: GPT-2 small on Penn Treebank, plain and with K = 2 to 9.
PLAIN, PUBLISHED = 19.513, (19.459, 19.456, 19.453, 19.452, 19.451, 19.450, 19.450, 19.450)


def main(argv: Sequence[str] | None = None) -> None:
    """Draw it into the file of the first argument; by default into the one that docs has."""
    from matplotlib.figure import Figure

    (target,) = (sys.argv[1:] if argv is None else argv) or [str(ROOT / "docs" / "figures.png")]
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    order, *depths = figure.subplots(1, 3)
    by_order(order)
    by_depth(depths[0], "digits", "Fig. 2 (b): digits, a ViT from nothing")
    by_depth(depths[1], "sst2", "Fig. 4 (b): SST-2, a BERT fine-tuned")
    figure.savefig(target, dpi=150)


def by_order(axes: Any) -> None:
    """The change of perplexity against K, ours with its intervals, and the paper's."""
    (task,) = analyze.results_of(json.loads((EVIDENCE / "gfsa-order.json").read_text("utf-8")))
    plain, look = task.arms[0].mean, looks({"gfsa": "gfsa"})["gfsa"]
    found = [(int(arm.setting["order"]), arm.paired) for arm in task.settings if arm.paired]
    orders, means = [k for k, _ in found], [100 * paired.mean / plain for _, paired in found]
    half = [100 * paired.interval.half_width / plain for _, paired in found if paired.interval]
    axes.errorbar(
        orders, means, half, color=look.colour, marker=look.marker, label="ours, GPT-2 of 1.4 M"
    )
    theirs = [100 * (value - PLAIN) / PLAIN for value in PUBLISHED]
    axes.plot(range(2, 10), theirs, "--", marker="o", color=GREY, label="the paper's, GPT-2 small")
    axes.set_xlabel("K")
    axes.set_ylabel("perplexity: difference to plain, in %")
    axes.set_title("GFSA, Table 8, in the axes of Fig. 6", fontsize=10)
    _finish(axes)


def by_depth(axes: Any, study: str, title: str) -> None:
    """The tokens' cosine similarity by layer, means over seeds."""
    seeds = json.loads((EVIDENCE / f"{study}-depth.json").read_text("utf-8"))["seeds"].values()
    arms = list(next(iter(seeds)))
    for name, look in looks({arm: arm for arm in arms}).items():
        mean = np.mean([of_seed[name]["cosine"] for of_seed in seeds], axis=0)
        axes.plot(mean, marker=look.marker, color=look.colour, markersize=4, label=look.label)
    axes.set_xlabel("layer (0: embeddings)")
    axes.set_ylabel("cosine similarity of tokens")
    axes.set_title(f"GFSA, {title}", fontsize=10)
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")


if __name__ == "__main__":
    main()
