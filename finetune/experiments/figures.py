"""The figures of a comparison: paired differences, and learning curves with bands over seeds.

Panels and looks are those of the library's diagnostics: an arm has its colour in every figure.
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
from hf_graphattn.diagnostics.drawing import legend, panels, readable, style
from hf_graphattn.diagnostics.palette import Look, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRETCHES = 60  # points of a curve of the training loss
MARKED = 20  # a curve of at most so many points has a marker at each


def looks_of(arms: Sequence[ArmResult]) -> dict[str, Look]:
    """The look of each arm, by its name and its variant."""
    return looks({arm.name: arm.variant for arm in arms})


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
    has_intervals = any(a.paired and a.paired.interval for task in drawn for a in task.arms)
    title = "Dots are seeds, the diamond is their mean"
    title += " with its 95 % interval" if has_intervals else ""
    figure, axes = panels(len(drawn), title)
    for task, axis in zip(drawn, axes, strict=True):
        own = looks_of(task.arms)
        baseline, *arms = task.arms
        intervals = {arm.name: arm.paired.interval for arm in arms if arm.paired}
        dot_rows(axis, frame(arms), "difference", {a.name: own[a.name] for a in arms}, intervals)
        axis.axvline(0, color=own[baseline.name].colour, linewidth=0.8, linestyle="--")
        way = "right" if task.greater_is_better else "left"
        words = f"{task.label}: difference to {own[baseline.name].label}\n({way} is better)"
        style(axis, words, "", title=task.task)
    figure.set_figheight(0.5 + sum(0.42 * (len(task.arms) - 1) + 0.8 for task in drawn))
    return figure


def dot_rows(
    axis: Axes,
    data: pd.DataFrame,
    name: str,
    rows: Mapping[str, Look],
    intervals: Mapping[str, Interval | None] | None = None,
) -> None:
    """A row for each arm: a dot for each value, above them their mean, perhaps its interval.

    Args:
        axis: where to draw.
        data: made by `frame`.
        name: of its column.
        rows: how each arm is drawn and called.
        intervals: by arm.
    """
    colours = [look.colour for look in rows.values()]
    how = {"hue": "arm", "palette": colours, "order": list(rows), "hue_order": list(rows)}
    sns.swarmplot(data, x=name, y="arm", ax=axis, size=3, alpha=0.5, legend=False, **how)
    means = data.groupby("arm")[name].mean().dropna()
    for y, (arm, look) in enumerate(rows.items()):
        interval = (intervals or {}).get(arm)
        if arm in means:
            ends = interval.ends if interval else (means[arm], means[arm])
            axis.plot(ends, [y - 0.28] * 2, color=look.colour, lw=1.6)
            axis.plot(means[arm], y - 0.28, "D", color=look.colour, ms=4)
    axis.set_yticks(range(len(rows)), [readable(look.label) for look in rows.values()])
    axis.set_ylim(len(rows) - 0.5, -0.7)
    axis.margins(x=0.08)
    axis.locator_params(axis="x", nbins=5)  # of more, the numbers would meet


def learning_curves(
    task: TaskResult, cells: Sequence[Cell], done: Mapping[str, Results]
) -> Figure | None:
    """Training loss and the metric against the step, mean and band over seeds.

    Where there are other arms, below each panel one of their differences to the baseline, in which
    curves do not hide each other. What has no curve, as a metric that was measured once, is left
    out; None if all is.

    Args:
        task: whose arms are drawn.
        cells: the grid.
        done: what its finished runs wrote, by the run's name.
    """
    own, baseline = looks_of(task.arms), task.arms[0].name
    ended = [cell for cell in cells if cell.task == task.task and cell.run.name in done]
    logs = ((cell, read_log(cell.run.folder)) for cell in ended)
    losses = in_stretches(curves(logs, "loss"))
    values = curves(((cell, done[cell.run.name]["history"]) for cell in ended), task.metric)
    wanted, left_out = [], []
    for label, way, data in (
        ("training loss", "", losses),
        (task.label, f"\n({task.direction})", values),
    ):
        if (data.groupby("arm")["step"].nunique() > 1).any():
            wanted.append((f"{label}{way}", data, False))
            less = to_baseline(data, baseline)
            if len(less):
                wanted.append((f"{label}: difference\nto {own[baseline].label}", less, True))
        elif len(data):
            left_out.append(f"; {label} was measured once")
    if not wanted:
        return None
    said = f"{task.task}: mean and standard deviation over the seeds{''.join(left_out)}"
    figure, axes = panels(len(wanted), said)
    for axis, (label, data, is_difference) in zip(axes, wanted, strict=True):
        _draw(axis, data, own, label)
        if is_difference:
            axis.axhline(0, color=own[baseline].colour, linewidth=0.8, linestyle="--")
    legend(figure, axes)
    return figure


def to_baseline(data: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """The other arms' values less the baseline's of the same seed and step, where it has one."""
    keys = ["seed", "step"]
    base = data[data["arm"] == baseline][[*keys, "value"]]
    both = data[data["arm"] != baseline].merge(base, on=keys, suffixes=("", "_baseline"))
    return both.assign(value=both["value"] - both["value_baseline"])[data.columns]


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


def _draw(axis: Axes, data: pd.DataFrame, own: Mapping[str, Look], label: str) -> None:
    """Mean and band of each arm, the last of them below, so that the baseline is seen."""
    style(axis, "step", label)
    arms = [name for name in own if name in set(data["arm"])]
    for place, name in enumerate(arms):
        by_step = data[data["arm"] == name].groupby("step")["value"]
        mean, spread = by_step.mean(), by_step.std().fillna(0)
        look = own[name]
        marker = look.marker if len(mean) <= MARKED else ""
        how: dict[str, Any] = {"marker": marker, "ms": 3.5, "lw": 1.2, "color": look.colour}
        order = 2 + len(arms) - place
        axis.plot(mean.index, mean, label=readable(look.label), zorder=order, **how)
        ends = (mean - spread, mean + spread)
        axis.fill_between(mean.index, *ends, color=look.colour, alpha=0.15, lw=0)
