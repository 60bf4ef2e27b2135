"""`report(model)`: a table of what was patched; `supported(model)`: of what could be."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from hf_graphattn import backends
from hf_graphattn.architectures import AttentionModule, Plan, find
from hf_graphattn.variants import GraphFilter

from .filters import active_filter, graph_filters, original_filter, refuse_no_model, refuse_plain
from .parallel import own_class, whole

HEADINGS = ("layer", "module", "heads", "variant", "scalars (* learned)", "backend")
# What training takes more than with plain attention, in ms and MB, by the tokens of a sequence: one
# layer of 12 causal heads of 64, on two CPU cores (docs/speed.md, which has more lengths).
EXTRA = {
    128: {"laplacian": (0.4, 1), "gfsa": (1.7, 3), "plat": (3.3, 10)},
    1024: {"laplacian": (1.7, 6), "gfsa": (29.0, 56), "plat": (70.0, 76)},
}
SHOWN_HEADS = 8  # of more heads, only the smallest, the mean and the largest value are printed


@dataclass(frozen=True)
class Table:
    """Text when printed, HTML in a notebook.

    title: a line or more. cells: the text of each row. rows: the objects that the cells show.
    """

    title: str
    headings: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    rows: tuple[Any, ...] = ()

    def __str__(self) -> str:
        rows = [self.headings, *self.cells]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, tuple("-" * width for width in widths))
        pairs = [zip(cells, widths, strict=True) for cells in rows]
        lines = ["  ".join(cell.ljust(width) for cell, width in each).rstrip() for each in pairs]
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        rows = [
            "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
            for tag, cells in (("th", self.headings), *(("td", cells) for cells in self.cells))
        ]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        caption = html.escape(self.title).replace("\n", "<br>")
        return f"<table><caption>{caption}</caption>{body}</table>"


class ReportRow(NamedTuple):
    """One self-attention module. Without a filter its variant is "plain" and the rest is empty.

    layer: its index in `layers`; None for a module that calls its filter itself, by `ga.attention`.
    scalars: name -> one value, or a list with each head's value (or list of values).
    learned: the names of the scalars that are parameters.
    """

    layer: int | None
    module: str
    heads: int
    variant: str
    scalars: dict[str, Any]
    learned: tuple[str, ...]
    backend: str
    reason: str


class SupportRow(NamedTuple):
    """One attention module. kind: "self", "cross", or "own", which a filter cannot reach."""

    module: str
    attention: str
    kind: str
    heads: int
    says: str


def supported(model: nn.Module) -> Table:
    """Which attention modules of a model can have a filter, and why not: nothing is computed.

    Returns:
        A table; its `rows` are a `SupportRow` for each attention module.

    Raises:
        GraphAttentionError: it is no model.
    """
    refuse_no_model(model)
    plan, rows = find(model), []
    for layer in plan.attention:
        kind = "self" if layer.is_self_attention else "cross"
        answer = _supports(layer, plan) if layer.is_self_attention else "no: stays plain"
        cls = type(layer.module).__name__
        rows.append(SupportRow(layer.name, cls, kind, layer.num_heads, answer))
    for name, module in plan.out_of_reach:
        cls = type(module).__name__
        rows.append(SupportRow(name, cls, "own", 0, f"no: {plan.why_plain[cls]}"))
    title = f"{type(model).__name__}: {len(plan.self_attention)} self-attention modules in reach"
    cells = ((row.module, row.attention, row.kind, str(row.heads or ""), row.says) for row in rows)
    headings = ("module", "class", "attention", "heads", "filter")
    return Table(title, headings, tuple(cells), tuple(rows))


def _supports(attention: AttentionModule, plan: Plan) -> str:
    answer = "after a check (check=...)" if plan.needs_check else "yes: verified"
    return answer if attention.row is None else f"{answer}; filters linear in the values, no cache"


def report(model: nn.Module) -> Table:
    """What was patched: a row for each self-attention module, in the order that `layers` counts.

    Then a row for each module that calls its filter itself, by `ga.attention`.

    If FSDP or tensor parallelism has spread the model over processes, each of them must call this.

    Returns:
        A table; each of its `rows` is a `ReportRow`.

    Raises:
        GraphAttentionError: the model has no filters.
    """
    refuse_plain(model)
    filters, layers = graph_filters(model), find(model).self_attention
    names = {layer.name for layer in layers}
    originals = {name: original_filter(f) for name, f in filters.items()}
    callers = [
        AttentionModule(name, model.get_submodule(name), original.num_heads, True)
        for name, original in originals.items()
        if name not in names
    ]
    rows = [_row(i, layer, filters.get(layer.name)) for i, layer in enumerate(layers)]
    rows += [_row(None, caller, filters[caller.name]) for caller in callers]
    counted = f"{len(filters) - len(callers)} of {len(layers)} self-attention modules filtered"
    parts = [counted] if layers else []
    parts += [f"{len(callers)} with a filter of one's own"] if callers else []
    learned = sum(p.numel() for original in originals.values() for p in original.parameters())
    title = f"{own_class(model).__name__}: {', '.join(parts)}, {learned} learned scalars"
    title += _cost([f for f in originals.values() if not f.variant_config.place])
    return Table(title, HEADINGS, tuple(map(_cells, rows)), tuple(rows))


def _cost(filters: list[GraphFilter]) -> str:
    """What filters of attention cost in training, estimated from `EXTRA`."""
    if not filters:
        return ""
    passes, parts = sum(f.operands + 1 for f in filters), []
    for tokens, measured in EXTRA.items():
        time = memory = 0.0
        for each in filters:
            kind = "gfsa" if each.operands else "laplacian"
            extra = measured.get(each.variant_config.variant, measured[kind])
            layers = max(1, each.operands) * each.num_heads / 12
            time, memory = time + layers * extra[0] / 1000, memory + layers * extra[1]
        parts.append(f"{time:.2g} s and {memory:.0f} MB more for a sequence of {tokens} tokens")
    heading = f"{passes} passes of attention (plain: {len(filters)})"
    return f"\n{heading}. Training on two CPU cores takes about\n" + ",\n".join(parts)


def _row(
    layer: int | None, attention: AttentionModule, graph_filter: nn.Module | None
) -> ReportRow:
    name, heads, module = attention.name, attention.num_heads, attention.module
    if graph_filter is None:
        return ReportRow(layer, name, heads, "plain", {}, (), "", "")
    current = active_filter(graph_filter)
    config = current.variant_config
    device = attention.device.type
    backend, why = backends.explain(current.backend, current.backends, device, current.operands + 1)
    delegates = current.backend == "auto" and backends.DELEGATE in current.backends
    if attention.row is not None:
        backend, why = backends.EAGER, f"H is formed of the A of {type(module).__name__}"
    elif delegates and layer is not None and not attention.is_verified:
        why += f"; {backends.DELEGATE} for arguments that only {type(module).__name__} knows"
    values = {scalar: _value(getattr(current, scalar)) for scalar in config.scalars}
    return ReportRow(layer, name, heads, config.variant, values, config.trainable, backend, why)


def _cells(row: ReportRow) -> tuple[str, ...]:
    scalars = "  ".join(
        f"{name}{'*' if name in row.learned else ''} {_text(value)}"
        for name, value in row.scalars.items()
    )
    backend = f"{row.backend}: {row.reason}" if row.backend else ""
    layer = "" if row.layer is None else str(row.layer)
    return (layer, row.module, str(row.heads), row.variant, scalars, backend)


def _value(value: float | Tensor) -> Any:
    return whole(value.detach()).float().tolist() if isinstance(value, Tensor) else float(value)


def _text(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value:.4g}"
    if isinstance(value[0], list):  # each head has several
        return "(" + ", ".join(_text(list(column)) for column in zip(*value, strict=True)) + ")"
    if len(set(value)) == 1:
        return f"{value[0]:.4g}"
    if len(value) <= SHOWN_HEADS:
        return " ".join(f"{item:.4g}" for item in value)
    mean = sum(value) / len(value)
    return f"{min(value):.4g} .. {max(value):.4g}, mean {mean:.4g}"
