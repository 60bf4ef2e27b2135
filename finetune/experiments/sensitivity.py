"""The figure of a sweep: how a metric depends on what was varied, with its spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
import seaborn as sns
from pandas.api.types import is_numeric_dtype

from finetune.experiments.best import best
from finetune.experiments.figures import ARMS, BASELINE, dot_rows, frame
from finetune.experiments.gather import ArmResult, TaskResult
from finetune.experiments.space import described
from hf_graphattn.diagnostics.drawing import panels, style, whole_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 6  # of one panel
WIDE = 100  # numbers above 0 that span so much are drawn on a logarithmic axis


def sensitivity(task: TaskResult) -> Figure:
    """A figure that fits what was varied.

    One flag with numbers, also beside one with few other values: the metric against it. Two with
    numbers on a full grid: a heat map. More, or drawn ones: a panel for each. Others: a row for
    each setting.
    """
    data = frame(task.settings)
    varied = [flag for flag in task.swept if data[flag].nunique() > 1]
    numeric = [flag for flag in varied if is_numeric_dtype(data[flag])]
    others = [flag for flag in varied if flag not in numeric]
    shown = others if numeric else varied or task.swept
    data["label"] = [_label(task, name, shown) for name in data["arm"]]
    found = data.dropna(subset="value")
    if len(numeric) == 1 and len(others) < 2 and data["label"].nunique() <= MOST_LINES:
        return lines(task, found, numeric[0])
    is_grid = math.prod(data[flag].nunique() for flag in numeric) == len(task.settings)
    if len(numeric) == 2 and not others and is_grid:
        return heat_map(task, found, *numeric)
    return slices(task, found, numeric) if len(numeric) > 1 else dots(task, found)


def lines(task: TaskResult, data: pd.DataFrame, flag: str) -> Figure:
    """The metric against one flag: mean, band of one standard deviation, a dot a seed.

    With plain attention beside it, a second panel: the paired difference and its 95 % interval,
    from which what a seed does to all settings alike has dropped out.
    """
    labels = list(data["label"].unique())
    drawn = {"value": "sd"} | ({"difference": None} if any(a.paired for a in task.settings) else {})
    said = "dots are seeds, bands one standard deviation"
    said += ", at the right 95 % intervals" if len(drawn) > 1 else ""
    figure, axes = panels(len(drawn), _title(task, said))
    for axis, (name, band) in zip(axes, drawn.items(), strict=True):
        how = {"x": flag, "y": name, "hue": "label", "palette": ARMS[: len(labels)], "ax": axis}
        sns.scatterplot(data, **how, alpha=0.35, s=20, legend=False)
        legend = name == "value" and len(labels) > 1
        sns.lineplot(data, **how, errorbar=band, marker="o", markersize=5, legend=legend)
        _scale(axis, data[flag])
    for label, colour in zip(labels, ARMS, strict=False):
        settings = set(data["arm"][data["label"] == label])
        _intervals(axes[-1], [a for a in task.settings if a.name in settings], flag, colour)
    plain_attention(axes[0], task.plain)
    style(axes[0], flag, f"{task.title} ({task.direction})")
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(frameon=False, fontsize=8)
    if len(drawn) > 1:
        axes[1].axhline(0, color=BASELINE, linestyle="--", linewidth=1.2)
        style(axes[1], flag, "paired difference to plain attention")
    return figure


def heat_map(task: TaskResult, data: pd.DataFrame, down: str, across: str) -> Figure:
    """The mean for each pair of values, its standard deviation below it."""
    plain = "" if task.plain is None else f"; plain attention {task.plain.words(3)}"
    figure, (axis,) = panels(1, _title(task, f"mean and standard deviation{plain}"))
    means = data.pivot_table(index=down, columns=across, values="value")
    words = {arm.name: arm.words(3).replace(" ±", "\n±") for arm in task.settings}
    said = data.assign(words=data["arm"].map(words)).drop_duplicates("arm")
    said = said.pivot(index=down, columns=across, values="words")
    height, width = means.shape
    figure.set_size_inches(max(6.4, 1.9 + 0.85 * width), 1.7 + 0.6 * height)
    bar = {"label": f"{task.title} ({task.direction})"}
    sns.heatmap(means, annot=said, fmt="", cmap="cividis", cbar_kws=bar, ax=axis)
    axis.invert_yaxis()
    axis.tick_params(rotation=0)
    style(axis, across, down)
    axis.grid(False)
    return figure


def slices(task: TaskResult, data: pd.DataFrame, flags: Sequence[str]) -> Figure:
    """A panel a flag: each setting's mean and standard deviation against its value."""
    said = "mean and standard deviation of each setting; the diamond is the best"
    figure, axes = panels(len(flags), _title(task, said))
    top = best(task)
    is_top = [top is not None and top.name == name for name in data["arm"].unique()]
    for flag, axis in zip(flags, axes, strict=True):
        sns.pointplot(
            data,
            x=flag,
            y="value",
            hue="arm",
            palette=[ARMS[top] for top in is_top],
            markers=["D" if top else "o" for top in is_top],
            **{"errorbar": "sd", "linestyle": "none", "markersize": 5, "linewidth": 1.5},
            **{"native_scale": True, "legend": False, "ax": axis},
        )
        plain_attention(axis, task.plain)
        style(axis, flag, f"{task.title} ({task.direction})")
        _scale(axis, data[flag])
    return figure


def dots(task: TaskResult, data: pd.DataFrame) -> Figure:
    """A row a setting: a dot a seed, the mean as a diamond."""
    figure, (axis,) = panels(1, _title(task, "dots are seeds, the diamond is their mean"))
    rows = dict(zip(data["arm"], data["label"], strict=True))
    figure.set_figheight(1.5 + 0.4 * len(rows))
    dot_rows(axis, data, "value", rows)
    plain_attention(axis, task.plain, upright=True)
    style(axis, f"{task.title} ({task.direction})", "")
    if task.plain is not None:
        axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def plain_attention(axis: Axes, plain: ArmResult | None, *, upright: bool = False) -> None:
    """A line at plain attention's mean, across the panel or upright, with a band about it."""
    if plain is None:
        return
    line, area = (axis.axvline, axis.axvspan) if upright else (axis.axhline, axis.axhspan)
    line(plain.mean, color=BASELINE, linestyle="--", linewidth=1.2, label="plain attention")
    spread = plain.deviation or 0
    area(plain.mean - spread, plain.mean + spread, color=BASELINE, alpha=0.08, lw=0)


def _intervals(axis: Axes, arms: Sequence[ArmResult], flag: str, colour: str) -> None:
    """A band of the intervals of the differences, where every point has one."""
    pairs = sorted((arm.setting[flag], arm.paired) for arm in arms if arm.paired)
    ends = [pair.interval.ends for _, pair in pairs if pair.interval]
    if ends and len(ends) == len(pairs):
        low, high = zip(*ends, strict=True)
        axis.fill_between([x for x, _ in pairs], low, high, color=colour, alpha=0.2, lw=0)


def _scale(axis: Axes, values: pd.Series) -> None:
    """A scale that fits the flag's values."""
    is_rate = str(values.name).endswith("learning_rate")
    if values.min() > 0 and (is_rate or values.max() / values.min() >= WIDE):
        axis.set_xscale("log")
    elif values.dtype.kind == "i":
        whole_ticks(axis)


def _title(task: TaskResult, what: str) -> str:
    seeds = max(len({*arm.values, *arm.missing}) for arm in task.settings)
    variant = task.settings[0].flags.get("variant", "none")
    return f"{task.task}, {variant}, {seeds} seed{'s' if seeds > 1 else ''}: {what}"


def _label(task: TaskResult, name: str, flags: Sequence[str]) -> str:
    """A setting's values of these flags, without those that were not given if any was."""
    setting = next(arm.setting for arm in task.settings if arm.name == name)
    values = {flag: setting.get(flag) for flag in flags}
    given = {flag: value for flag, value in values.items() if value is not None}
    return described(given or values)
