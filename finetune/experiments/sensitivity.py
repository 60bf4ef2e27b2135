"""The figure of a sweep: how a metric depends on what was varied, with its spread over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.experiments.best import best
from finetune.experiments.drawing import BASELINE, dot_rows, plain_attention
from finetune.experiments.gather import ArmResult, TaskResult
from finetune.experiments.space import described, shown
from hf_graphattn.diagnostics.drawing import COLOURS, line, panels, style, whole_ticks

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
    counts = {flag: len({_key(arm, [flag]) for arm in task.settings}) for flag in task.swept}
    varied = [flag for flag, count in counts.items() if count > 1]
    numeric = [flag for flag in varied if _is_numeric(task, flag)]
    others = [flag for flag in varied if flag not in numeric]
    groups = len({_key(arm, others) for arm in task.settings})
    if len(numeric) == 1 and len(others) < 2 and groups <= MOST_LINES:
        return lines(task, numeric[0], others)
    is_grid = math.prod(counts[flag] for flag in numeric) == len(task.settings)
    if len(numeric) == 2 and not others and is_grid:
        return heat_map(task, *numeric)
    return slices(task, numeric) if len(numeric) > 1 else dots(task, varied or task.swept)


def lines(task: TaskResult, flag: str, others: Sequence[str]) -> Figure:
    """The metric against one flag: mean, band of one standard deviation, a dot a seed.

    With plain attention beside it, a second panel: the paired difference and its 95 % interval,
    from which what a seed does to all settings alike has dropped out.
    """
    has_pairs = any(arm.paired for arm in task.settings)
    said = "dots are seeds, bands one standard deviation"
    said += ", at the right 95 % intervals" if has_pairs else ""
    figure, axes = panels(2 if has_pairs else 1, _title(task, said))
    for i, arms in enumerate(_groups(task, flag, others)):
        values = {arm.setting[flag]: list(arm.values.values()) for arm in arms}
        _line(axes[0], i, values, [arm.spread for arm in arms], _label(arms[0], others))
        if has_pairs:
            pairs = {arm.setting[flag]: arm.paired for arm in arms if arm.paired}
            values = {x: list(pair.differences.values()) for x, pair in pairs.items()}
            _line(
                axes[1],
                i,
                values,
                [p.interval.ends if p.interval else None for p in pairs.values()],
            )
    plain_attention(axes[0], task.plain)
    style(axes[0], flag, f"{task.title} ({task.direction})")
    if others or task.plain is not None:
        axes[0].legend(frameon=False, fontsize=8)
    if has_pairs:
        axes[1].axhline(0, color=COLOURS[BASELINE], linestyle="--", linewidth=1.2)
        style(axes[1], flag, "paired difference to plain attention")
    for axis in axes:
        _scale(axis, task, flag)
    return figure


def heat_map(task: TaskResult, down: str, across: str) -> Figure:
    """The mean for each pair of values, its standard deviation below it."""
    rows, columns = (sorted({arm.setting[f] for arm in task.settings}) for f in (down, across))
    plain = "" if task.plain is None else f"; plain attention {_mean_and_spread(task.plain, ' ')}"
    figure, (axis,) = panels(1, _title(task, f"mean and standard deviation{plain}"))
    figure.set_size_inches(max(6.4, 1.9 + 0.85 * len(columns)), 1.7 + 0.6 * len(rows))
    arms = {
        (rows.index(arm.setting[down]), columns.index(arm.setting[across])): arm
        for arm in task.settings
        if arm.values
    }
    means = np.full((len(rows), len(columns)), np.nan)
    for place, arm in arms.items():
        means[place] = arm.mean
    image = axis.imshow(means, cmap="cividis", origin="lower", aspect="auto")
    for (i, j), arm in arms.items():
        colour = "black" if image.norm(arm.mean) > 0.55 else "white"
        words = _mean_and_spread(arm, "\n")
        axis.text(j, i, words, ha="center", va="center", color=colour, size=8)
    style(axis, across, down)
    axis.grid(False)
    axis.set_xticks(range(len(columns)), [shown(value) for value in columns])
    axis.set_yticks(range(len(rows)), [shown(value) for value in rows])
    figure.colorbar(image, label=f"{task.title} ({task.direction})")
    return figure


def slices(task: TaskResult, flags: Sequence[str]) -> Figure:
    """A panel a flag: each setting's mean and standard deviation against its value."""
    said = "mean and standard deviation of each setting; the diamond is the best"
    figure, axes = panels(len(flags), _title(task, said))
    top = best(task)
    for flag, axis in zip(flags, axes, strict=True):
        for arm in task.settings:
            if arm.values and arm is not top:
                x, band = arm.setting[flag], arm.deviation
                axis.errorbar(x, arm.mean, band, fmt="o", color=COLOURS[0], alpha=0.55, ms=4.5)
        if top is not None:
            x, band = top.setting[flag], top.deviation
            axis.errorbar(x, top.mean, band, fmt="D", color=COLOURS[1], ms=7, zorder=3)
        plain_attention(axis, task.plain)
        style(axis, flag, f"{task.title} ({task.direction})")
        _scale(axis, task, flag)
    return figure


def dots(task: TaskResult, flags: Sequence[str]) -> Figure:
    """A row a setting: a dot a seed, the mean as a diamond."""
    arms = [arm for arm in task.settings if arm.values]
    figure, (axis,) = panels(1, _title(task, "dots are seeds, the diamond is their mean"))
    figure.set_figheight(1.5 + 0.4 * len(arms))
    values = [list(arm.values.values()) for arm in arms]
    dot_rows(axis, [_label(arm, flags) for arm in arms], values)
    plain_attention(axis, task.plain, upright=True)
    style(axis, f"{task.title} ({task.direction})", "")
    if task.plain is not None:
        axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _groups(task: TaskResult, flag: str, others: Sequence[str]) -> Iterator[list[ArmResult]]:
    """The settings with values that have the other flags in common, in the flag's order."""
    for key in dict.fromkeys(_key(arm, others) for arm in task.settings):
        arms = [arm for arm in task.settings if arm.values and _key(arm, others) == key]
        if arms:
            yield sorted(arms, key=lambda arm: arm.setting[flag])


def _line(
    axis: Axes,
    i: int,
    values: Mapping[float, Sequence[float]],
    bands: Sequence[tuple[float, float] | None],
    label: str = "",
) -> None:
    """A dot a seed, the means, and a band about them where every point has one."""
    x, colour = list(values), COLOURS[i]
    for at, of_seeds in values.items():
        axis.plot([at] * len(of_seeds), of_seeds, "o", color=colour, alpha=0.35, ms=4, mew=0)
    line(axis, i, (x, np.array([fmean(of_seeds) for of_seeds in values.values()]), None), label)
    ends = [band for band in bands if band is not None]
    if ends and len(ends) == len(x):
        low, high = zip(*ends, strict=True)
        axis.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)


def _scale(axis: Axes, task: TaskResult, flag: str) -> None:
    """A scale that fits the flag's values."""
    values = [arm.setting[flag] for arm in task.settings]
    if min(values) > 0 and (flag.endswith("learning_rate") or max(values) / min(values) >= WIDE):
        axis.set_xscale("log")
    elif all(isinstance(value, int) for value in values):
        whole_ticks(axis)


def _mean_and_spread(arm: ArmResult, between: str) -> str:
    spread = "" if arm.deviation is None else f"{between}± {arm.deviation:.3f}"
    return f"{arm.mean:.3f}{spread}"


def _title(task: TaskResult, what: str) -> str:
    seeds = max(len({*arm.values, *arm.missing}) for arm in task.settings)
    variant = task.settings[0].flags.get("variant", "none")
    return f"{task.task}, {variant}, {seeds} seed{'s' if seeds > 1 else ''}: {what}"


def _label(arm: ArmResult, flags: Sequence[str]) -> str:
    """The values of these flags, without those that were not given if any was."""
    values = {flag: arm.setting.get(flag) for flag in flags}
    given = {flag: value for flag, value in values.items() if value is not None}
    return described(given or values)


def _key(arm: ArmResult, flags: Sequence[str]) -> str:
    return json.dumps([arm.setting.get(flag) for flag in flags])


def _is_numeric(task: TaskResult, flag: str) -> bool:
    values: list[Any] = [arm.setting.get(flag) for arm in task.settings]
    return all(type(value) in (int, float) for value in values)
