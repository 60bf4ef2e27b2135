"""What all figures use: panels, lines with bands, heat maps, in the looks of `palette`.

Figures are matplotlib's `Figure` objects, made without pyplot: no window opens, no global state
changes.
"""

from __future__ import annotations

import importlib
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_graphattn.errors import GraphAttentionError
from hf_graphattn.version import how_to_install

from .palette import PLAIN, Look, looks
from .result import Diagnoses, Measurements, Part, reference

WIDTH, HEIGHT = 3.35, 2.1  # of a panel, in inches: a column of a paper is as wide
TITLE, TEXT, SMALL = 8.0, 7.5, 7.0  # sizes of letters, in points
LINE = 36  # the most characters of a name in one line of a legend or of a narrow panel's title
CELLS_WITH_NUMBERS = 8  # a heat map of at most so many layers and heads shows its values
# Ticks that count layers, depths or heads: whole numbers, also where there is only one.
WHOLE: dict[str, Any] = {"integer": True, "min_n_ticks": 1, "nbins": 8}
DPI = 220
FORMATS = ("png", "pdf")

Values = tuple[Sequence[float] | np.ndarray, np.ndarray, np.ndarray | None]  # x, y, half a band
Draw = Callable[[Any, Look, Measurements, Part], None]


@dataclass(frozen=True)
class Panel:
    """One kind of panel, of which a figure has one for each part.

    x, y: the labels. draw: `draw(axis, look of the model, its diagnosis, its part)` adds a model.
    counted: whether x is counted, as layers are. logarithmic: whether y is. shown: y values that
    the axis always includes. compared: a part's series; of several models a further panel shows how
    those of the others differ from plain's.
    """

    x: str
    y: str
    draw: Draw
    title: str = ""
    counted: bool = True
    logarithmic: bool = False
    shown: tuple[float, float] | None = None
    compared: Callable[[Part], np.ndarray] | None = None


def optional(module: str) -> Any:
    """A module of the extra `plots`, imported when it is used.

    Raises:
        GraphAttentionError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise GraphAttentionError(
            f"this needs {module.split('.')[0]}, which is not installed. {how_to_install('plots')}"
        ) from error


def panels(
    count: int, title: str, *, columns: int = 1, height: float = HEIGHT
) -> tuple[Any, list[Any]]:
    """(Figure, its axes), with `count` panels under one title, as wide as a column of a paper."""
    rows = math.ceil(count / columns)
    size = (WIDTH, height * rows + 0.4)
    figure = optional("matplotlib.figure").Figure(figsize=size, layout="constrained")
    figure.patch.set_facecolor("white")
    figure.suptitle(textwrap.fill(title, 50), fontsize=TITLE, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def save(figure: Any, path: Path, formats: Sequence[str] = FORMATS) -> None:
    """Write the figure as `path` with each format for an ending, the same bytes each time."""
    how = {"svg.hashsalt": path.name, "pdf.fonttype": 42}  # letters that publishers take
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with optional("matplotlib").rc_context(how):
        for form in formats:
            file = path.with_name(f"{path.name}.{form}")
            figure.savefig(file, dpi=DPI, metadata=dates.get(form))


def style(axis: Any, x: str, y: str, title: str = "") -> None:
    """Give the panel its labels, a light grid and no box."""
    axis.set_xlabel(x, fontsize=TEXT)
    axis.set_ylabel(y, fontsize=TEXT)
    axis.set_title(title, fontsize=TEXT)
    axis.tick_params(labelsize=SMALL)
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


def line(axis: Any, look: Look, values: Values, label: str = "", **how: Any) -> None:
    """Draw one model's line with its band; values that are not finite are left out."""
    x, y, band = values
    y = np.where(np.isfinite(y), y, np.nan)
    how = {"marker": look.marker, "markersize": 3.5, "linewidth": 1.2} | how
    axis.plot(x, y, color=look.colour, label=readable(label or look.label), **how)
    if band is not None and np.isfinite(band).any():
        axis.fill_between(x, y - band, y + band, color=look.colour, alpha=0.15, linewidth=0)


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
            fontsize=SMALL,
            columnspacing=1.2,
            handlelength=1.8,
        )
        box = drawn.get_window_extent()
        if columns == 1 or box.width < figure.bbox.width:
            break
        drawn.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)


def looks_of(diagnoses: Diagnoses) -> dict[str, Look]:
    """The look of each model, by its name and by the variant of its layers."""
    variants = {}
    for name, diagnosis in diagnoses.items():
        kinds = {kind for part in diagnosis.parts for kind in part.variants}
        filters = kinds - set(PLAIN)
        variants[name] = " ".join(sorted(filters)) or PLAIN[0]
    return looks(variants)


def labelled(diagnoses: Diagnoses) -> Diagnoses:
    """The same by what figures call each model."""
    return {look.label: diagnoses[name] for name, look in looks_of(diagnoses).items()}


def by_part(diagnoses: Diagnoses, title: str, *kinds: Panel) -> Any:
    """A figure with a panel of each kind for each part, and one legend for all of them."""
    names = list(dict.fromkeys(p.name for d in diagnoses.values() for p in d.parts))
    every = [panel for kind in kinds for panel in (kind, *_differences(diagnoses, kind))]
    figure, axes = panels(len(names) * len(every), title)
    drawn = looks_of(diagnoses)
    for (name, kind), axis in zip(itertools.product(names, every), axes, strict=True):
        for model, diagnosis in diagnoses.items():
            for part in (each for each in diagnosis.parts if each.name == name):
                kind.draw(axis, drawn[model], diagnosis, part)
        stack = name if len(names) > 1 else ""
        style(axis, kind.x, kind.y, ", ".join(filter(None, (stack, kind.title))))
        if not any(np.isfinite(each.get_ydata()).any() for each in axis.lines):
            where = {"transform": axis.transAxes, "ha": "center", "va": "center"}
            axis.text(0.5, 0.5, "no finite values", fontsize=SMALL, **where)
        elif kind.logarithmic:
            log_scale(axis)
        if kind.shown:
            (low, high), (bottom, top) = axis.get_ylim(), kind.shown
            axis.set_ylim(min(low, bottom), max(high, top))
        if kind.counted:
            whole_ticks(axis)
    legend(figure, axes)
    return figure


def _differences(diagnoses: Diagnoses, kind: Panel) -> list[Panel]:
    """The panel in which the other models are compared to the plain one; none of one model.

    Curves that hide each other are told apart there. What is drawn on a logarithmic scale is
    compared by its ratio.
    """
    series, first = kind.compared, reference(diagnoses)
    if series is None or len(diagnoses) < 2:
        return []
    base = {part.name: series(part) for part in diagnoses[first].parts}
    label, same = looks_of(diagnoses)[first].label, float(kind.logarithmic)

    def draw(axis: Any, look: Look, _: Measurements, part: Part) -> None:
        values, plain = series(part), base.get(part.name)
        if plain is None or plain.shape != values.shape:  # another depth
            return
        if look.label == label:
            axis.axhline(same, color=look.colour, linewidth=0.8, linestyle="--")
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            change = values / plain if kind.logarithmic else values - plain
        line(axis, look, (range(len(values)), change, None))

    what = "ratio" if kind.logarithmic else "difference"
    return [replace(kind, y=f"{what} to {label}", draw=draw)]


def heat_maps(title: str, label: str, maps: Mapping[str, np.ndarray]) -> Any:
    """A panel for each map, with layers down and heads across, all on one colour scale.

    The scale is centred on 0 if the values have both signs.
    """
    sns = optional("seaborn")
    rows, heads = (max(values.shape[i] for values in maps.values()) for i in (0, 1))
    numbers = max(rows, heads) <= CELLS_WITH_NUMBERS
    columns = 1 if numbers or len(maps) < 3 else 2
    height = min(2.4, 0.7 + 0.17 * rows)
    figure, axes = panels(len(maps), title, columns=columns, height=height)
    figure.set_figheight(figure.get_figheight() + 0.6)  # for the colour bar
    every = np.concatenate([values.ravel() for values in maps.values()])
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 1.0)
    signed = low < 0 < high
    if signed:
        low, high = -max(-low, high), max(-low, high)
    scale = {
        "vmin": low,
        "vmax": high if high > low else low + 1,
        "cmap": "RdBu_r" if signed else "cividis",
    }
    text = {"annot": numbers, "fmt": ".3g", "annot_kws": {"size": SMALL}}
    for axis, (name, values) in zip(axes, maps.items(), strict=True):
        sns.heatmap(values, ax=axis, cbar=False, **scale, **text)
        style(axis, "head", "layer", readable(name))
        axis.grid(False)
        axis.set_facecolor("#eeeeee")  # shows where a layer lacks the value
    bar = figure.colorbar(axes[0].collections[0], ax=axes, location="bottom", aspect=40)
    bar.set_label(label, fontsize=TEXT)
    bar.ax.tick_params(labelsize=SMALL)
    return figure
