"""The figures of a comparison and of a sweep: differences, sensitivity.

Panels and looks are those of the library's diagnostics: an arm has its colour in every figure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.experiments.analyze import ArmResult, TaskResult
from finetune.experiments.arms import as_text, described
from finetune.plurals import many
from hf_graphattn.diagnostics import drawing
from hf_graphattn.diagnostics.drawing import BLACK, PLAIN, looks, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 6  # of one panel
WIDE = 100  # numbers above 0 that span so much are drawn on a logarithmic axis


def of_report(results: Sequence[TaskResult]) -> Figure | None:
    """The figure of a comparison or of a sweep; None where nothing can be drawn."""
    if results[0].settings:
        return sensitivity(results[0])
    has_pairs = any(arm.paired for task in results for arm in task.arms)
    return differences(results) if has_pairs else None


def differences(results: Sequence[TaskResult]) -> Figure:
    """A panel for each task: a row an arm, a dot a seed, their mean with its 95 % interval."""
    drawn = [task for task in results if any(arm.paired for arm in task.arms)]
    heading = "Dots are seeds, the diamond is their mean with its 95 % interval"
    figure, axes = drawing.panels(len(drawn), heading)
    for task, axis in zip(drawn, axes, strict=True):
        look = looks({arm.name: arm.variant for arm in task.arms})
        baseline, *arms = (look[arm.name] for arm in task.arms)
        for y, (arm, style) in enumerate(zip(task.arms[1:], arms, strict=True)):
            if arm.paired:
                values = list(arm.paired.differences.values())
                axis.plot(values, [y] * len(values), ".", color=style.colour, alpha=0.5, ms=5)
                how: dict[str, Any] = {"fmt": "D", "ms": 4, "lw": 1.6, "color": style.colour}
                axis.errorbar(arm.paired.mean, y - 0.28, xerr=_half(arm), **how)
        axis.axvline(0, color=baseline.colour, linewidth=0.8, linestyle="--")
        axis.set_yticks(range(len(arms)), [drawing.readable(style.label) for style in arms])
        axis.set_ylim(len(arms) - 0.5, -0.7)
        axis.locator_params(axis="x", nbins=5)  # of more, the numbers would meet
        way = "right" if task.greater_is_better else "left"
        label = f"{task.title}: difference to {baseline.label}\n({way} is better)"
        drawing.style(axis, label, "", title=task.task)
    figure.set_figheight(0.5 + sum(0.42 * (len(task.arms) - 1) + 0.8 for task in drawn))
    return figure


def sensitivity(task: TaskResult) -> Figure | None:
    """How the metric depends on a sweep's settings, in a figure that fits what was varied.

    One flag with numbers, also beside one with few other values: the metric against it, a line for
    each of these. Else the differences to plain attention, where there are any.
    """
    values = {flag: [arm.setting.get(flag) for arm in task.settings] for flag in task.swept}
    varied = [flag for flag, each in values.items() if len(set(map(as_text, each))) > 1]
    numeric = [flag for flag in varied if all(type(x) in (int, float) for x in values[flag])]
    # The line's flag is the one with the most values; the other one tells the lines apart.
    along = max(numeric, key=lambda flag: len(set(values[flag])), default=None)
    others = [flag for flag in varied if flag != along]
    lines = defaultdict(list)
    for arm in task.settings:
        if arm.values:
            lines[described({flag: arm.setting[flag] for flag in others})].append(arm)
    if along is not None and len(others) < 2 and 0 < len(lines) <= MOST_LINES:
        return _lines(task, along, lines)
    return differences([task]) if any(arm.paired for arm in task.settings) else None


def _lines(task: TaskResult, flag: str, lines: Mapping[str, list[ArmResult]]) -> Figure:
    """The metric against one flag: mean, band of one standard deviation, a dot a seed.

    With plain attention beside it, a second panel: the paired difference and its 95 % interval,
    from which what a seed does to all settings alike has dropped out.
    """
    has_pairs = any(arm.paired for arm in task.settings)
    variant, plain = task.settings[0].variant, task.plain
    seeds = max(len({*arm.values, *arm.missing}) for arm in task.settings)
    heading = f"{task.task}, {title(variant)}, {many(seeds, 'seed')}: dots are seeds, bands one "
    heading += f"standard deviation{', below 95 % intervals' if has_pairs else ''}"
    figure, axes = drawing.panels(1 + has_pairs, heading)
    look = looks(dict.fromkeys(lines, variant))
    for label, arms in lines.items():
        arms = sorted(arms, key=lambda arm: arm.setting[flag])
        panels = [[(arm.setting[flag], arm.mean, arm.deviation or 0) for arm in arms]]
        panels += [[(a.setting[flag], a.paired.mean, _half(a)) for a in arms if a.paired]]
        for axis, rows in zip(axes, panels, strict=False):
            x, y, band = np.reshape(rows, (-1, 3)).T  # of a line without pairs there are none
            drawing.line(axis, look[label], (x, y, band), label or title(variant))
        for arm in arms:
            dots = [arm.setting[flag]] * len(arm.values), [*arm.values.values()]
            axes[0].plot(*dots, ".", color=look[label].colour, alpha=0.35, ms=4)
    xs = [arm.setting[flag] for arms in lines.values() for arm in arms]
    for axis in axes:
        if min(xs) > 0 and (flag.endswith("learning_rate") or max(xs) / min(xs) >= WIDE):
            axis.set_xscale("log")
        elif isinstance(xs[0], int):
            drawing.whole_ticks(axis)
    if plain is not None:
        spread = plain.deviation or 0
        axes[0].axhline(plain.mean, color=BLACK, ls="--", lw=0.8, label="plain attention")
        axes[0].axhspan(plain.mean - spread, plain.mean + spread, color=BLACK, alpha=0.08, lw=0)
    drawing.style(axes[0], flag, f"{task.title}\n({task.direction})")
    if has_pairs:
        axes[1].axhline(0, color=BLACK, linestyle="--", linewidth=0.8)
        drawing.style(axes[1], flag, f"difference to {title(PLAIN[0])},\npaired by seed")
    drawing.legend(figure, axes)
    return figure


def _half(arm: ArmResult) -> float:
    """Half the width of the interval of an arm's differences; not a number where there is none."""
    return arm.paired.interval.half_width if arm.paired and arm.paired.interval else math.nan
