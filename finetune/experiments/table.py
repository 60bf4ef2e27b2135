"""A table of words, as text for a terminal, as Markdown and as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
LATEX |= {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}

Row = Sequence[str]


@dataclass(frozen=True)
class Table:
    """Headings and rows of cells.

    Attributes:
        headings: a word or two for each column.
        groups: rows that belong together; LaTeX draws a rule above each group.
        columns: LaTeX's letter for each column, l or r; empty is l for all.
    """

    headings: Row
    groups: Sequence[Sequence[Row]]
    columns: str = ""

    @property
    def rows(self) -> list[Row]:
        """The rows of all groups."""
        return [row for group in self.groups for row in group]

    def text(self) -> list[str]:
        """The lines for a terminal, columns aligned."""
        table = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]

    def markdown(self) -> list[str]:
        """The lines of a pipe table."""
        table = [self.headings, ["---"] * len(self.headings), *self.rows]
        return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in table]

    def latex(self) -> list[str]:
        """The lines of a ``tabular`` for the package booktabs."""
        columns = self.columns or "l" * len(self.headings)
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(self.headings)]
        for rows in self.groups:
            lines += [r"\midrule", *map(_latex_row, rows)]
        return [*lines, r"\bottomrule", r"\end{tabular}"]


def _latex_row(cells: Row) -> str:
    return " & ".join("".join(LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"
