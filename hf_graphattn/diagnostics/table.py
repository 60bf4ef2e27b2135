"""What a diagnosis prints: a table of each stack of layers, a row a layer, and what it shows."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hf_graphattn.model.report import Table

from .findings import FINDINGS, OVERFLOWED, is_finite
from .result import Measurements, Part, number

WIDTH, LINES = 100, 40  # the most characters of a line, and the most lines
DEPTHS = ("cosine", "high_to_dc", "effective_rank")  # after the layer
HEADS = ("entropy", "largest_eigenvalue", "homophily")  # of its attention, means over heads
SAID = ("cosine_similarity", "high_to_dc", "singular_values")  # findings below the table


@dataclass(frozen=True)
class LayerRow:
    """What was measured of a layer, in words."""

    words: tuple[str, ...]

    def cells(self) -> tuple[str, ...]:
        return self.words


@dataclass(frozen=True)
class LayerTable(Table):
    """A row for the embeddings and for each layer of a stack."""

    headings = (
        *("layer", "filter", "cosine", "high/DC", "rank", "entropy", "|λ|max", "homophily"),
        "learned scalars",
    )

    title: str
    rows: tuple[LayerRow, ...]
    findings: tuple[str, ...]

    def __str__(self) -> str:
        lines = self.text(WIDTH).splitlines()
        long = (textwrap.fill(line, WIDTH) for line in (lines[0], *self.findings))
        title, *said = long
        return "\n".join([title, *lines[1:], *said])

    def _repr_html_(self) -> str:
        said = "".join(f"<li>{html.escape(line)}</li>" for line in self.findings)
        return f"{super()._repr_html_()}<ul>{said}</ul>"


def printed(diagnosis: Measurements) -> str:
    """The tables of all parts, with as many layers as `LINES` have room for."""
    deepest = max(part.layers for part in diagnosis.parts)
    for most in range(deepest, 1, -1):
        text = "\n\n".join(map(str, tables(diagnosis, most)))
        if text.count("\n") < LINES:
            return text
    return "\n\n".join(map(str, tables(diagnosis, 1)))


def tables(diagnosis: Measurements, most: int) -> list[LayerTable]:
    """The table of each part, with so many layers at most; those in the middle are left out."""
    return [
        LayerTable(_title(diagnosis, part), tuple(_rows(part, most)), tuple(_said(diagnosis, part)))
        for part in diagnosis.parts
    ]


def in_short(diagnosis: Measurements) -> str:
    """One line: the model, and what was measured."""
    parts = ", ".join(
        f"{part.name} of {part.layers} layers x {part.heads} heads ({part.variant})"
        for part in diagnosis.parts
    )
    return f"<Diagnosis of {diagnosis.model}: {parts}; {diagnosis.parts[0].sequences} sequences>"


def _title(diagnosis: Measurements, part: Part) -> str:
    name = diagnosis.model if len(diagnosis.parts) == 1 else f"{diagnosis.model}, {part.name}"
    return (
        f"{name}: {part.sequences} sequence{'s' if part.sequences > 1 else ''}, {part.tokens} "
        "tokens without padding. Of the tokens after a layer: their mean cosine similarity, "
        "high-frequency over DC energy, effective rank. Of its attention, means over "
        f"{part.heads} heads: entropy in nats, largest eigenvalue, homophily. Scalars: from the "
        "least head to the greatest."
    )


def _rows(part: Part, most: int) -> Iterator[LayerRow]:
    columns = len(LayerTable.headings)
    yield LayerRow(("embeddings", "", *_states(part, 0), *[""] * (columns - 2 - len(DEPTHS))))
    first, last = -(-most // 2), part.layers - most // 2
    for layer in range(part.layers):
        if first <= layer < last:
            if layer == first:
                yield LayerRow((f"{last - first} more", *["..."] * (columns - 1)))
            continue
        attention = (number(np.mean(part.by_head[name].mean[layer])) for name in HEADS)
        words = (*_states(part, layer + 1), *attention, _scalars(part, layer))
        yield LayerRow((str(layer), part.variants[layer], *words))


def _states(part: Part, depth: int) -> list[str]:
    return [number(part.by_depth[name].mean[depth]) for name in DEPTHS]


def _scalars(part: Part, layer: int) -> str:
    """Those that the layer has learned, each from its least head to its greatest."""
    said = []
    for name in part.learned:
        values = part.scalars[name][layer]
        ends = dict.fromkeys(map(number, (values.min(), values.max())))  # once if they are the same
        if np.isfinite(values).all():
            said.append(f"{name} {'..'.join(ends)}")
    return ", ".join(said)


def _said(diagnosis: Measurements, part: Part) -> Iterator[str]:
    if not is_finite(part):
        yield OVERFLOWED
        return
    for name in SAID:
        heading, _, sentence = FINDINGS[name]
        yield f"{heading}: {sentence(diagnosis, part)}"
