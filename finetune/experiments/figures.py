"""The figures of a comparison and of a sweep: differences, learning curves, sensitivity.

Panels and looks are those of the library's diagnostics: an arm has its colour in every figure.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import seaborn as sns
from pandas.api.types import is_numeric_dtype

from finetune.engine.progress import LOG
from finetune.experiments.analyze import ArmResult, TaskResult, best
from finetune.experiments.arms import as_text, described
from finetune.experiments.plan import Cell, Results
from finetune.plurals import many
from hf_graphattn.diagnostics.drawing import (
    BLACK,
    PLAIN,
    SMALL,
    Look,
    legend,
    looks,
    panels,
    readable,
    style,
    title,
    whole_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRETCHES = 60  # points of a curve of the training loss
MARKED = 20  # a curve of at most so many points has a marker at each
MOST_LINES = 6  # of one panel
LINE = 27  # characters of a setting beside its row
WIDE = 100  # numbers above 0 that span so much are drawn on a logarithmic axis


def frame(arms: Sequence[ArmResult]) -> pd.DataFrame:
    """A row for each arm and seed: its value, the difference, and its setting.

    An arm without values has a row without one. Settings that are no numbers are texts.
    """
    flags = dict.fromkeys(flag for arm in arms for flag in arm.setting)
    rows: list[dict[str, Any]] = []
    for arm in arms:
        setting = {flag: arm.setting.get(flag) for flag in flags}
        numbers = {f: v if type(v) in (int, float) else as_text(v) for f, v in setting.items()}
        pairs = arm.paired.differences if arm.paired else {}
        own = [{"value": v, "difference": pairs.get(seed)} for seed, v in arm.values.items()]
        rows += [{"arm": arm.name, **numbers, **values} for values in own or [{"value": None}]]
    return pd.DataFrame(rows)


def differences(results: Sequence[TaskResult]) -> Figure:
    """A panel for each task: a row an arm, a dot a seed, their mean with its 95 % interval."""
    drawn = [task for task in results if any(arm.paired for arm in task.arms)]
    has_intervals = any(a.paired and a.paired.interval for task in drawn for a in task.arms)
    heading = "Dots are seeds, the diamond is their mean"
    heading += " with its 95 % interval" if has_intervals else ""
    figure, axes = panels(len(drawn), heading)
    for task, axis in zip(drawn, axes, strict=True):
        own = _looks(task)
        baseline, *arms = task.arms
        _dots(axis, frame(arms), "difference", {arm.name: own[arm.name] for arm in arms}, arms)
        axis.axvline(0, color=own[baseline.name].colour, linewidth=0.8, linestyle="--")
        way = "right" if task.greater_is_better else "left"
        label = f"{task.label}: difference to {own[baseline.name].label}\n({way} is better)"
        style(axis, label, "", title=task.task)
    figure.set_figheight(0.5 + sum(0.42 * (len(task.arms) - 1) + 0.8 for task in drawn))
    return figure


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
    own, baseline = _looks(task), task.arms[0].name
    ended = [cell for cell in cells if cell.task == task.task and cell.job.name in done]
    logs = ((cell, read_log(cell.job.folder)) for cell in ended)
    values = curves(((cell, done[cell.job.name]["history"]) for cell in ended), task.metric)
    wanted, left_out = [], []
    for label, way, data in (
        ("training loss", "", in_stretches(curves(logs, "loss"))),
        (task.label, f"\n({task.direction})", values),
    ):
        if (data.groupby("arm")["step"].nunique() > 1).any():
            wanted.append((f"{label}{way}", data, False))
            less = _to_baseline(data, baseline)
            if len(less):
                wanted.append((f"{label}: difference\nto {own[baseline].label}", less, True))
        elif len(data):
            left_out.append(f"; {label} was measured once")
    if not wanted:
        return None
    heading = f"{task.task}: mean and standard deviation over the seeds{''.join(left_out)}"
    figure, axes = panels(len(wanted), heading)
    for axis, (label, data, is_difference) in zip(axes, wanted, strict=True):
        _curves(axis, data, own, label)
        if is_difference:
            axis.axhline(0, color=own[baseline].colour, linewidth=0.8, linestyle="--")
    legend(figure, axes)
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


def sensitivity(task: TaskResult) -> Figure:
    """How the metric depends on a sweep's settings, in a figure that fits what was varied.

    One flag with numbers, also beside one with few other values: the metric against it, a line for
    each of these. Else a row for each setting.
    """
    data = frame(task.settings)
    varied = [flag for flag in task.swept if data[flag].nunique() > 1]
    numeric = [flag for flag in varied if is_numeric_dtype(data[flag])]
    # The line's flag is the one with the most values; the other one tells the lines apart.
    along = max(numeric, key=lambda flag: data[flag].nunique(), default=None)
    others = [flag for flag in varied if flag != along]
    is_line = along is not None and len(others) < 2
    flags = others if is_line else varied or task.swept
    data["label"] = [_label(task, name, flags) for name in data["arm"]]
    data = data.dropna(subset="value")
    if along is not None and is_line and data["label"].nunique() <= MOST_LINES:
        return _lines(task, data, along)
    data["label"] = [_label(task, name, varied or task.swept) for name in data["arm"]]
    return _rows(task, data)


def _lines(task: TaskResult, data: pd.DataFrame, flag: str) -> Figure:
    """The metric against one flag: mean, band of one standard deviation, a dot a seed.

    With plain attention beside it, a second panel: the paired difference and its 95 % interval,
    from which what a seed does to all settings alike has dropped out.
    """
    own = looks(dict.fromkeys(data["label"].unique(), _variant(task)))
    colours = [look.colour for look in own.values()]
    drawn = {"value": "sd"} | ({"difference": None} if any(a.paired for a in task.settings) else {})
    text = "dots are seeds, bands one standard deviation"
    text += ", below 95 % intervals" if len(drawn) > 1 else ""
    figure, axes = panels(len(drawn), _title(task, text))
    for axis, (name, band) in zip(axes, drawn.items(), strict=True):
        how = {"x": flag, "y": name, "hue": "label", "palette": colours, "ax": axis}
        sns.scatterplot(data, **how, alpha=0.35, s=12, legend=False)
        has_legend = name == "value" and len(own) > 1
        points = {"marker": "o", "markersize": 4, "linewidth": 1.2}
        sns.lineplot(data, **how, **points, errorbar=band, legend=has_legend)
        values = data[flag]
        is_rate = flag.endswith("learning_rate")
        if values.min() > 0 and (is_rate or values.max() / values.min() >= WIDE):
            axis.set_xscale("log")
        elif values.dtype.kind == "i":
            whole_ticks(axis)
    for label, look in own.items():
        settings = set(data["arm"][data["label"] == label])
        _intervals(axes[-1], [a for a in task.settings if a.name in settings], flag, look.colour)
    _plain_attention(axes[0], task.plain)
    style(axes[0], flag, f"{task.label}\n({task.direction})")
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(frameon=False, fontsize=SMALL)
    if len(drawn) > 1:
        axes[1].axhline(0, color=BLACK, linestyle="--", linewidth=0.8)
        style(axes[1], flag, f"difference to {title(PLAIN[0])},\npaired by seed")
    return figure


def _rows(task: TaskResult, data: pd.DataFrame) -> Figure:
    """A row a setting: a dot a seed, the mean as a diamond; that of the best is black."""
    figure, (axis,) = panels(1, _title(task, "dots are seeds, the diamond is their mean"))
    (look,) = looks({_variant(task): _variant(task)}).values()
    labels = dict(zip(data["arm"], data["label"], strict=True))
    texts = {arm: textwrap.fill(text, LINE, break_long_words=False) for arm, text in labels.items()}
    winners = {arm.name for arm in best(task)} if len(best(task)) == 1 else set()
    rows = {
        arm: Look(text, BLACK if arm in winners else look.colour, look.marker)
        for arm, text in texts.items()
    }
    most = max(text.count("\n") for text in texts.values())
    figure.set_figheight(1.2 + (0.3 + 0.08 * most) * len(rows))
    _dots(axis, data, "value", rows)
    _plain_attention(axis, task.plain, upright=True)
    style(axis, f"{task.label}\n({task.direction})", "")
    if task.plain is not None:
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
        axis.legend(frameon=False, fontsize=SMALL, **place)
    return figure


def _dots(
    axis: Axes,
    data: pd.DataFrame,
    name: str,
    rows: Mapping[str, Look],
    arms: Sequence[ArmResult] = (),
) -> None:
    """A row for each arm: a dot for each value, above them their mean, perhaps its interval.

    ``rows`` has a look for each arm by its name, in the order from above; ``arms`` have intervals.
    """
    intervals = {arm.name: arm.paired.interval for arm in arms if arm.paired}
    how = {"order": list(rows), "hue": "arm", "palette": {k: v.colour for k, v in rows.items()}}
    sns.stripplot(data, x=name, y="arm", ax=axis, size=3, alpha=0.5, legend=False, **how)
    means = data.groupby("arm")[name].mean().dropna()
    for y, (arm, look) in enumerate(rows.items()):
        interval = intervals.get(arm)
        if arm in means:
            ends = interval.ends if interval else (means[arm], means[arm])
            axis.plot(ends, [y - 0.28] * 2, color=look.colour, lw=1.6)
            axis.plot(means[arm], y - 0.28, "D", color=look.colour, ms=4)
    axis.set_yticks(range(len(rows)), [readable(look.label) for look in rows.values()])
    axis.set_ylim(len(rows) - 0.5, -0.7)
    axis.margins(x=0.08)
    axis.locator_params(axis="x", nbins=5)  # of more, the numbers would meet


def _curves(axis: Axes, data: pd.DataFrame, own: Mapping[str, Look], label: str) -> None:
    """Mean and band of each arm, the last of them below, so that the baseline is visible."""
    style(axis, "step", label)
    arms = [name for name in own if name in set(data["arm"])]
    for place, name in enumerate(arms):
        by_step, look = data[data["arm"] == name].groupby("step")["value"], own[name]
        mean, spread = by_step.mean(), by_step.std().fillna(0)
        marker = look.marker if len(mean) <= MARKED else ""
        how: dict[str, Any] = {"marker": marker, "ms": 3.5, "lw": 1.2, "color": look.colour}
        order = 2 + len(arms) - place
        axis.plot(mean.index, mean, label=readable(look.label), zorder=order, **how)
        axis.fill_between(mean.index, mean - spread, mean + spread, color=look.colour, alpha=0.15)


def _to_baseline(data: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """The other arms' values less the baseline's of the same seed and step, where it has one."""
    keys = ["seed", "step"]
    base = data[data["arm"] == baseline][[*keys, "value"]]
    both = data[data["arm"] != baseline].merge(base, on=keys, suffixes=("", "_baseline"))
    return both.assign(value=both["value"] - both["value_baseline"])[data.columns]


def _plain_attention(axis: Axes, plain: ArmResult | None, *, upright: bool = False) -> None:
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


def _looks(task: TaskResult) -> dict[str, Look]:
    return looks({arm.name: arm.variant for arm in task.arms})


def _variant(task: TaskResult) -> str:
    return str(task.settings[0].flags.get("variant", PLAIN[0]))


def _title(task: TaskResult, what: str) -> str:
    seeds = max(len({*arm.values, *arm.missing}) for arm in task.settings)
    return f"{task.task}, {title(_variant(task))}, {many(seeds, 'seed')}: {what}"


def _label(task: TaskResult, name: str, flags: Sequence[str]) -> str:
    """A setting's values of these flags, without those that were not given if any was."""
    setting = next(arm.setting for arm in task.settings if arm.name == name)
    values = {flag: setting.get(flag) for flag in flags}
    given = {flag: value for flag, value in values.items() if value is not None}
    return described(given or values)
