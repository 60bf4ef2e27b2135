"""What `diagnose` gives back: the measurements, with ways to table and draw them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .extras import optional
from .page import save_html
from .plots import figures
from .result import Measurements


@dataclass(frozen=True)
class Diagnosis(Measurements):
    """Everything that `diagnose` measured: as a table, as JSON, as figures, as one page."""

    def to_pandas(self) -> Any:
        """A long frame, one number a row: part, statistic, mean, std, and where it belongs.

        Where: `depth` of a statistic of states; `layer` and `head` of one of matrices; `order` (K)
        of an approximation error; `position` (0 largest, 1 smallest) of a spectrum. What does not
        apply is missing. `frame.query("statistic == 'entropy'").pivot(index="layer",
        columns="head", values="mean")` is a table.

        Raises:
            GraphAttentionError: pandas is not installed.
        """
        where = ["depth", "layer", "head", "order"]
        columns = ["part", "statistic", *where, "position", "mean", "std"]
        frame = optional("pandas").DataFrame(list(self.rows()), columns=columns)
        return frame.astype(dict.fromkeys(where, "Int64"))

    def figures(self) -> dict[str, Any]:
        """Name -> matplotlib figure. `diagnostics.figures({"a": ..., "b": ...})` compares."""
        return figures({self.model: self})

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one page with all figures in it. `diagnostics.save_html` compares models."""
        save_html({self.model: self}, path)
