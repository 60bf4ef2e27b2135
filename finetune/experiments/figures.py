"""The figures of a comparison: paired differences, and learning curves with bands over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.engine.progress import LOG
from finetune.experiments.drawing import BASELINE, dot_rows
from finetune.experiments.gather import TaskResult
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import Results
from hf_graphattn.diagnostics.drawing import legend, line, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 60  # points of a curve of the training loss

Curve = tuple[np.ndarray, np.ndarray]  # steps and values


def differences(found: Sequence[TaskResult]) -> Figure:
    """A panel for each task: a row an arm, a dot a seed, their mean with its 95 % interval."""
    shown = [task for task in found if any(arm.paired for arm in task.arms)]
    title = "Dots are seeds, the diamond is their mean with its 95 % interval"
    figure, axes = panels(len(shown), title, columns=1)
    for task, axis in zip(shown, axes, strict=True):
        baseline, *arms = task.arms
        values = [list(arm.paired.differences.values()) if arm.paired else [] for arm in arms]
        intervals = [arm.paired.interval if arm.paired else None for arm in arms]
        dot_rows(axis, [arm.name for arm in arms], values, intervals)
        axis.axvline(0, color="0.5", linewidth=1)
        way = "right" if task.greater_is_better else "left"
        words = f"{task.title}: difference to {baseline.name} ({way} is better)"
        style(axis, words, "", title=task.task)
    figure.set_figheight(0.8 + sum(0.62 * (len(task.arms) - 1) + 0.9 for task in shown))
    return figure


def learning_curves(task: TaskResult, cells: Sequence[Cell], done: Mapping[str, Results]) -> Figure:
    """Training loss and the metric against the step, mean and band over seeds.

    Args:
        task: whose arms are drawn.
        cells: the grid.
        done: what its finished runs wrote, by the run's name.
    """
    figure, (left, right) = panels(2, f"{task.task}: mean and standard deviation over the seeds")
    for i, arm in enumerate(task.arms):
        runs = [
            cell.run
            for cell in cells
            if (cell.task, cell.arm.name) == (task.task, arm.name) and cell.run.name in done
        ]
        _curve(left, i, loss_curves([run.folder for run in runs]), arm.name, has_markers=False)
        histories = (done[run.name]["history"] for run in runs)
        _curve(right, i, metric_curves(histories, task.metric), arm.name)
    style(left, "step", "training loss")
    style(right, "step", f"{task.title} ({task.direction})")
    drawn = [axis for axis in (right, left) if axis.lines]
    if drawn:  # else no run has a log, nor a value
        legend(figure, drawn[:1])
    return figure


def loss_curves(folders: Sequence[Path]) -> list[Curve]:
    """The training loss of each run's log, as means of up to 60 stretches.

    All are cut where the shortest ends, so that a stretch is the same steps in each; runs without a
    log are left out.
    """
    logs = [points for points in map(_losses, folders) if len(points)]
    if not logs:
        return []
    last = min(points[-1, 0] for points in logs)
    common = [points[points[:, 0] <= last] for points in logs]
    count = min(BINS, *(len(points) for points in common))
    return [_curve_of([s.mean(axis=0) for s in np.array_split(p, count)]) for p in common]


def metric_curves(histories: Iterable[Sequence[Results]], metric: str) -> list[Curve]:
    """The metric after each epoch of each run; runs without a value are left out."""
    curves = [
        [(epoch["step"], epoch[metric]) for epoch in history if epoch.get(metric) is not None]
        for history in histories
    ]
    return [_curve_of(points) for points in curves if points]


def _losses(folder: Path) -> np.ndarray:
    """(step, loss) of a run's log, a row each."""
    path = folder / LOG
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    points = [(x["step"], x["loss"]) for x in map(json.loads, lines) if x.get("loss") is not None]
    return np.asarray(points, dtype=np.float64).reshape(-1, 2)


def _curve_of(points: Sequence[Sequence[float] | np.ndarray]) -> Curve:
    steps, values = np.asarray(points, dtype=np.float64).T
    return steps, values


def _curve(
    axis: Axes, i: int, curves: Sequence[Curve], name: str, *, has_markers: bool = True
) -> None:
    """Mean and band of the i-th arm's runs, up to where the shortest was stopped."""
    if not curves:
        return
    length = min(len(steps) for steps, _ in curves)
    values = np.stack([values[:length] for _, values in curves])
    band = values.std(axis=0, ddof=1) if len(values) > 1 else None
    how: dict[str, Any] = {} if has_markers else {"marker": ""}
    if i == 0:  # the baseline is dashed and on top: seen where another curve lies on it
        how |= {"linestyle": "--", "zorder": 3}
    line(axis, BASELINE + i, (curves[0][0][:length], values.mean(axis=0), band), name, **how)
