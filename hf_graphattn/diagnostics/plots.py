"""The figures. Each function takes name -> diagnosis, one or several, and makes one Figure.

Lines are means over sequences and, for statistics of heads, over heads. Bands are one standard
deviation: between sequences for representations, between heads for attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .drawing import (
    Values,
    by_part,
    heat_maps,
    legend,
    line,
    log_scale,
    panels,
    style,
    whole_ticks,
)
from .result import Diagnoses, Part, having, named_parts, part_names

DEPTH = "depth (0: embeddings)"
LAYER = "layer"


def figures(diagnoses: Diagnoses) -> dict[str, Any]:
    """Name -> figure, for every figure that these diagnoses have something to show in."""
    drawn = {name: draw(diagnoses) for name, draw in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def cosine_similarity(diagnoses: Diagnoses) -> Any:
    """Mean pairwise cosine similarity of tokens by depth (GFSA, Fig. 2)."""
    title = "Do tokens become alike? Mean pairwise cosine similarity by depth"
    return _by_depth(diagnoses, "cosine", title, "mean cos(h_x, h_y), x ≠ y")


def high_to_dc(diagnoses: Diagnoses) -> Any:
    """High-frequency energy over DC energy by depth (p-LaT, Def. 4.1)."""
    title = "Is detail smoothed away? High-frequency over DC energy by depth"
    return _by_depth(diagnoses, "high_to_dc", title, "‖HC[h]‖ / ‖DC[h]‖", logarithmic=True)


def singular_values(diagnoses: Diagnoses) -> Any:
    """Singular values of the last features, and the effective rank by depth (GFSA, Fig. 2)."""
    title = "How many directions do the features use? "
    title += "Singular values at the last depth; effective rank by depth"
    names = part_names(diagnoses)
    figure, axes = panels(2 * len(names), title, columns=2)
    for row, name in enumerate(names):
        left, right = axes[2 * row : 2 * row + 2]
        for index, model, _, part in having(diagnoses, name):
            values, rank = part.singular_values, part.by_depth["effective_rank"]
            position = np.linspace(0, 1, values.mean.size)
            line(left, index, (position, values.mean, None), model, marker="")
            line(right, index, (range(part.layers + 1), rank.mean, rank.std), model)
        left.set_yscale("log")
        # A layer norm leaves one direction empty; its rounding error would fill most of the axis.
        left.set_ylim(bottom=max(left.get_ylim()[0], 1e-4))
        log_scale(left)
        which = name if len(names) > 1 else ""
        style(left, "index of the singular value (0 largest, 1 smallest)", "σ / σ₁", which)  # noqa: RUF001 (sigma)
        style(right, DEPTH, "effective rank (directions)", which)
        whole_ticks(right)
    legend(figure, axes)
    return figure


def frequency_response(diagnoses: Diagnoses) -> Any:
    """|eigenvalues| of the filtered matrix H, sorted (GFSA, Fig. 2, 4, 5), and of A, dashed."""

    def draw(axis: Any, index: int, model: str, part: Part) -> None:
        response, attention = (
            s.mean.reshape(-1, s.mean.shape[-1]) for s in (part.response, part.attention_response)
        )
        position = np.linspace(0, 1, response.shape[-1])
        values = (position, _mean(response, 0), _std(response, 0))
        line(axis, index, values, model, marker="")
        if part.variant != "plain":
            own = (position, _mean(attention, 0), None)
            line(axis, index, own, f"{model}: its A", marker="", linestyle="--")

    title = "Which frequencies pass? Magnitude of the filtered matrix's spectrum"
    labels = ("index of the eigenvalue (0 largest, 1 smallest)", "|λ|, mean over layers and heads")
    return by_part(diagnoses, title, labels, draw)[0]


def largest_eigenvalue(diagnoses: Diagnoses) -> Any:
    """|λ|max of the weighted matrix by layer (p-LaT, Theorem 4.4)."""
    title = "Can the layer amplify? Largest eigenvalue of the weighted matrix"
    figure, axes = _by_layer(diagnoses, "largest_eigenvalue", title, "|λ|max of H")
    for axis in axes:
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, 0.9), max(high, 1.1))
        axis.axhline(1, color="#777777", linewidth=1, linestyle=":")
        axis.annotate("plain attention", (0, 1), (3, 3), textcoords="offset points", size=7)
    return figure


def energy(diagnoses: Diagnoses) -> Any:
    """p-Dirichlet energy of the values before and after the layer (p-LaT, Theorem 3.4)."""
    names = part_names(diagnoses)
    powers = list(dict.fromkeys(p for d in diagnoses.values() for p in d.powers))
    title = "Does the layer lower the energy? J_p of the values V, and of H V"
    figure, axes = panels(len(names) * len(powers), title, columns=len(powers))
    each = ((name, p) for name in names for p in powers)
    for (name, p), axis in zip(each, axes, strict=True):
        for index, model, diagnosis, part in having(diagnoses, name):
            if p not in diagnosis.powers:
                continue
            for when, dashes in (("before", "-"), ("after", "--")):
                label = f"{model}: J({'V' if when == 'before' else 'HV'})"
                values = _heads(part, f"energy_p{p:g}_{when}")
                line(axis, index, (*values[:2], None), label, linestyle=dashes)
        log_scale(axis)
        whole_ticks(axis)
        style(axis, LAYER, "energy a token", f"{name}, p = {p:g}" if names[1:] else f"p = {p:g}")
    legend(figure, axes)
    return figure


def homophily(diagnoses: Diagnoses) -> Any:
    """Share of token pairs whose values are closer than 1 (p-LaT, Def. 4.5)."""
    title = "Which tokens are close? Share of value pairs with |v_x - v_y| < 1"
    return _by_layer(diagnoses, "homophily", title, "share of pairs", share=True)[0]


def attention_entropy(diagnoses: Diagnoses) -> Any:
    """Entropy of A's rows by layer and head."""
    title = "How widely does each head look? Attention entropy, mean over rows"
    maps = {where: part.by_head["entropy"].mean for where, _, part in named_parts(diagnoses)}
    return heat_maps(title, "entropy (nats)", maps)


def scalars(diagnoses: Diagnoses) -> Any:
    """The filters' scalars by layer and head; None if there are none to show.

    It shows the learned scalars, and fixed ones that are not the same number everywhere.
    """
    maps = {}
    for where, _, part in named_parts(diagnoses):
        for name, values in part.scalars.items():
            learned = name in part.learned
            if learned or len(set(values[np.isfinite(values)])) > 1:
                maps[f"{where}: {name}{' (learned)' if learned else ''}"] = values
    if not maps:
        return None
    return heat_maps("What did the filters learn? Scalars by layer and head", "value", maps)


def approximation_error(diagnoses: Diagnoses) -> Any:
    """GFSA's error in A^K and its bound 2K (Theorem 3.1, Fig. 3): mean, and the worst seen."""
    names = part_names(diagnoses)
    title = "How good is GFSA's A^K? Error ‖A^K - (A + (K-1)(A² - A))‖∞ and its bound"
    figure, axes = panels(len(names), title)
    for name, axis in zip(names, axes, strict=True):
        seen: set[int] = set()
        for index, model, diagnosis, part in having(diagnoses, name):
            seen |= set(diagnosis.orders)
            mean = _mean(part.approximation_error.mean, (0, 1))
            line(axis, index, (diagnosis.orders, mean, None), f"{model}: mean")
            worst = (diagnosis.orders, part.worst_error, None)
            line(axis, index, worst, f"{model}: worst", linestyle=":")
        bound = np.array(sorted(seen))
        axis.plot(bound, 2 * bound, color="#777777", linewidth=1.2, label="bound 2K")
        style(axis, "K", "error (largest row sum)", name if len(names) > 1 else "")
        whole_ticks(axis)
    legend(figure, axes)
    return figure


FIGURES: dict[str, Callable[[Diagnoses], Any]] = {
    "cosine_similarity": cosine_similarity,
    "singular_values": singular_values,
    "frequency_response": frequency_response,
    "high_to_dc": high_to_dc,
    "energy": energy,
    "largest_eigenvalue": largest_eigenvalue,
    "homophily": homophily,
    "attention_entropy": attention_entropy,
    "scalars": scalars,
    "approximation_error": approximation_error,
}


def _by_depth(
    diagnoses: Diagnoses, statistic: str, title: str, label: str, logarithmic: bool = False
) -> Any:
    def draw(axis: Any, index: int, model: str, part: Part) -> None:
        summary = part.by_depth[statistic]
        line(axis, index, (range(part.layers + 1), summary.mean, summary.std), model)

    figure, axes = by_part(diagnoses, title, (DEPTH, label), draw)
    for axis in axes:
        if logarithmic:
            log_scale(axis)
        whole_ticks(axis)
    return figure


def _by_layer(
    diagnoses: Diagnoses, statistic: str, title: str, label: str, share: bool = False
) -> tuple[Any, list[Any]]:
    def draw(axis: Any, index: int, model: str, part: Part) -> None:
        line(axis, index, _heads(part, statistic), model)

    figure, axes = by_part(diagnoses, title, (LAYER, label), draw)
    for axis in axes:
        whole_ticks(axis)
        if share:
            axis.set_ylim(-0.03, 1.03)
    return figure, axes


def _heads(part: Part, statistic: str) -> Values:
    """A line by layer: (layers, mean over heads, deviation between heads)."""
    values = part.by_head[statistic].mean
    return range(part.layers), _mean(values, 1), _std(values, 1)


def _mean(values: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """The mean of the finite values; NaN if there are none."""
    return np.ma.masked_invalid(values).mean(axis=axis).filled(np.nan)


def _std(values: np.ndarray, axis: int) -> np.ndarray:
    return np.ma.masked_invalid(values).std(axis=axis).filled(np.nan)
