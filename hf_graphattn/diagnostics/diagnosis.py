"""What `diagnose` returns: the measurements, printed as a table, and with ways to draw them."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_graphattn.model.report import Table

from .drawing import optional
from .page import save_html
from .plots import figures, finding
from .result import DEPTHS, HEADS, Measurements, Part, named_parts, number

WIDTH = 100  # the most characters of a printed line
BELOW = ("cosine_similarity", "high_to_dc", "singular_values")  # figures with a finding below it


@dataclass(frozen=True)
class Diagnosis(Measurements):
    """Everything that `diagnose` measured: as a table, as JSON, as figures, as one page.

    Printed, and in a notebook, it is a table with a row for each layer.
    """

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{part.name} of {part.layers} layers x {part.heads} heads ({part.variant})"
            for part in self.parts
        )
        return f"<Diagnosis of {self.model}: {parts}; {self.parts[0].sequences} sequences>"

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._tables()))

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self._tables())

    def _tables(self) -> list[LayerTable]:
        return [
            LayerTable(
                f"{where}: {part.sequences} sequences, {part.tokens} tokens without padding.",
                tuple(LayerRow(cells) for cells in _layers(part)),
                tuple(finding(name, self, part) for name in BELOW),
            )
            for where, _, part in named_parts({self.model: self})
        ]

    def to_pandas(self) -> Any:
        """A long frame with a number in each row: part, statistic, mean, std, and where it belongs.

        A statistic of states has a `depth`; one of matrices has a `layer` and a `head`; an
        approximation error also has an `order` (K); a spectrum has a `position` (0 largest, 1
        smallest). Entries that do not apply are missing. A table is made by
        `frame.query("statistic == 'entropy'").pivot(index="layer", columns="head", values="mean")`.

        Raises:
            GraphAttentionError: pandas is not installed.
        """
        where = ["depth", "layer", "head", "order"]
        columns = ["part", "statistic", *where, "position", "mean", "std"]
        frame = optional("pandas").DataFrame(list(self.rows()), columns=columns)
        return frame.astype(dict.fromkeys(where, "Int64"))

    def figures(self) -> dict[str, Any]:
        """Name -> matplotlib figure. `diagnostics.figures({"a": a, "b": b})` compares models."""
        return figures({self.model: self})

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one page with all figures in it. `diagnostics.save_html` compares models."""
        save_html({self.model: self}, path)


@dataclass(frozen=True)
class LayerRow:
    """What was measured of a layer, each number with three digits."""

    words: tuple[str, ...]

    def cells(self) -> tuple[str, ...]:
        return self.words


@dataclass(frozen=True)
class LayerTable(Table):
    """A row for the embeddings and for each layer of a stack, and findings below."""

    headings = (
        *("layer", "filter", "cosine", "high/DC", "rank", "entropy", "|λ|max", "homophily"),
        "learned scalars",
    )

    title: str
    rows: tuple[LayerRow, ...]
    findings: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.text(WIDTH), *self.findings])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.findings)
        return f"{super()._repr_html_()}<ul>{items}</ul>"


def _layers(part: Part) -> Iterator[tuple[str, ...]]:
    """The cells of the embeddings and of each layer."""
    for depth in range(part.layers + 1):
        states = [number(part.by_depth[name].mean[depth]) for name in DEPTHS]
        if depth == 0:
            yield ("embeddings", "", *states, *[""] * (len(HEADS) + 1))
            continue
        layer = depth - 1
        heads = (number(part.by_head[name].mean[layer].mean()) for name in HEADS)
        yield (str(layer), part.variants[layer], *states, *heads, _scalars(part, layer))


def _scalars(part: Part, layer: int) -> str:
    """The learned scalars of a layer, each from its least head to its greatest."""
    ranges = []
    for name in part.learned:
        values = part.scalars[name][layer]
        ends = dict.fromkeys(map(number, (values.min(), values.max())))  # once if they are the same
        if np.isfinite(values).all():
            ranges.append(f"{name} {'..'.join(ends)}")
    return ", ".join(ranges)
