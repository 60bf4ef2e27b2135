"""The sensitivity of a metric to what was swept, with the spread over seeds, as one figure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from finetune.comparison.figures import COLOURS, MARKERS, colour_of
from finetune.comparison.results import ArmResult
from finetune.sweeping import selection
from finetune.sweeping.results import Found
from finetune.sweeping.space import shown

MOST_LINES = 6  # of one panel
COLUMNS = 3  # of panels
WIDE = 100  # numbers above 0 that span so much are drawn on a logarithmic axis


def sensitivity(found: Found) -> Any:
    """A figure that fits what was varied.

    One flag with numbers, also beside one with few other values: the metric against it. Two with
    numbers on a full grid: a heat map. More, or drawn ones: a panel each. Others: a row a setting.
    """
    varied = varied_flags(found)
    numeric = [flag for flag in varied if _is_numeric(found, flag)]
    others = [flag for flag in varied if flag not in numeric]
    groups = len({_key(found, arm, others) for arm in found.rows})
    if len(numeric) == 1 and len(others) < 2 and groups <= MOST_LINES:
        return lines(found, numeric[0], others)
    if len(numeric) == 2 and not others and _is_grid(found, numeric):
        return heat_map(found, *numeric)
    return slices(found, numeric) if len(numeric) > 1 else dots(found)


def varied_flags(found: Found) -> list[str]:
    """The flags with more than one value among the settings."""
    return [
        flag
        for flag in found.sweep.space.flags
        if len({_key(found, arm, [flag]) for arm in found.rows}) > 1
    ]


def lines(found: Found, flag: str, others: Sequence[str]) -> Any:
    """The metric against one flag: mean, band of one standard deviation, a dot a seed.

    With plain attention beside it, a second panel: the paired difference and its 95 % interval,
    where what a seed does to all settings alike has dropped out.
    """
    is_paired = any(arm.paired is not None for arm in found.rows)
    figure, axes = _figure(12.8 if is_paired else 6.4, 4.2, 1, 2 if is_paired else 1)
    keys = list(dict.fromkeys(_key(found, arm, others) for arm in found.rows))
    for i, key in enumerate(keys):
        of_key = [a for a in found.rows if a.values and _key(found, a, others) == key]
        arms = sorted(of_key, key=lambda arm: _value(found, arm, flag))
        label = ", ".join(f"{o} {shown(_value(found, arms[0], o))}" for o in others) if arms else ""
        spreads = [None if a.deviation is None else (a.mean - a.deviation, a.mean + a.deviation)
                   for a in arms]  # fmt: skip
        values = {_value(found, arm, flag): arm.values for arm in arms}
        _line(axes[0, 0], values, spreads, i + 1, label)
        if is_paired:
            paired = {_value(found, a, flag): a.paired for a in arms if a.paired is not None}
            differences = {x: each.differences for x, each in paired.items()}
            intervals = [each.interval and (each.interval.low, each.interval.high)
                         for each in paired.values()]  # fmt: skip
            _line(axes[0, 1], differences, intervals, i + 1)
    _plain_band(axes[0, 0], found.plain)
    for axis in axes.flat:
        _scale(axis, found, flag)
    _metric_axis(axes[0, 0], found)
    if others or found.plain is not None:
        axes[0, 0].legend(frameon=False, fontsize=8)
    spread = "band of one standard deviation, " if len(found.sweep.seeds) > 1 else ""
    said = f"mean over the seeds, {spread}dots are seeds"
    if is_paired:
        axes[0, 1].axhline(0, color=COLOURS[0], linestyle="--", linewidth=1.2)
        axes[0, 1].set_ylabel("paired difference to plain attention")
        said += "; right: differences with 95 % intervals"
    _title(figure, found, said)
    return figure


def heat_map(found: Found, down: str, across: str) -> Any:
    """The mean for each pair of values, its standard deviation below it."""
    rows, columns = (
        sorted({_value(found, arm, flag) for arm in found.rows}) for flag in (down, across)
    )
    figure, axis = _figure(max(6.4, 1.9 + 0.85 * len(columns)), 1.7 + 0.6 * len(rows))
    means = np.full((len(rows), len(columns)), np.nan)
    places = {}
    for arm in (arm for arm in found.rows if arm.values):
        i, j = rows.index(_value(found, arm, down)), columns.index(_value(found, arm, across))
        means[i, j], places[i, j] = arm.mean, arm
    image = axis.imshow(means, cmap="cividis", origin="lower", aspect="auto")
    for (i, j), arm in places.items():
        spread = "" if arm.deviation is None else f"\n± {arm.deviation:.3f}"
        colour = "black" if image.norm(arm.mean) > 0.55 else "white"
        axis.text(j, i, f"{arm.mean:.3f}{spread}", ha="center", va="center", color=colour, size=8)
    axis.set_xticks(range(len(columns)), [shown(value) for value in columns])
    axis.set_yticks(range(len(rows)), [shown(value) for value in rows])
    axis.set_xlabel(across)
    axis.set_ylabel(down)
    figure.colorbar(image, label=_metric_words(found))
    _title(figure, found, f"mean and standard deviation over the seeds{_plain_words(found)}")
    return figure


def slices(found: Found, flags: Sequence[str]) -> Any:
    """A panel a flag: each setting's mean and standard deviation against its value."""
    columns = min(len(flags), COLUMNS)
    count = math.ceil(len(flags) / columns)
    figure, axes = _figure(3.6 * columns, 0.6 + 3.2 * count, count, columns)
    top = selection.best(found.task, found.rows)
    for axis, flag in zip(axes.flat, flags, strict=False):
        for arm in (arm for arm in found.rows if arm.values):
            is_top = top is not None and arm.name == top.name
            axis.errorbar(
                _value(found, arm, flag),
                arm.mean,
                arm.deviation,
                fmt="D" if is_top else "o",
                color=COLOURS[2] if is_top else COLOURS[1],
                alpha=1 if is_top else 0.55,
                ms=7 if is_top else 4.5,
                elinewidth=1,
                zorder=3 if is_top else 2,
            )
        _plain_band(axis, found.plain)
        _scale(axis, found, flag)
    for axis in axes.flat[len(flags) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        _metric_axis(axis, found)
    _title(figure, found, "mean and standard deviation of each setting; the diamond is the best")
    return figure


def dots(found: Found) -> Any:
    """A row a setting: a dot a seed, the mean as a diamond."""
    arms = [arm for arm in found.rows if arm.values]
    figure, axis = _figure(7, 1.5 + 0.36 * len(arms))
    flags = varied_flags(found) or found.sweep.space.flags
    for y, arm in enumerate(arms):
        values = list(arm.values.values())
        axis.plot(values, [y] * len(values), "o", color=COLOURS[1], alpha=0.45, ms=4.5)
        axis.plot(arm.mean, y, "D", color=COLOURS[2], ms=6)
    if found.plain is not None:
        _plain_band(axis, found.plain, vertical=True)
        axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    labels = [", ".join(f"{f} {shown(_value(found, arm, f))}" for f in flags) for arm in arms]
    axis.set_yticks(range(len(arms)), labels)
    axis.set_ylim(len(arms) - 0.4, -0.6)
    axis.set_xlabel(_metric_words(found))
    axis.grid(axis="x", alpha=0.25)
    _title(figure, found, "dots are seeds, the diamond their mean")
    return figure


def _figure(width: float, height: float, *panels: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(*panels, squeeze=False) if panels else figure.subplots()


def _line(
    axis: Any,
    values: Mapping[float, Mapping[int, float]],
    bands: Sequence[tuple[float, float] | None],
    i: int,
    label: str = "",
) -> None:
    """A dot a seed, the means, and a band about them where every point has one."""
    colour = colour_of(i)
    for x, by_seed in values.items():
        dots = list(by_seed.values())
        axis.plot([x] * len(dots), dots, "o", color=colour, alpha=0.35, ms=4, mew=0)
    means = [fmean(by_seed.values()) for by_seed in values.values()]
    marker = MARKERS[i % len(MARKERS)]
    axis.plot(list(values), means, color=colour, marker=marker, ms=5, label=label or None)
    ends = [band for band in bands if band is not None]
    if ends and len(ends) == len(bands):
        axis.fill_between(list(values), *zip(*ends, strict=True), color=colour, alpha=0.2, lw=0)


def _plain_band(axis: Any, plain: ArmResult | None, *, vertical: bool = False) -> None:
    if plain is None:
        return
    line, band = (axis.axvline, axis.axvspan) if vertical else (axis.axhline, axis.axhspan)
    line(plain.mean, color=COLOURS[0], linestyle="--", linewidth=1.2, label="plain attention")
    if plain.deviation is not None:
        low, high = plain.mean - plain.deviation, plain.mean + plain.deviation
        band(low, high, color=COLOURS[0], alpha=0.08, lw=0)


def _scale(axis: Any, found: Found, flag: str) -> None:
    from matplotlib.ticker import MaxNLocator

    values = [_value(found, arm, flag) for arm in found.rows]
    if min(values) > 0 and (flag.endswith("learning_rate") or max(values) / min(values) >= WIDE):
        axis.set_xscale("log")
    elif all(isinstance(value, int) for value in values):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel(flag)
    axis.grid(alpha=0.25)


def _metric_axis(axis: Any, found: Found) -> None:
    axis.set_ylabel(_metric_words(found))


def _metric_words(found: Found) -> str:
    return f"{found.task.title} ({'greater' if found.task.greater_is_better else 'less'} is better)"


def _plain_words(found: Found) -> str:
    if found.plain is None:
        return ""
    spread = "" if found.plain.deviation is None else f" ± {found.plain.deviation:.3f}"
    return f"; plain attention {found.plain.mean:.3f}{spread}"


def _title(figure: Any, found: Found, what: str) -> None:
    seeds = len(found.sweep.seeds)
    count = f"{seeds} seed{'s' if seeds > 1 else ''}"
    figure.suptitle(f"{found.task.task}, {found.sweep.variant}, {count}: {what}", size=9)


def _value(found: Found, arm: ArmResult, flag: str) -> Any:
    return found.settings[arm.name].values.get(flag)


def _key(found: Found, arm: ArmResult, flags: Sequence[str]) -> str:
    return json.dumps([_value(found, arm, flag) for flag in flags])


def _is_numeric(found: Found, flag: str) -> bool:
    return all(type(_value(found, arm, flag)) in (int, float) for arm in found.rows)


def _is_grid(found: Found, flags: Sequence[str]) -> bool:
    counts = [len({_value(found, arm, flag) for arm in found.rows}) for flag in flags]
    return math.prod(counts) == len(found.rows)
