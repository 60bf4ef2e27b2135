"""The site that `make docs` builds from these pages and the library's docstrings, by Sphinx.

Nothing in it comes from elsewhere: it reads without a network, and from files.
"""

from __future__ import annotations

import csv
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import hf_graphattn as ga

project = "hf_graphattn"
author = "The hf_graphattn authors"
copyright = author
version = release = ga.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3  # as a forge makes them, so that links between pages work in both
myst_links_external_new_tab = False

default_role = "code"  # docstrings write code in single backticks
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "groupwise"
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"hf_graphattn {version}"
html_static_path = ["site"]
html_logo = "site/logo.svg"
html_css_files = ["pages.css"]
html_js_files = ["tables.js"]
html_copy_source = False
html_show_sphinx = False


def with_settings(
    _app: Sphinx, what: str, _name: str, documented: Any, _options: Any, lines: list[str]
) -> None:
    """A config's settings below its docstring, each with its own help; no module's docstring."""
    if what == "module":
        lines.clear()
    elif isinstance(documented, type) and issubclass(documented, ga.VariantConfig):
        settings = [field for field in fields(documented) if "help" in field.metadata]
        lines += [f":param {field.name}: {field.metadata['help']}" for field in settings]


def with_table(_app: Sphinx, page: str, source: list[str]) -> None:
    """Put the table of docs/architectures.csv, with its search field, on its page."""
    if page == "architectures":
        html = _table(Path(__file__).with_name("architectures.csv"))
        source[0] = source[0].replace("<!-- table -->", html)


def _table(path: Path) -> str:
    """A table of HTML: for each type a line of results, and a line of its other columns."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    results = header.index("attention")
    html = ['<div class="searchable"><p><label>Model type <input type="search" name="type">']
    html += ["</label> <output></output></p><div class='rows'><table><thead><tr>"]
    html += [f"<th>{escape(name)}</th>" for name in header[:results]]
    html += ["</tr></thead>"]
    for row in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[:results])
        others = zip(header[results:], row[results:], strict=True)
        notes = "; ".join(f"<b>{name}</b>: {escape(cell)}" for name, cell in others if cell)
        html += [f"<tbody><tr>{cells}</tr><tr><td colspan='{results}'>{notes}</td></tr></tbody>"]
    html += ["</table></div></div><script src='_static/search.js'></script>"]
    return "".join(html)


def setup(app: Sphinx) -> None:
    app.connect("source-read", with_table)
    app.connect("autodoc-process-docstring", with_settings)
    app.add_lexer("csv", TextLexer)  # Pygments has none
