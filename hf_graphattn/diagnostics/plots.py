"""The figures. Each function takes name -> diagnosis, one or several, and makes one Figure.

Lines are means over sequences and, for statistics of heads, over heads. Bands are one standard
deviation: between sequences for representations, between heads for attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .drawing import SMALL, Draw, Panel, Values, by_part, heat_maps, labelled, line, log_scale
from .palette import GREY, PLAIN, Look
from .result import Diagnoses, Measurements, Part, named_parts

DEPTH = "depth (0: embeddings)"
LAYER = "layer"


def figures(diagnoses: Diagnoses) -> dict[str, Any]:
    """Name -> figure, for every figure that these diagnoses have something to show in."""
    drawn = {name: draw(diagnoses) for name, draw in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def cosine_similarity(diagnoses: Diagnoses) -> Any:
    """Mean pairwise cosine similarity of tokens by depth (GFSA, Fig. 2)."""
    title = "Do tokens become alike? Mean pairwise cosine similarity by depth"
    return by_part(diagnoses, title, _by_depth("cosine", "mean cos(h_x, h_y), x ≠ y"))[0]


def high_to_dc(diagnoses: Diagnoses) -> Any:
    """High-frequency energy over DC energy by depth (p-LaT, Def. 4.1)."""
    title = "Is detail smoothed away? High-frequency over DC energy by depth"
    panel = _by_depth("high_to_dc", "‖HC[h]‖ / ‖DC[h]‖", logarithmic=True)
    return by_part(diagnoses, title, panel)[0]


def singular_values(diagnoses: Diagnoses) -> Any:
    """Singular values of the last features, and the effective rank by depth (GFSA, Fig. 2)."""

    def draw(axis: Any, look: Look, _: Measurements, part: Part) -> None:
        values = part.singular_values.mean
        line(axis, look, (np.linspace(0, 1, values.size), values, None), marker="")

    title = "How many directions do the features use? "
    title += "Singular values at the last depth; effective rank by depth"
    label = "index of the singular value (0 largest, 1 smallest)"
    spectrum = Panel(label, "σ / σ₁", draw, counted=False)  # noqa: RUF001 (sigma)
    rank = _by_depth("effective_rank", "effective rank (directions)")
    figure, axes = by_part(diagnoses, title, spectrum, rank)
    for axis in (axis for axis in axes if axis.get_xlabel() == label and not axis.texts):
        axis.set_yscale("log")
        # A layer norm leaves one direction empty; its rounding error would fill most of the axis.
        axis.set_ylim(bottom=max(axis.get_ylim()[0], 1e-4))
        log_scale(axis)
    return figure


def frequency_response(diagnoses: Diagnoses) -> Any:
    """|eigenvalues| of the filtered matrix H, sorted, and of A, dashed.

    GFSA's Figures 2, 4 and 5 ask the same of a discrete Fourier transform.
    """

    def draw(axis: Any, look: Look, _: Measurements, part: Part) -> None:
        response, attention = (
            s.mean.reshape(-1, s.mean.shape[-1]) for s in (part.response, part.attention_response)
        )
        position = np.linspace(0, 1, response.shape[-1])
        values = (position, _mean(response, 0), _std(response, 0))
        line(axis, look, values, marker="")
        if part.variant not in PLAIN:
            own = (position, _mean(attention, 0), None)
            line(axis, look, own, f"{look.label}: its A", marker="", linestyle="--")

    title = "Which frequencies pass? Magnitude of the filtered matrix's spectrum"
    label = "index of the eigenvalue (0 largest, 1 smallest)"
    panel = Panel(label, "|λ|, mean of all heads", draw, counted=False)
    return by_part(diagnoses, title, panel)[0]


def largest_eigenvalue(diagnoses: Diagnoses) -> Any:
    """|λ|max of the weighted matrix by layer (p-LaT, Theorem 4.4)."""
    title = "Largest eigenvalue of the weighted matrix"
    panel = Panel(LAYER, "|λ|max of H", _by_layer("largest_eigenvalue"))
    figure, axes = by_part(diagnoses, title, panel)
    for axis in axes:
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, 0.9), max(high, 1.1))
        axis.axhline(1, color=GREY, linewidth=1, linestyle=":")
        axis.annotate("plain attention", (0, 1), (3, 3), textcoords="offset points", size=SMALL)
    return figure


def energy(diagnoses: Diagnoses) -> Any:
    """p-Dirichlet energy of the values before and after a layer's filter (as in p-LaT, eq. 3)."""

    def draws(p: float) -> Draw:
        def draw(axis: Any, look: Look, diagnosis: Measurements, part: Part) -> None:
            if p in diagnosis.powers:
                for when, matrix, dashes in (("before", "V", "-"), ("after", "HV", "--")):
                    layers, mean, _ = _heads(part, f"energy_p{p:g}_{when}")
                    label = f"{look.label}: J({matrix})"
                    line(axis, look, (layers, mean, None), label, linestyle=dashes)

        return draw

    powers = dict.fromkeys(p for d in diagnoses.values() for p in d.powers)
    title = "Does the layer lower the energy? J_p of the values V, and of H V"
    kinds = [
        Panel(LAYER, "energy a token", draws(p), f"p = {p:g}", logarithmic=True) for p in powers
    ]
    return by_part(diagnoses, title, *kinds)[0]


def homophily(diagnoses: Diagnoses) -> Any:
    """Share of token pairs whose values are closer than 1 (p-LaT, Def. 4.5, wants all or none)."""
    title = "Which tokens are close? Share of value pairs with |v_x - v_y| < 1"
    panel = Panel(LAYER, "share of pairs", _by_layer("homophily"))
    figure, axes = by_part(diagnoses, title, panel)
    for axis in axes:
        axis.set_ylim(-0.03, 1.03)
    return figure


def attention_entropy(diagnoses: Diagnoses) -> Any:
    """Entropy of A's rows by layer and head."""
    title = "How widely does each head look? Attention entropy, mean over rows"
    maps = {
        where: part.by_head["entropy"].mean for where, _, part in named_parts(labelled(diagnoses))
    }
    return heat_maps(title, "entropy (nats)", maps)


def scalars(diagnoses: Diagnoses) -> Any:
    """The filters' scalars by layer and head; None if there are none to show.

    It shows the learned scalars, and fixed ones that are not the same number everywhere.
    """
    maps = {}
    for where, _, part in named_parts(labelled(diagnoses)):
        for name, values in part.scalars.items():
            learned = name in part.learned
            if learned or len(set(values[np.isfinite(values)])) > 1:
                maps[f"{where}: {name}{' (learned)' if learned else ''}"] = values
    if not maps:
        return None
    return heat_maps("What did the filters learn? Scalars by layer and head", "value", maps)


def approximation_error(diagnoses: Diagnoses) -> Any:
    """GFSA's error in A^K and its bound 2K (Theorem 3.1, Fig. 3): mean, and the worst seen."""

    def draw(axis: Any, look: Look, diagnosis: Measurements, part: Part) -> None:
        mean = _mean(part.approximation_error.mean, (0, 1))
        line(axis, look, (diagnosis.orders, mean, None), f"{look.label}: mean")
        worst = (diagnosis.orders, part.worst_error, None)
        line(axis, look, worst, f"{look.label}: worst", linestyle=":")

    title = "How good is GFSA's A^K? Error ‖A^K - (A + (K-1)(A² - A))‖∞ and its bound"
    figure, axes = by_part(diagnoses, title, Panel("K", "error (largest row sum)", draw))
    orders = np.array(sorted({order for d in diagnoses.values() for order in d.orders}))
    for axis in axes:
        (bound,) = axis.plot(orders, 2 * orders, color=GREY, linewidth=1.2, label="bound 2K")
        end = bound.get_xydata()[-1]
        axis.annotate("bound 2K", end, (-8, 0), textcoords="offset points", size=SMALL, ha="right")
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


def _by_depth(statistic: str, label: str, *, logarithmic: bool = False) -> Panel:
    """The panel of a statistic of representations, with its deviation between sequences."""

    def draw(axis: Any, look: Look, _: Measurements, part: Part) -> None:
        summary = part.by_depth[statistic]
        line(axis, look, (range(part.layers + 1), summary.mean, summary.std))

    def compared(part: Part) -> np.ndarray:
        return part.by_depth[statistic].mean

    return Panel(DEPTH, label, draw, logarithmic=logarithmic, compared=compared)


def _by_layer(statistic: str) -> Draw:
    """Return what draws a statistic of heads, with its deviation between them."""

    def draw(axis: Any, look: Look, _: Measurements, part: Part) -> None:
        line(axis, look, _heads(part, statistic))

    return draw


def _heads(part: Part, statistic: str) -> Values:
    """A line by layer: (layers, mean over heads, deviation between heads)."""
    values = part.by_head[statistic].mean
    return range(part.layers), _mean(values, 1), _std(values, 1)


def _mean(values: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """The mean of the finite values; NaN if there are none."""
    return np.ma.masked_invalid(values).mean(axis=axis).filled(np.nan)


def _std(values: np.ndarray, axis: int) -> np.ndarray:
    return np.ma.masked_invalid(values).std(axis=axis).filled(np.nan)
