"""What `diagnose` returns: the measurements, printed as a table, as a data frame, and as one page.

The page holds a table and the figures, which are pictures inside it. It fetches nothing: it has no
script, font or style from elsewhere.
"""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_graphattn.model.report import Table

from .drawing import optional
from .plots import FIGURES, figures
from .result import DEPTHS, HEADS, Diagnoses, Measurements, Part, named_parts, number

HEADINGS = (
    *("layer", "filter", "cosine", "high/DC", "rank", "entropy", "|λ|max", "homophily"),
    "learned scalars",
)
SCREEN = 160  # pixels of a page for an inch of a figure, which is drawn for a narrow column
STYLE = """
body { margin: 0 auto; padding: 2rem 1.2rem; max-width: 68rem; font: 16px system-ui; }
table { display: block; overflow-x: auto; border-collapse: collapse; font-size: .88rem; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid #8884; text-align: right; }
figure { margin: 1.4rem 0; padding: 0 1.2rem; border: 1px solid #8888; border-radius: 8px; }
img { display: block; max-width: 100%; height: auto; margin: .6rem auto; background: #fff; }
"""
INTRODUCTION = """Measured in float64 on the tokens below, padding excluded. Lines are means over
sequences; bands are one standard deviation, between sequences for representations, between heads
for attention."""


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

    def _tables(self) -> Iterator[Table]:
        for name, _, part in named_parts({self.model: self}):
            title = f"{name}: {part.sequences} sequences, {part.tokens} tokens without padding."
            yield Table(title, HEADINGS, tuple(_layers(part)))

    def to_pandas(self) -> Any:
        """A long frame with a number in each row: part, statistic, mean, std, and where it belongs.

        A statistic of states has a `depth`; one of matrices has a `layer` and a `head`; an
        approximation error also has an `order` (K); a spectrum has a `position` (0 largest, 1
        smallest). Entries that do not apply are missing. A table is made by
        `frame.query("statistic == 'entropy'").pivot(index="layer", columns="head", values="mean")`.

        Raises:
            GraphAttentionError: pandas is not installed.
        """
        axes = ["depth", "layer", "head", "order"]
        columns = ["part", "statistic", *axes, "position", "mean", "std"]
        frame = optional("pandas").DataFrame(list(self.rows()), columns=columns)
        return frame.astype(dict.fromkeys(axes, "Int64"))

    def figures(self) -> dict[str, Any]:
        """Name -> matplotlib figure. `diagnostics.figures({"a": a, "b": b})` compares models."""
        return figures({self.model: self})

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one page with all figures in it. `diagnostics.save_html` compares models."""
        save_html({self.model: self}, path)


def save_html(
    diagnoses: Diagnoses, path: str | os.PathLike[str], notes: Sequence[str] = ()
) -> None:
    """Write one HTML page about one model, or about several side by side.

    Args:
        diagnoses: name in the page -> diagnosis.
        path: the file.
        notes: sentences above the table.

    Raises:
        GraphAttentionError: matplotlib or pandas is not installed.
    """
    title = html.escape("Inside " + ", ".join(diagnoses))
    versions = next(iter(diagnoses.values())).versions
    columns = {name: _summary(each, part) for name, each, part in named_parts(diagnoses)}
    pandas = optional("pandas")
    with pandas.option_context("display.max_colwidth", None):  # else it cuts long cells
        table = pandas.DataFrame(columns).to_html(border=0)
    drawn = figures(diagnoses)
    body = [
        f"<h1>{title}</h1><p>{INTRODUCTION}</p>",
        *(f"<p><strong>{html.escape(note)}</strong></p>" for note in notes),
        table,
        *(_figure(name, drawn.get(name)) for name in FIGURES),
        f"<footer>{', '.join(f'{name} {version}' for name, version in versions.items())}</footer>",
    ]
    # The empty icon keeps a browser from asking for /favicon.ico.
    head = '<meta charset="utf-8"><link rel="icon" href="data:,">'
    head += f"<title>{title}</title><style>{STYLE}</style>"
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body)
    Path(path).write_text(f"{page}\n</body></html>\n", encoding="utf-8")


def _summary(diagnosis: Measurements, part: Part) -> dict[str, str]:
    """The column of a part in the page's table."""

    def ends(name: str) -> str:
        return " to ".join(number(value) for value in part.by_depth[name].mean[[0, -1]])

    mean = {name: number(summary.mean.mean()) for name, summary in part.by_head.items()}
    largest = part.by_head["largest_eigenvalue"].mean
    falls = {
        f"energy falls, p = {p:g}: share of heads and sequences": mean[f"energy_p{p:g}_falls"]
        for p in diagnosis.powers
    }
    worst = part.worst_error / (2 * np.array(diagnosis.orders))
    return {
        "variant": part.variant,
        "layers x heads": f"{part.layers} x {part.heads}",
        "sequences": str(part.sequences),
        "tokens": str(part.tokens),
        "cosine similarity, embeddings to last depth": ends("cosine"),
        "effective rank, embeddings to last depth": ends("effective_rank"),
        "high-frequency over DC energy, embeddings to last depth": ends("high_to_dc"),
        "largest eigenvalue of H, least to most of the heads": " to ".join(
            (number(largest.min()), number(largest.max()))
        ),
        "attention entropy (nats), mean of heads": mean["entropy"],
        "the same of uniform attention": mean["uniform_entropy"],
        "homophily, mean of heads": mean["homophily"],
        **falls,
        "worst error of A^K, share of its bound 2K": number(worst.max()),
    }


def _figure(name: str, drawn: Any) -> str:
    figure, picture = FIGURES[name], "<p>Nothing to draw.</p>"
    if drawn is not None:
        buffer = io.BytesIO()
        drawn.savefig(buffer, format="png", dpi=2 * SCREEN)
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        text, width = html.escape(figure.heading), round(drawn.get_size_inches()[0] * SCREEN)
        picture = f'<img alt="{text}" width="{width}" src="data:image/png;base64,{data}">'
    heading, claim = html.escape(figure.heading), html.escape(figure.claim)
    return (
        f'<figure id="{name}"><h2>{heading}</h2>{picture}<figcaption>{claim}</figcaption></figure>'
    )


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
