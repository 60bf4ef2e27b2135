"""The figure of a sweep: how a metric depends on what was varied, with its spread over seeds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
import seaborn as sns
from pandas.api.types import is_numeric_dtype

from finetune.experiments.best import best
from finetune.experiments.figures import dot_rows, frame
from finetune.experiments.gather import ArmResult, TaskResult
from finetune.experiments.space import described
from finetune.plurals import many
from hf_graphattn.diagnostics.drawing import SMALL, TEXT, panels, style, whole_ticks
from hf_graphattn.diagnostics.palette import BLACK, PLAIN, Look, looks, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 6  # of one panel
WITH_SPREAD, WITH_MEANS = 5, 8  # columns of a heat map whose cells have room for so much
LINE = 27  # characters of a setting beside its row
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
    own = looks(dict.fromkeys(data["label"].unique(), _variant(task)))
    colours = [look.colour for look in own.values()]
    drawn = {"value": "sd"} | ({"difference": None} if any(a.paired for a in task.settings) else {})
    said = "dots are seeds, bands one standard deviation"
    said += ", below 95 % intervals" if len(drawn) > 1 else ""
    figure, axes = panels(len(drawn), _title(task, said))
    for axis, (name, band) in zip(axes, drawn.items(), strict=True):
        how = {"x": flag, "y": name, "hue": "label", "palette": colours, "ax": axis}
        sns.scatterplot(data, **how, alpha=0.35, s=12, legend=False)
        legend = name == "value" and len(own) > 1
        points = {"marker": "o", "markersize": 4, "linewidth": 1.2}
        sns.lineplot(data, **how, **points, errorbar=band, legend=legend)
        _scale(axis, data[flag])
    for label, look in own.items():
        settings = set(data["arm"][data["label"] == label])
        _intervals(axes[-1], [a for a in task.settings if a.name in settings], flag, look.colour)
    plain_attention(axes[0], task.plain)
    style(axes[0], flag, _metric(task))
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(frameon=False, fontsize=SMALL)
    if len(drawn) > 1:
        axes[1].axhline(0, color=BLACK, linestyle="--", linewidth=0.8)
        style(axes[1], flag, f"difference to {title(PLAIN[0])},\npaired by seed")
    return figure


def heat_map(task: TaskResult, data: pd.DataFrame, down: str, across: str) -> Figure:
    """The mean for each pair of values, its standard deviation below it; of many what fits."""
    means = data.pivot_table(index=down, columns=across, values="value")
    height, width = means.shape
    words = {arm.name: arm.words(3).replace(" ±", "\n±") for arm in task.settings}
    if width > WITH_SPREAD:
        words = {name: said.partition("\n")[0] for name, said in words.items()}
    said = data.assign(words=data["arm"].map(words)).drop_duplicates("arm")
    said = said.pivot(index=down, columns=across, values="words")
    what = "mean and standard deviation" if width <= WITH_SPREAD else "mean"
    plain = "" if task.plain is None else f"; {title(PLAIN[0])} {task.plain.words(3)}"
    lines = 2 if width <= WITH_SPREAD else 1
    size = 1.2 + (0.1 + 0.12 * lines) * height
    figure, (axis,) = panels(1, _title(task, f"{what}{plain}"), height=size)
    bar = {"location": "bottom", "aspect": 40}
    how = {"annot": said if width <= WITH_MEANS else None, "annot_kws": {"size": SMALL}}
    sns.heatmap(means, cmap="cividis", fmt="", cbar_kws=bar, ax=axis, **how)
    scale = axis.collections[0].colorbar.ax
    scale.set_xlabel(_metric(task), fontsize=TEXT)
    scale.tick_params(labelsize=SMALL)
    axis.invert_yaxis()
    axis.tick_params(rotation=0)
    style(axis, across, down)
    axis.grid(False)
    return figure


def slices(task: TaskResult, data: pd.DataFrame, flags: Sequence[str]) -> Figure:
    """A panel a flag: each setting's mean and standard deviation against its value."""
    top, (own, other) = best(task), looks({"best": _variant(task), "others": ""}).values()
    said = "mean and standard deviation of each setting"
    said += "; the diamond is the best" if top else ""
    figure, axes = panels(len(flags), _title(task, said))
    is_top = [top is not None and top.name == name for name in data["arm"].unique()]
    for flag, axis in zip(flags, axes, strict=True):
        sns.pointplot(
            data,
            x=flag,
            y="value",
            hue="arm",
            palette=[other.colour if top else own.colour for top in is_top],
            markers=["D" if top else "o" for top in is_top],
            **{"errorbar": "sd", "linestyle": "none", "markersize": 4, "linewidth": 1.2},
            **{"native_scale": True, "legend": False, "ax": axis},
        )
        plain_attention(axis, task.plain)
        style(axis, flag, _metric(task))
        _scale(axis, data[flag])
    return figure


def dots(task: TaskResult, data: pd.DataFrame) -> Figure:
    """A row a setting: a dot a seed, the mean as a diamond."""
    figure, (axis,) = panels(1, _title(task, "dots are seeds, the diamond is their mean"))
    (look,) = looks({_variant(task): _variant(task)}).values()
    labels = dict(zip(data["arm"], data["label"], strict=True))
    said = {
        arm: textwrap.fill(label, LINE, break_long_words=False) for arm, label in labels.items()
    }
    rows = {arm: Look(label, look.colour, look.marker) for arm, label in said.items()}
    most = max(label.count("\n") for label in said.values())
    figure.set_figheight(1.2 + (0.3 + 0.08 * most) * len(rows))
    dot_rows(axis, data, "value", rows)
    plain_attention(axis, task.plain, upright=True)
    style(axis, _metric(task), "")
    if task.plain is not None:
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
        axis.legend(frameon=False, fontsize=SMALL, **place)
    return figure


def plain_attention(axis: Axes, plain: ArmResult | None, *, upright: bool = False) -> None:
    """A line at plain attention's mean, across the panel or upright, with a band about it."""
    if plain is None:
        return
    line, area = (axis.axvline, axis.axvspan) if upright else (axis.axhline, axis.axhspan)
    line(plain.mean, color=BLACK, linestyle="--", linewidth=0.8, label="plain attention")
    spread = plain.deviation or 0
    area(plain.mean - spread, plain.mean + spread, color=BLACK, alpha=0.08, lw=0)


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


def _variant(task: TaskResult) -> str:
    return str(task.settings[0].flags.get("variant", PLAIN[0]))


def _metric(task: TaskResult) -> str:
    return f"{task.label}\n({task.direction})"


def _title(task: TaskResult, what: str) -> str:
    seeds = max(len({*arm.values, *arm.missing}) for arm in task.settings)
    return f"{task.task}, {title(_variant(task))}, {many(seeds, 'seed')}: {what}"


def _label(task: TaskResult, name: str, flags: Sequence[str]) -> str:
    """A setting's values of these flags, without those that were not given if any was."""
    setting = next(arm.setting for arm in task.settings if arm.name == name)
    values = {flag: setting.get(flag) for flag in flags}
    given = {flag: value for flag, value in values.items() if value is not None}
    return described(given or values)
