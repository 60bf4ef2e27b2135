"""Pictures of a comparison: paired differences, and learning curves with bands over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.comparison.grid import Cell
from finetune.comparison.results import ArmResult, TaskResult
from finetune.progress import LOG
from hf_graphattn.diagnostics import drawing

COLOURS = (drawing.COLOURS[-1], *drawing.COLOURS[:-1])  # black is the baseline
MARKERS = "osD^vP*"
BINS = 60  # points of a training-loss curve
FORMATS = ("png", "svg")
SIZE = {"png": {"dpi": 150}, "svg": {}}


def differences(found: Sequence[TaskResult]) -> Any:
    """A figure: for each task and arm a dot a seed, and the mean with its 95 % interval."""
    from matplotlib.figure import Figure

    shown = [task for task in found if any(arm.paired for arm in task.arms)]
    heights = [max(len(task.arms) - 1, 1) for task in shown]
    figure = Figure(figsize=(7, 0.9 + sum(0.62 * h + 0.75 for h in heights)), layout="constrained")
    axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
    for task, axis in zip(shown, axes, strict=True):
        _difference_panel(axis, task)
    return figure


def _difference_panel(axis: Any, task: TaskResult) -> None:
    arms = task.arms[1:]
    axis.axvline(0, color="0.5", linewidth=1)
    for y, arm in enumerate(arms):
        if arm.paired is None:
            continue
        colour, values = colour_of(y + 1), list(arm.paired.differences.values())
        spread = np.linspace(-0.16, 0.16, len(values)) if len(values) > 1 else [0.0]
        axis.plot(values, y + 0.12 + np.asarray(spread), "o", color=colour, alpha=0.45, ms=4.5)
        interval = arm.paired.interval
        if interval is not None:
            bounds = [interval.low, interval.high]
            axis.plot(bounds, [y - 0.22] * 2, color=colour, linewidth=2.2, solid_capstyle="butt")
        axis.plot(arm.paired.mean, y - 0.22, "D", color=colour, ms=6)
    axis.set_yticks(range(len(arms)), [arm.name for arm in arms])
    axis.set_ylim(len(arms) - 0.4, -0.6)
    way = "right is better" if task.greater_is_better else "left is better"
    axis.set_xlabel(f"{task.title}: difference to {task.arms[0].name} ({way})")
    axis.set_title(
        f"{task.task}: dots are seeds, the diamond their mean with its 95 % interval", fontsize=9
    )
    axis.grid(axis="x", alpha=0.25)
    axis.margins(x=0.08)


def learning_curves(task: TaskResult, cells: Sequence[Cell]) -> Any:
    """A figure: training loss and the metric against the step, mean and band over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, arm in enumerate(task.arms):
        runs = [c.run for c in cells if (c.task, c.arm) == (task.task, arm.name)]
        losses = loss_curves([run.folder for run in runs if run.is_done()])
        _band(left, losses, i, arm.name, marked=False)
        _band(right, list(_metric_curves(arm, task.metric)), i, arm.name, marked=True)
    left.set_ylabel("training loss")
    right.set_ylabel(f"{task.title} ({'greater' if task.greater_is_better else 'less'} is better)")
    for axis in (left, right):
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
    (right if right.lines else left).legend(frameon=False)
    figure.suptitle(f"{task.task}: mean over the seeds, band of one standard deviation", size=10)
    return figure


def loss_curves(folders: Sequence[Path]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Steps and training loss of each run's log, as means of up to 60 stretches.

    All are cut where the shortest ends, so that a stretch is the same steps in each; runs without a
    log are left out.
    """
    logs = [points for points in map(_losses, folders) if len(points)]
    if not logs:
        return []
    last = min(points[-1, 0] for points in logs)
    common = [points[points[:, 0] <= last] for points in logs]
    count = min(BINS, *(len(points) for points in common))
    curves = [[s.mean(axis=0) for s in np.array_split(points, count)] for points in common]
    return [tuple(np.asarray(curve).T) for curve in curves]


def _losses(folder: Path) -> np.ndarray:
    """(step, loss) of a run's log, a row each."""
    path = folder / LOG
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    points = [(x["step"], x["loss"]) for x in map(json.loads, lines) if x.get("loss") is not None]
    return np.asarray(points, dtype=np.float64).reshape(-1, 2)


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """As PNG and SVG, with the same bytes each time; returns the paths."""
    import matplotlib

    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    with matplotlib.rc_context({"svg.hashsalt": name}):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, metadata=metadata, **SIZE[path.suffix[1:]])
    return paths


def _metric_curves(arm: ArmResult, metric: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for run in arm.runs.values():
        points = [(h["step"], h[metric]) for h in run["history"] if h.get(metric) is not None]
        if points:
            steps, values = np.asarray(points, dtype=np.float64).T
            yield steps, values


def _band(
    axis: Any, curves: list[tuple[np.ndarray, np.ndarray]], i: int, name: str, *, marked: bool
) -> None:
    """Mean and band of curves; of those that early stopping cut, what they have in common."""
    if not curves:
        return
    length = min(len(steps) for steps, _ in curves)
    steps = curves[0][0][:length]
    values = np.stack([values[:length] for _, values in curves])
    mean, colour = values.mean(axis=0), colour_of(i)
    style: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "ms": 4} if marked else {}
    if i == 0:  # the baseline, seen where another curve lies on it
        style |= {"linestyle": "--", "zorder": 3}
    axis.plot(steps, mean, color=colour, label=name, linewidth=1.4, **style)
    if len(values) > 1:
        deviation = values.std(axis=0, ddof=1)
        axis.fill_between(steps, mean - deviation, mean + deviation, color=colour, alpha=0.15)


def colour_of(i: int) -> str:
    """The colour of the i-th arm; 0 is the baseline."""
    return COLOURS[i % len(COLOURS)]
