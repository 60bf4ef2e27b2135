"""What all figures use: a colour, a marker and a label for each name; panels, lines with bands.

Figures are matplotlib's `Figure` objects, made without pyplot: no window opens, no global state
changes.

Plain attention is black. A variant has the colour that its config names, and its paper's name for a
label. So have the settings of a variant that have a name (`PRESETS`). Other arms and models have
the next free colour, first one that no variant has. Okabe and Ito's colours, which colour-blind
people can tell apart, are those of the papers that this library began with. The others were chosen
to be far from them. Colour alone does not tell so many apart: lines have markers too.
"""

from __future__ import annotations

import importlib
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_graphattn.errors import GraphAttentionError
from hf_graphattn.variants import variant_configs
from hf_graphattn.version import how_to_install

from .result import Diagnoses, Measurements, Part

PLAIN = ("none", "plain")  # what commands and measurements call attention without a filter
BLACK, GREY = "#000000", "#777777"
COLOURS = (
    *("#E69F00", "#661100", "#999933", "#0072B2", "#009E73", "#EE99AA", "#56B4E9", "#D55E00"),
    *("#785EF0", "#332288", "#882255", "#CC79A7", "#666633", "#222255", "#663333", "#9C6ADE"),
    *("#117733", "#DDCC77", "#225555", "#BBCC33", "#AA3377", "#77AADD"),
)
# What arms call settings of a variant: the variant, a title, a place in the palette. A gain and
# degree 1 are variants too; before, arms of these names were of others, and look the same.
PRESETS = {
    "gain": ("shaped", "gain a head", 12),
    "degree1": ("polynomial", "degree 1", 13),
    "degree2": ("polynomial", "degree 2", 14),
    "twicing": ("polynomial", "Twicing", 15),
}
MARKERS = tuple("vp<s^XPD>h*d8H1234+x|_")
PAIRS = tuple(zip(COLOURS, MARKERS, strict=True))
WIDTH, HEIGHT = 3.35, 2.1  # of a panel, in inches: a column of a paper is as wide
TITLE, TEXT, SMALL = 8.0, 7.5, 7.0  # sizes of letters, in points
LINE = 36  # the most characters of a name in one line of a legend or of a narrow panel's title
LEGEND, MARK = 64, 8  # characters of a line of a legend; those that a marker takes with its space
# Ticks that count layers, depths or heads: whole numbers, also where there is only one.
WHOLE: dict[str, Any] = {"integer": True, "min_n_ticks": 1, "nbins": 8}
DPI = 220
FORMATS = ("png", "pdf")


@dataclass(frozen=True)
class Look:
    """How one thing is drawn, and what it is called."""

    label: str
    colour: str
    marker: str


def title(variant: str) -> str:
    """What a figure calls a variant: as its paper does."""
    if variant in PLAIN:
        return "plain"
    if variant in PRESETS:
        return PRESETS[variant][1]
    config = variant_configs().get(variant)
    return config.title if config else variant


def looks(variants: Mapping[str, str]) -> dict[str, Look]:
    """The looks of things that are drawn together: all different, as long as colours last.

    Args:
        variants: by the name of each, an arm or a model, its variant. One that is not named after
            its variant looks like it where nothing else here does.
    """
    variants = {name: _preset(name, variant) or variant for name, variant in variants.items()}
    are_named = {name: title(name) == title(variant) for name, variant in variants.items()}
    of_variants = {pair for variant in variant_configs() for pair in _of_variant(variant)}
    others = sorted(PAIRS, key=of_variants.__contains__)
    pairs: dict[str, tuple[str, str]] = {}
    for name in sorted(variants, key=lambda name: not are_named[name]):
        free = [
            pair for pair in (*_of_variant(variants[name]), *others) if pair not in pairs.values()
        ]
        pairs[name] = free[0] if free else others[len(pairs) % len(others)]
    labels = {name: title(name) if are_named[name] else name for name in variants}
    common = {label for label, count in Counter(labels.values()).items() if count > 1}
    return {
        name: Look(name if labels[name] in common else labels[name], *pairs[name])
        for name in variants
    }


def _preset(name: str, variant: str) -> str | None:
    """What `PRESETS` calls an arm of this name: "degree1", and "degree1-1e-2" too."""
    preset = name.partition("-")[0]
    return preset if preset in PRESETS and PRESETS[preset][0] == variant else None


def _of_variant(variant: str) -> list[tuple[str, str]]:
    """Colour and marker that its config says; of plain attention there may be two."""
    if variant in PLAIN:
        return [(BLACK, "o"), (GREY, "o")]
    config, preset = variant_configs().get(variant), PRESETS.get(variant)
    number = config.colour if config else preset and preset[2]
    return [] if number is None else [PAIRS[number]]


Values = tuple[Sequence[float] | np.ndarray, np.ndarray, np.ndarray | None]  # x, y, half a band
Draw = Callable[[Any, Look, Measurements, Part], None]


@dataclass(frozen=True)
class Panel:
    """One kind of panel, of which a figure has one for each part.

    x, y: the labels. draw: `draw(axis, look of the model, its diagnosis, its part)` adds a model.
    counted: whether x is counted, as layers are. logarithmic: whether y is. compared:
    a part's series; of several models a further panel shows how those of the others differ from
    plain's.
    """

    x: str
    y: str
    draw: Draw
    title: str = ""
    counted: bool = True
    logarithmic: bool = False
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


def panels(count: int, title: str, *, height: float = HEIGHT) -> tuple[Any, list[Any]]:
    """(Figure, its axes): `count` panels below each other, as wide as a column of a paper."""
    size = (WIDTH, height * count + 0.4)
    figure = optional("matplotlib.figure").Figure(figsize=size, layout="constrained")
    figure.suptitle(textwrap.fill(title, 50), fontsize=TITLE, fontweight="bold")
    return figure, figure.subplots(count, squeeze=False).flatten().tolist()


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
    axis.tick_params(labelsize=SMALL, which="both")
    axis.grid(True, color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def whole_ticks(axis: Any) -> None:
    """Put ticks at whole numbers only, since layers and depths are counted."""
    axis.locator_params(axis="x", **WHOLE)


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
    """Add one legend for all panels, below them. The figure grows by its height."""
    lines = {
        each.get_label(): each for axis in axes for each in axis.get_legend_handles_labels()[0]
    }
    longest = max(len(row) for label in lines for row in label.splitlines())
    how = {"loc": "outside lower center", "frameon": False, "fontsize": SMALL}
    columns = min(4, len(lines), max(1, LEGEND // (longest + MARK)))
    drawn = figure.legend(lines.values(), lines.keys(), ncols=columns, columnspacing=1.2, **how)
    height = drawn.get_window_extent().height
    figure.set_figheight(figure.get_figheight() + height / figure.dpi)


def looks_of(diagnoses: Diagnoses) -> dict[str, Look]:
    """The look of each model, by its name and by the variant of its layers."""
    variants = {}
    for name, diagnosis in diagnoses.items():
        kinds = {kind for part in diagnosis.parts for kind in part.variants}
        filters = kinds - set(PLAIN)
        variants[name] = " ".join(sorted(filters)) or PLAIN[0]
    return looks(variants)


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
        if kind.logarithmic:
            axis.set_yscale("log")
        if kind.counted:
            whole_ticks(axis)
    legend(figure, axes)
    return figure


def _reference(diagnoses: Diagnoses) -> str:
    """The name of the model that others are compared to: the plain one, or else the first."""

    def rank(name: str) -> int:
        if name in PLAIN:
            return 0
        return 1 if all(part.variant in PLAIN for part in diagnoses[name].parts) else 2

    return min(diagnoses, key=rank)


def _differences(diagnoses: Diagnoses, kind: Panel) -> list[Panel]:
    """The panel in which the other models are compared to the plain one; none of one model.

    Curves that hide each other are told apart there.
    """
    series, first = kind.compared, _reference(diagnoses)
    if series is None or len(diagnoses) < 2:
        return []
    base = {part.name: series(part) for part in diagnoses[first].parts}
    label = looks_of(diagnoses)[first].label

    def draw(axis: Any, look: Look, _: Measurements, part: Part) -> None:
        values, plain = series(part), base.get(part.name)
        if plain is None or plain.shape != values.shape:  # another depth
            return
        if look.label == label:
            axis.axhline(0, color=look.colour, linewidth=0.8, linestyle="--")
        else:
            line(axis, look, (range(len(values)), values - plain, None))

    return [replace(kind, y=f"difference to {label}", draw=draw)]
