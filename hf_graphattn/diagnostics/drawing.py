"""What all figures use: colours, panels, lines with bands, heat maps.

Figures are matplotlib's `Figure` objects, made without pyplot: no window opens, no global state
changes.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .extras import optional
from .result import Diagnoses, Measurements, Part, having, part_names

# Okabe and Ito's palette, which colour-blind people can tell apart; in grey, the markers differ.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HEIGHT = 3.6  # of a panel, in inches
WIDTHS = {1: 7.0, 2: 5.2}  # of a panel, by the number of panels side by side
NARROW = 4.2  # the width of a panel where there are more, which is still readable on a page
LINE = 36  # the most characters of a name in one line of a legend or of a narrow panel's title
CELLS_WITH_NUMBERS = 8  # a heat map of at most so many layers and heads shows its values
# Ticks that count layers, depths or heads: whole numbers, also where there is only one.
WHOLE: dict[str, Any] = {"integer": True, "min_n_ticks": 1, "nbins": 12}

Values = tuple[Sequence[float] | np.ndarray, np.ndarray, np.ndarray | None]  # x, y, half a band
Draw = Callable[[Any, int, str, Measurements, Part], None]


@dataclass(frozen=True)
class Panel:
    """One kind of panel, of which a figure has one for each part.

    x, y: the labels. draw: `draw(axis, index of the model, its name, its diagnosis, its part)` adds
    a model. counted: whether x is counted, as layers are. logarithmic: whether y is.
    """

    x: str
    y: str
    draw: Draw
    title: str = ""
    counted: bool = True
    logarithmic: bool = False


def panels(count: int, title: str, columns: int = 3) -> tuple[Any, list[Any]]:
    """(Figure, its axes), with `count` panels under one title."""
    columns = min(count, columns)
    rows = math.ceil(count / columns)
    width = WIDTHS.get(columns, NARROW) * columns
    size = (width, HEIGHT * rows + 0.5)
    figure = optional("matplotlib.figure").Figure(figsize=size, layout="constrained")
    figure.patch.set_facecolor("white")
    title = textwrap.fill(title, round(width * 10))
    figure.suptitle(title, fontsize=12, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def style(axis: Any, x: str, y: str, title: str = "") -> None:
    """Give the panel its labels, a light grid and no box."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(title, fontsize=10)
    axis.grid(True, color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def whole_ticks(axis: Any) -> None:
    """Put ticks at whole numbers only, since layers and depths are counted."""
    axis.locator_params(axis="x", **WHOLE)


def log_scale(axis: Any) -> None:
    """Make the y axis logarithmic, with plain numbers on it. Call it after drawing the lines."""
    ticker = optional("matplotlib.ticker")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    decades = math.log10(high / low)
    if decades < 0.6:
        axis.yaxis.set_major_locator(ticker.MaxNLocator(6))
    elif decades < 3:
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:.3g}"))
    axis.yaxis.set_minor_formatter(ticker.NullFormatter())


def line(axis: Any, index: int, values: Values, label: str, **how: Any) -> None:
    """Draw one model's line with its band; values that are not finite are left out."""
    x, y, band = values
    colour = COLOURS[index % len(COLOURS)]
    y = np.where(np.isfinite(y), y, np.nan)
    how = {"marker": MARKERS[index % len(MARKERS)], "markersize": 4, "linewidth": 1.6} | how
    axis.plot(x, y, color=colour, label=readable(label), **how)
    if band is not None and np.isfinite(band).any():
        axis.fill_between(x, y - band, y + band, color=colour, alpha=0.15, linewidth=0)


def readable(label: str) -> str:
    """The label in lines of at most LINE characters, broken after a "/" where that is possible.

    matplotlib leaves a label that begins with "_" out of the legend, so an invisible character is
    put before it.
    """
    lines = re.findall(rf".{{1,{LINE}}}$|.{{{LINE // 2},{LINE - 1}}}/|.{{1,{LINE}}}", label)
    return ("\u200b" if label.startswith("_") else "") + "\n".join(lines)


def legend(figure: Any, axes: Sequence[Any]) -> None:
    """Add one legend for all panels, below them, in as many columns as fit. The figure grows."""
    lines = {
        each.get_label(): each for axis in axes for each in axis.get_legend_handles_labels()[0]
    }
    for columns in range(min(4, len(lines)), 0, -1):
        drawn = figure.legend(
            lines.values(),
            lines.keys(),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=8,
        )
        box = drawn.get_window_extent()
        if columns == 1 or box.width < figure.bbox.width:
            break
        drawn.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)


def by_part(diagnoses: Diagnoses, title: str, *kinds: Panel) -> tuple[Any, list[Any]]:
    """(Figure, its axes): a panel of each kind for each part, and one legend for all of them."""
    names = part_names(diagnoses)
    columns = len(kinds) if len(kinds) > 1 else 3
    figure, axes = panels(len(names) * len(kinds), title, columns)
    each = itertools.product(names if len(names) > 1 else [""], kinds)
    for (name, kind), axis in zip(each, axes, strict=True):
        for index, model, diagnosis, part in having(diagnoses, name or names[0]):
            kind.draw(axis, index, model, diagnosis, part)
        style(axis, kind.x, kind.y, ", ".join(filter(None, (name, kind.title))))
        if kind.logarithmic:
            log_scale(axis)
        if kind.counted:
            whole_ticks(axis)
    legend(figure, axes)
    return figure, axes


def heat_maps(title: str, label: str, maps: Mapping[str, np.ndarray]) -> Any:
    """A panel for each map, with layers down and heads across, all on one colour scale.

    The scale is centred on 0 if the values have both signs.
    """
    colors = optional("matplotlib.colors")
    figure, axes = panels(len(maps), title, columns=2 if len(maps) == 4 else 3)
    every = np.concatenate([values.ravel() for values in maps.values()])
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 1.0)
    signed = low < 0 < high
    if signed:
        low, high = -max(-low, high), max(-low, high)
    norm = colors.Normalize(low, high if high > low else low + 1e-9)
    image = None
    for axis, (name, values) in zip(axes, maps.items(), strict=True):
        image = axis.imshow(
            np.where(np.isfinite(values), values, np.nan),
            norm=norm,
            cmap="RdBu_r" if signed else "cividis",
            aspect="auto",
            interpolation="nearest",
        )
        style(axis, "head", "layer", readable(name))
        axis.grid(False)
        axis.set_facecolor("#eeeeee")  # shows where a layer lacks the value
        axis.locator_params(**WHOLE)
        if max(values.shape) <= CELLS_WITH_NUMBERS:
            _write_values(axis, values, image)
    figure.colorbar(image, ax=axes, label=label)
    return figure


def _write_values(axis: Any, values: np.ndarray, image: Any) -> None:
    for (layer, head), value in np.ndenumerate(values):
        if math.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
            colour = "white" if dark else "black"
            axis.text(head, layer, f"{value:.3g}", ha="center", va="center", color=colour, size=7)
