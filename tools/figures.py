"""The papers' figures beside ours: docs/figures.png, in the papers' axes.

    python tools/figures.py
    python tools/figures.py --runs runs/evidence/depth4 runs/evidence/depth4-others  # curves first

Drawn from committed numbers alone: a sweep and looks inside of docs/evidence.md, the training
losses of two of its studies, and what GFSA's Table 8 prints.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.experiments import analyze
from hf_graphattn.diagnostics.drawing import GREY, PRESETS, looks

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence"
CURVES, STEPS = EVIDENCE / "depth4-curves.json", 2000
# arXiv 2312.04234, Table 8: GPT-2 small on Penn Treebank, plain and with K = 2 to 9.
PLAIN, PUBLISHED = 19.513, (19.459, 19.456, 19.453, 19.452, 19.451, 19.450, 19.450, 19.450)


def main(argv: Sequence[str] | None = None) -> None:
    """Draw it."""
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default=str(ROOT / "docs" / "figures.png"))
    parser.add_argument("--runs", type=Path, nargs="+", help="Keep the losses of these runs first.")
    options = parser.parse_args(argv)
    if options.runs is not None:
        CURVES.write_text(json.dumps(curves(options.runs), indent=1) + "\n", "utf-8")
    figure = Figure(figsize=(12, 7.2), layout="constrained")
    (response, similarity, values), (bert, order, loss) = figure.subplots(2, 3)
    spectrum(response, "fourier_response", "Fig. 2 (a): digits, response to waves", "‖H f‖")
    response.set_xlabel("frequency (0: constant, 1: changes at every token)")
    by_depth(similarity, "digits", "Fig. 2 (b): digits, a ViT from nothing")
    spectrum(values, "singular_values", "Fig. 2 (c): digits, last features", "σ / σ₁")  # noqa: RUF001
    values.set_xlabel("index of the singular value (0 largest, 1 smallest)")
    values.set_yscale("log")
    by_depth(bert, "sst2", "Fig. 4 (b): SST-2, a BERT fine-tuned")
    by_order(order)
    by_step(loss)
    figure.savefig(options.target, dpi=150)


def curves(studies: Sequence[Path]) -> dict[str, Any]:
    """The training loss less plain attention's, by arm: means over seeds and 40 parts of a run."""
    losses: dict[str, dict[str, Any]] = {}
    for log in sorted(log for study in studies for log in study.glob("*/*/*/train_log.jsonl")):
        rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        steps = {row["step"]: row["loss"] for row in rows if "loss" in row}
        if len(steps) == STEPS:
            parts = [part.mean() for part in np.array_split([*steps.values()], 40)]
            losses.setdefault(log.parts[-3], {})[log.parts[-2]] = np.array(parts)
    plain = losses.pop("none")
    return {
        arm: {
            "seeds": len(seeds),
            "loss": np.mean([loss - plain[seed] for seed, loss in seeds.items()], 0).tolist(),
        }
        for arm, seeds in losses.items()
    }


def spectrum(axes: Any, name: str, title: str, y: str) -> None:
    """A spectrum of the study of digits with controls, means over seeds (and layers and heads)."""
    source = EVIDENCE / "digits-controls-depth.json"
    seeds = json.loads(source.read_text("utf-8"))["seeds"].values()
    for arm, look in looks({"none": "none", "gfsa": "gfsa", "degree1": "degree1"}).items():
        mean = np.mean([of_seed[arm][name] for of_seed in seeds], axis=0)
        axes.plot(np.linspace(0, 1, mean.size), mean, color=look.colour, label=look.label)
    axes.set_ylabel(y)
    axes.set_title(f"GFSA, {title}", fontsize=10)
    _finish(axes, "upper right")


def by_step(axes: Any) -> None:
    """The training loss less plain attention's, by step."""
    found = json.loads(CURVES.read_text("utf-8"))
    kinds = {arm: arm.partition("-")[0] for arm in found}
    look = looks({kind: PRESETS.get(kind, (kind,))[0] for kind in kinds.values()})
    for arm, numbers in found.items():
        own, loss = look[kinds[arm]], numbers["loss"]
        steps = STEPS * (np.arange(len(loss)) + 0.5) / len(loss)
        label = f"{own.label}, {numbers['seeds']} seeds"
        axes.plot(steps, loss, color=own.colour, linewidth=1.2, label=label)
    axes.axhline(0, color="black", linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss: difference to plain, nats")
    axes.set_title("In the axes of A - I, Fig. 3: Shakespeare", fontsize=10)
    _finish(axes, "lower right")


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


def _finish(axes: Any, place: str = "upper left") -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc=place)


if __name__ == "__main__":
    main()
