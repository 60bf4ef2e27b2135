"""Looking inside: what attention and filters do to a model's tokens, measured and drawn.

`diagnose` measures (`collect` runs the model, `statistics` has the formulas), `figures` draws,
`save_html` writes one page. matplotlib and pandas are imported when something is drawn or tabled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .collect import diagnose
from .result import Diagnosis, Part, Summary


def figures(diagnoses: Mapping[str, Diagnosis]) -> dict[str, Any]:
    """Name -> matplotlib figure, the named diagnoses side by side in each."""
    from .plots import figures

    return figures(diagnoses)


def save_html(diagnoses: Mapping[str, Diagnosis], path: str | os.PathLike[str]) -> None:
    """Write one self-contained page: a table, every figure, and what each shows here."""
    from .page import save_html

    save_html(diagnoses, path)


__all__ = ["Diagnosis", "Part", "Summary", "diagnose", "figures", "save_html"]
