"""What `diagnose` gives back: the measurements, with ways to table and draw them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .extras import optional
from .page import save_html
from .plots import figures
from .result import Measurements
from .table import in_short, printed, tables


@dataclass(frozen=True)
class Diagnosis(Measurements):
    """Everything that `diagnose` measured: as a table, as JSON, as figures, as one page.

    Printed, and in a notebook, it is a table with a row for each layer.
    """

    def __repr__(self) -> str:
        return in_short(self)

    def __str__(self) -> str:
        return printed(self)

    def _repr_html_(self) -> str:
        deepest = max(part.layers for part in self.parts)
        return "".join(table._repr_html_() for table in tables(self, deepest))

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
