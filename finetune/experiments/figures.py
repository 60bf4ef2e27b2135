"""The figures of a comparison: paired differences, and learning curves with bands over seeds.

Panels and colours are those of the library's diagnostics: black is the baseline,
or plain attention.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import seaborn as sns

from finetune.engine.progress import LOG
from finetune.experiments.gather import ArmResult, TaskResult
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import Results
from finetune.experiments.space import shown
from finetune.experiments.statistics import Interval
from hf_graphattn.diagnostics.drawing import COLOURS, MARKERS, legend, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

*ARMS, BASELINE = COLOURS
STRETCHES = 60  # points of a curve of the training loss


def frame(arms: Sequence[ArmResult]) -> pd.DataFrame:
    """A row for each arm and seed: its value, the difference, and what its setting is.

    An arm without values has a row without one. Settings that are no numbers are in words.
    """
    flags = dict.fromkeys(flag for arm in arms for flag in arm.setting)
    rows: list[dict[str, Any]] = []
    for arm in arms:
        setting = {flag: arm.setting.get(flag) for flag in flags}
        numbers = {f: v if type(v) in (int, float) else shown(v) for f, v in setting.items()}
        pairs = arm.paired.differences if arm.paired else {}
        own = [{"value": v, "difference": pairs.get(seed)} for seed, v in arm.values.items()]
        rows += [{"arm": arm.name, **numbers, **values} for values in own or [{"value": None}]]
    return pd.DataFrame(rows)


def differences(found: Sequence[TaskResult]) -> Figure:
    """A panel for each task: a row an arm, a dot a seed, their mean with its 95 % interval."""
    drawn = [task for task in found if any(arm.paired for arm in task.arms)]
    title = "Dots are seeds, the diamond is their mean with its 95 % interval"
    figure, axes = panels(len(drawn), title, columns=1)
    for task, axis in zip(drawn, axes, strict=True):
        baseline, *arms = task.arms
        intervals = {arm.name: arm.paired.interval for arm in arms if arm.paired}
        names = {arm.name: arm.name for arm in arms}
        dot_rows(axis, frame(arms), "difference", names, intervals)
        axis.axvline(0, color="0.5", linewidth=1)
        way = "right" if task.greater_is_better else "left"
        words = f"{task.title}: difference to {baseline.name} ({way} is better)"
        style(axis, words, "", title=task.task)
    figure.set_figheight(0.8 + sum(0.62 * (len(task.arms) - 1) + 0.9 for task in drawn))
    return figure


def dot_rows(
    axis: Axes,
    data: pd.DataFrame,
    name: str,
    rows: Mapping[str, str],
    intervals: Mapping[str, Interval | None] | None = None,
) -> None:
    """A row for each arm: a dot for each value, above them their mean, perhaps its interval.

    Args:
        axis: where to draw.
        data: made by `frame`.
        name: of its column.
        rows: what each arm is called.
        intervals: by arm; arms that have some have a colour each, settings have one for all.
    """
    colours = [ARMS[i % len(ARMS) if intervals else 0] for i in range(len(rows))]
    how = {"hue": "arm", "palette": colours, "order": list(rows), "hue_order": list(rows)}
    sns.swarmplot(data, x=name, y="arm", ax=axis, size=4.5, alpha=0.5, legend=False, **how)
    means = data.groupby("arm")[name].mean().dropna()
    for y, (arm, colour) in enumerate(zip(rows, colours, strict=True)):
        interval = (intervals or {}).get(arm)
        if arm in means:
            ends = interval.ends if interval else (means[arm], means[arm])
            axis.plot(ends, [y - 0.28] * 2, color=colour, lw=2.2)
            axis.plot(means[arm], y - 0.28, "D", color=colour, ms=6)
    axis.set_yticks(range(len(rows)), list(rows.values()))
    axis.set_ylim(len(rows) - 0.5, -0.7)
    axis.margins(x=0.08)


def learning_curves(task: TaskResult, cells: Sequence[Cell], done: Mapping[str, Results]) -> Figure:
    """Training loss and the metric against the step, mean and band over seeds.

    Args:
        task: whose arms are drawn.
        cells: the grid.
        done: what its finished runs wrote, by the run's name.
    """
    figure, (left, right) = panels(2, f"{task.task}: mean and standard deviation over the seeds")
    ended = [cell for cell in cells if cell.task == task.task and cell.run.name in done]
    names = [arm.name for arm in task.arms]
    logs = ((cell, read_log(cell.run.folder)) for cell in ended)
    losses = in_stretches(curves(logs, "loss"))
    values = curves(((cell, done[cell.run.name]["history"]) for cell in ended), task.metric)
    _draw(left, losses, names, "training loss", has_markers=False)
    _draw(right, values, names, f"{task.title} ({task.direction})")
    drawn = [axis for axis in (right, left) if axis.lines]
    if drawn:  # else no run has a log, nor a value
        legend(figure, drawn[:1])
    return figure


def curves(runs: Iterable[tuple[Cell, Iterable[Results]]], name: str) -> pd.DataFrame:
    """A row (arm, seed, step, value) for each value of this name, of an arm's steps that all have.

    Runs of an arm are cut where the shortest of them was stopped.
    """
    rows = [
        (cell.arm.name, cell.seed, entry["step"], entry.get(name))
        for cell, entries in runs
        for entry in entries
    ]
    data = pd.DataFrame(rows, columns=["arm", "seed", "step", "value"]).dropna()
    last = data.groupby(["arm", "seed"])["step"].transform("max")
    return data[data["step"] <= last.groupby(data["arm"]).transform("min")]


def in_stretches(data: pd.DataFrame) -> pd.DataFrame:
    """The same as means of up to 60 stretches of steps, which are the same in all runs."""
    width = -(-data["step"].max() // STRETCHES) if len(data) else 1
    stretch = ((data["step"] - 1) // width + 1) * width
    return data.assign(step=stretch).groupby(["arm", "seed", "step"], as_index=False).mean()


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """The entries of a run's log; none where there is no log."""
    path = folder / LOG
    return map(json.loads, path.read_text("utf-8").splitlines() if path.is_file() else [])


def _draw(
    axis: Axes, data: pd.DataFrame, names: Sequence[str], label: str, *, has_markers: bool = True
) -> None:
    """Mean and band of each arm; the baseline is dashed and on top, to be seen under another."""
    style(axis, "step", label)
    known = [i for i, name in enumerate(names) if name in set(data["arm"])]
    if not known:
        return
    arms = [names[i] for i in known]
    sns.lineplot(
        **{"data": data, "x": "step", "y": "value", "errorbar": "sd", "ax": axis},
        **{"hue": "arm", "hue_order": arms, "style": "arm", "style_order": arms},
        palette=[COLOURS[(i - 1) % len(COLOURS)] for i in known],
        dashes=["" if i else (4, 2) for i in known],
        markers=[MARKERS[(i - 1) % len(MARKERS)] for i in known] if has_markers else False,
    )
    axis.set(xlabel="step", ylabel=label)
    axis.lines[0].set_zorder(3 if 0 in known else 2)
    axis.legend().remove()  # one for both panels follows
