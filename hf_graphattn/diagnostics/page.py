"""One HTML page: a table, the figures, which are pictures inside it, and what each shows.

The page fetches nothing: it has no script, font or style from elsewhere.
"""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Sequence
from typing import Any

from .drawing import optional
from .plots import FIGURES, figures, findings, worst_share
from .result import DEPTHS, HEADS, Diagnoses, Measurements, Part, named_parts, number

SCREEN = 160  # pixels of a page for an inch of a figure, which is drawn for a narrow column
CSS = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 68rem;
  font: 16px/1.5 system-ui, sans-serif; }
h2 { font-size: 1.15rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1.2rem 0; font-size: .88rem; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid #8884; text-align: right;
  white-space: nowrap; }
th:first-child { text-align: left; }
figure { margin: 1.4rem 0; padding: 0 1.2rem; border: 1px solid #8888; border-radius: 8px; }
figure img { display: block; max-width: 100%; height: auto; margin: .6rem auto; background: #fff; }
"""


def save_html(
    diagnoses: Diagnoses, path: str | os.PathLike[str], notes: Sequence[str] = ()
) -> None:
    """Write `page(diagnoses)` to `path`."""
    text = page(diagnoses, notes)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def page(diagnoses: Diagnoses, notes: Sequence[str] = ()) -> str:
    """The page's HTML, with `notes` above the table."""
    drawn, sentences = figures(diagnoses), findings(diagnoses)
    title = html.escape("Inside " + ", ".join(diagnoses))
    versions = next(iter(diagnoses.values())).versions
    columns = {where: _cells(each, part) for where, each, part in named_parts(diagnoses)}
    pandas = optional("pandas")
    with pandas.option_context("display.max_colwidth", None):  # else it cuts long cells
        table = pandas.DataFrame(columns).to_html(border=0)
    body = [
        f"<h1>{title}</h1>",
        "<p>Measured in float64 on the tokens below, padding excluded. "
        "Lines are means over sequences; bands are one standard deviation, between sequences for "
        "representations, between heads for attention.</p>",
        *(f"<p><strong>{html.escape(note)}</strong></p>" for note in notes),
        f'<div class="wide">{table}</div>',
        *(_figure(name, drawn.get(name), sentences[name]) for name in FIGURES),
        f"<footer>{', '.join(f'{name} {version}' for name, version in versions.items())}</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'  # else a browser asks for /favicon.ico
        f"<title>{title}</title><style>{CSS}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _cells(diagnosis: Measurements, part: Part) -> dict[str, str]:
    """The column of a part in the table."""
    depth = {name: number(part.by_depth[name].mean[-1]) for name in DEPTHS}
    head = {name: number(part.by_head[name].mean.mean()) for name in HEADS}
    return {
        "variant": part.variant,
        "layers x heads": f"{part.layers} x {part.heads}",
        "sequences": str(part.sequences),
        "tokens": str(part.tokens),
        "cosine similarity, last depth": depth["cosine"],
        "effective rank, last depth": depth["effective_rank"],
        "high-frequency over DC energy, last depth": depth["high_to_dc"],
        "largest eigenvalue, mean of heads": head["largest_eigenvalue"],
        "attention entropy (nats), mean of heads": head["entropy"],
        "homophily, mean of heads": head["homophily"],
        "worst error of A^K, share of its bound 2K": number(worst_share(diagnosis, part).max()),
    }


def _figure(name: str, drawn: Any, sentences: Sequence[str]) -> str:
    figure, picture = FIGURES[name], "<p>Nothing to draw.</p>"
    if drawn is not None:
        buffer = io.BytesIO()
        drawn.savefig(buffer, format="png", dpi=2 * SCREEN)
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        text = html.escape(f"{figure.heading}. {' '.join(sentences)}")
        width = round(drawn.get_size_inches()[0] * SCREEN)
        picture = f'<img alt="{text}" width="{width}" src="data:image/png;base64,{data}">'
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return (
        f'<figure id="{name}"><h2>{html.escape(figure.heading)}</h2>{picture}'
        f"<figcaption><p>{html.escape(figure.claim)}</p><p>Here:</p><ul>{items}</ul></figcaption>"
        f"</figure>"
    )
