"""One HTML page: a table, the figures, which are pictures inside it, and what each shows.

The page fetches nothing: it has no script, font or style from elsewhere.
"""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterable, Sequence
from typing import Any

from .findings import Finding, findings
from .plots import FIGURES, figures
from .result import Diagnoses, Measurements, Part, named_parts, number

SCREEN = 160  # pixels of a page for an inch of a figure, which is drawn for a narrow column
HEADLINES = (
    "variant",
    "layers x heads",
    "sequences",
    "tokens",
    "cosine similarity, last depth",
    "effective rank, last depth",
    "high-frequency over DC energy, last depth",
    "largest eigenvalue, mean of heads",
    "attention entropy (nats), mean of heads",
    "homophily, mean of heads",
    "worst error of A^K, share of its bound 2K",
)
CSS = """
:root { color-scheme: light dark; --text: #1c1f23; --page: #fafafa; --card: #ffffff;
  --rule: #d9dde2; --quiet: #5b6570; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e7ea; --page: #15181b; --card: #1e2226; --rule: #363c43; --quiet: #9aa4ae; } }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 68rem; color: var(--text);
  background: var(--page); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 0 0 .6rem; }
p { margin: .4rem 0; }
.quiet, footer { color: var(--quiet); font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1.2rem 0; font-size: .88rem; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--rule); text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.4rem 0; padding: 1.1rem 1.2rem; background: var(--card);
  border: 1px solid var(--rule); border-radius: 8px; }
figure img { display: block; max-width: 100%; height: auto; margin: .6rem auto; background: #fff;
  border-radius: 4px; }
figcaption ul { margin: .4rem 0; padding-left: 1.2rem; }
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
    drawn, found = figures(diagnoses), findings(diagnoses)
    title = "Inside " + ", ".join(diagnoses)
    versions = next(iter(diagnoses.values())).versions
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    body = [
        f"<h1>{_text(title)}</h1>",
        '<p class="quiet">Measured in float64 on the tokens below, padding excluded. '
        "Lines are means over sequences; bands are one standard deviation, between sequences for "
        "representations, between heads for attention.</p>",
        *(f"<p><strong>{_text(note)}</strong></p>" for note in notes),
        _table(diagnoses),
        *(_figure(name, drawn.get(name), found[name]) for name in FIGURES),
        f"<footer>Made by hf_graphattn.diagnostics: {_text(made)}.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'  # else a browser asks for /favicon.ico
        f"<title>{_text(title)}</title><style>{CSS}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(diagnoses: Diagnoses) -> str:
    """A column for each part of each model, a row for each of `HEADLINES`."""
    columns = {where: _cells(diagnosis, part) for where, diagnosis, part in named_parts(diagnoses)}
    head = _row("th", ("", *columns))
    body = "".join(_row("td", row) for row in zip(HEADLINES, *columns.values(), strict=True))
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _cells(diagnosis: Measurements, part: Part) -> Iterable[str]:
    depth, head = part.by_depth, part.by_head
    yield part.variant
    yield f"{part.layers} x {part.heads}"
    yield str(part.sequences)
    yield str(part.tokens)
    for name in ("cosine", "effective_rank", "high_to_dc"):
        yield number(depth[name].mean[-1])
    for name in ("largest_eigenvalue", "entropy", "homophily"):
        yield number(head[name].mean.mean())
    yield number(max(e / (2 * k) for e, k in zip(part.worst_error, diagnosis.orders, strict=True)))


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{_text(cell)}</{tag}>" for cell in cells) + "</tr>"


def _figure(name: str, drawn: Any, finding: Finding) -> str:
    here = "".join(f"<li>{_text(sentence)}</li>" for sentence in finding.here)
    alternative = f"{finding.heading}. {' '.join(finding.here)}"
    picture = "<p>Nothing to draw.</p>"
    if drawn is not None:
        width = round(drawn.get_size_inches()[0] * SCREEN)
        data = base64.b64encode(_png(drawn)).decode("ascii")
        picture = (
            f'<img alt="{_text(alternative)}" width="{width}" src="data:image/png;base64,{data}">'
        )
    return (
        f'<figure id="{name}"><h2>{_text(finding.heading)}</h2>{picture}'
        f"<figcaption><p>{_text(finding.claim)}</p><p>Here:</p><ul>{here}</ul></figcaption>"
        f"</figure>"
    )


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=2 * SCREEN)
    return buffer.getvalue()


def _text(text: str) -> str:
    return html.escape(text, quote=True)
