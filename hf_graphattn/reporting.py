"""`report(model)`: what was patched, as a table."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from . import backends
from .adapters import active_filter, original_filter
from .architectures import attention_modules
from .attention import FILTER
from .errors import GraphAttentionError
from .filters import graph_filters, is_patched

HEADINGS = ("layer", "module", "heads", "variant", "scalars (* learned)", "backend")
SHOWN_HEADS = 8  # values printed a scalar; of more, the smallest, mean and largest


@dataclass(frozen=True)
class ReportRow:
    """One self-attention module; without a filter, `variant` is "plain" and the rest empty.

    scalars: name -> one value, or a list of one a head (of several a head, a list each).
    learned: the names of those that are parameters.
    """

    layer: int
    module: str
    heads: int
    variant: str
    scalars: dict[str, Any]
    learned: tuple[str, ...]
    backend: str
    reason: str

    def cells(self) -> tuple[str, ...]:
        scalars = "  ".join(
            f"{name}{'*' if name in self.learned else ''} {_shown(value)}"
            for name, value in self.scalars.items()
        )
        backend = f"{self.backend}: {self.reason}" if self.backend else ""
        return (str(self.layer), self.module, str(self.heads), self.variant, scalars, backend)


@dataclass(frozen=True)
class Report:
    """The table of `report(model)`: prints as text, shows as HTML in a notebook."""

    title: str
    rows: tuple[ReportRow, ...]

    def __str__(self) -> str:
        table = [HEADINGS, *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
            for cells in table
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        def row(tag: str, cells: tuple[str, ...]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        body = "".join(row("td", each.cells()) for each in self.rows)
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<thead>{row('th', HEADINGS)}</thead><tbody>{body}</tbody></table>"


def report(model: nn.Module) -> Report:
    """What was patched: one row a self-attention module, in the order that `layers` counts.

    Raises:
        GraphAttentionError: the model is not patched.
    """
    if not is_patched(model):
        raise GraphAttentionError(
            f"{type(model).__name__} is not patched: there is nothing to report. Call "
            f"patch_model(model, config) first."
        )
    modules = [found for found in attention_modules(model) if found.is_self_attention]
    rows = tuple(
        _row(layer, found.name, found.num_heads, getattr(found.module, FILTER), found.module)
        for layer, found in enumerate(modules)
    )
    filtered = [row for row in rows if row.backend]
    own = map(original_filter, graph_filters(model).values())  # an adapter's copies do not count
    learned = sum(scalar.numel() for each in own for scalar in each.parameters())
    title = (
        f"{type(model).__name__}: {len(filtered)} of {len(rows)} self-attention modules filtered, "
        f"{learned} learned scalars"
    )
    return Report(title, rows)


def _row(layer: int, name: str, heads: int, graph_filter: Any, module: nn.Module) -> ReportRow:
    if graph_filter is None:
        return ReportRow(layer, name, heads, "plain", {}, (), "", "")
    current = active_filter(graph_filter)
    config = current.variant_config
    device = next(module.parameters()).device.type
    passes = current.operands + 1
    backend, reason = backends.explain(current.backend, current.backends, device, passes)
    values = {scalar: _value(getattr(current, scalar)) for scalar in config.scalars}
    return ReportRow(layer, name, heads, config.variant, values, config.trainable, backend, reason)


def _value(value: float | Tensor) -> Any:
    return value.detach().float().tolist() if isinstance(value, Tensor) else float(value)


def _shown(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value:.4g}"
    if isinstance(value[0], list):  # several a head
        return "(" + ", ".join(_shown(list(column)) for column in zip(*value, strict=True)) + ")"
    if len(set(value)) == 1:
        return f"{value[0]:.4g}"
    if len(value) <= SHOWN_HEADS:
        return " ".join(f"{item:.4g}" for item in value)
    mean = sum(value) / len(value)
    return f"{min(value):.4g} .. {max(value):.4g}, mean {mean:.4g}"
