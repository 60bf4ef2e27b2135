"""What the figures of comparisons and of sweeps share: rows of dots, plain attention, saving.

The rest, such as colours and panels, is that of the library's diagnostics.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from finetune.experiments.gather import ArmResult
from finetune.experiments.statistics import Interval
from hf_graphattn.diagnostics.drawing import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
BASELINE = -1  # among the library's colours and markers: black; the arms follow from 0 on


def dot_rows(
    axis: Axes,
    labels: Sequence[str],
    values: Sequence[Sequence[float]],
    intervals: Sequence[Interval | None] = (),
) -> None:
    """A row for each label: a dot for each value, above them their mean, perhaps its interval."""
    for y, of_row in enumerate(values):
        if not of_row:
            continue
        # The rows of a figure with intervals are arms, of one without settings of a single arm.
        colour = COLOURS[y % (len(COLOURS) - 1) if intervals else 0]
        spread = np.linspace(-0.16, 0.16, len(of_row)) if len(of_row) > 1 else np.zeros(1)
        axis.plot(of_row, y + 0.12 + spread, "o", color=colour, alpha=0.45, ms=4.5)
        interval = intervals[y] if intervals else None
        if interval is not None:
            axis.plot(interval.ends, [y - 0.22] * 2, color=colour, lw=2.2, solid_capstyle="butt")
        axis.plot(fmean(of_row), y - 0.22, "D", color=colour, ms=6)
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.margins(x=0.08)


def plain_attention(axis: Axes, plain: ArmResult | None, *, upright: bool = False) -> None:
    """A line at plain attention's mean, across the panel or upright, with a band about it."""
    if plain is None:
        return
    colour = COLOURS[BASELINE]
    line, area = (axis.axvline, axis.axvspan) if upright else (axis.axhline, axis.axhspan)
    line(plain.mean, color=colour, linestyle="--", linewidth=1.2, label="plain attention")
    if plain.spread is not None:
        area(*plain.spread, color=colour, alpha=0.08, lw=0)


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write it as PNG and SVG, with the same bytes each time."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.png", dpi=150)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
