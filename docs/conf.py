"""The site that `make docs` builds from these pages and the library's docstrings, by Sphinx.

Nothing in it comes from elsewhere: it reads without a network, and from files.
"""

from __future__ import annotations

from dataclasses import fields
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
exclude_patterns = ["evidence"]
suppress_warnings = ["myst.header"]  # the page of evidence has figures' headings below its tables'

default_role = "code"  # docstrings write code in single backticks
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "groupwise"
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"hf_graphattn {version}"
html_static_path = ["site"]
html_css_files = ["wide.css"]
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


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", with_settings)
    app.add_lexer("csv", TextLexer)  # Pygments has none
