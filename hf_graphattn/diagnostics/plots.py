"""The figures, and what the papers claim about what each of them shows.

Lines are means over sequences and, for statistics of heads, over heads. Bands are one standard
deviation: between sequences for representations, between heads for attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .drawing import GREY, PLAIN, Draw, Look, Panel, Values, by_part, line
from .result import Diagnoses, Measurements, Part

FLOOR = 1e-4  # smaller singular values are the rounding error of the direction a norm leaves empty


@dataclass(frozen=True)
class Figure:
    """One figure, and what goes with it.

    heading: its title. claim: what the papers say about it. draw: (diagnoses, title) -> figure, or
    None if there is nothing to draw.
    """

    heading: str
    claim: str
    draw: Callable[[Diagnoses, str], Any]


def figures(diagnoses: Diagnoses) -> dict[str, Any]:
    """Name -> matplotlib figure, for every figure that has something to show.

    Args:
        diagnoses: name -> diagnosis, of one model, or of several that are compared.

    Raises:
        GraphAttentionError: matplotlib is not installed.
    """
    drawn = {name: figure.draw(diagnoses, figure.heading) for name, figure in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _panels(*kinds: Panel) -> Callable[[Diagnoses, str], Any]:
    return lambda diagnoses, title: by_part(diagnoses, title, *kinds)


def _by_depth(statistic: str, y: str) -> Panel:
    """The panel of a statistic of representations."""

    def draw(axis: Any, look: Look, _: Measurements, part: Part) -> None:
        summary = part.by_depth[statistic]
        line(axis, look, (range(part.layers + 1), summary.mean, summary.std))

    def compared(part: Part) -> np.ndarray:
        return part.by_depth[statistic].mean

    return Panel("depth (0: embeddings)", y, draw, compared=compared)


def _by_layer(statistic: str) -> Draw:
    """What draws a statistic of heads, with its deviation between them."""
    return lambda axis, look, _, part: line(axis, look, _heads(part, statistic))


def _draw_singular_values(axis: Any, look: Look, _: Measurements, part: Part) -> None:
    values = part.singular_values.mean
    above = np.where(values >= FLOOR, values, np.nan)
    line(axis, look, (np.linspace(0, 1, values.size), above, None), marker="")


def _draw_response(axis: Any, look: Look, _: Measurements, part: Part) -> None:
    """|eigenvalues| of the filtered matrix H, sorted, and of A, dashed."""
    filtered, plain = (
        each.mean.reshape(-1, each.mean.shape[-1])
        for each in (part.response, part.attention_response)
    )
    position = np.linspace(0, 1, filtered.shape[-1])
    line(axis, look, (position, *_spread(filtered, 0)), marker="")
    if part.variant not in PLAIN:
        values = (position, _spread(plain, 0)[0], None)
        line(axis, look, values, f"{look.label}: its A", marker="", linestyle="--")


def _draw_fourier(axis: Any, look: Look, _: Measurements, part: Part) -> None:
    values = part.fourier_response.mean
    mean, deviation = _spread(values.reshape(-1, values.shape[-1]), 0)
    line(axis, look, (np.linspace(0, 1, mean.size), mean, deviation), marker="")


def _draw_energy(diagnoses: Diagnoses, title: str) -> Any:
    """A panel for each p: the energy of the values before and after a layer's filter."""

    def draws(p: float) -> Draw:
        def draw(axis: Any, look: Look, diagnosis: Measurements, part: Part) -> None:
            if p in diagnosis.powers:
                for when, matrix, dashes in (("before", "V", "-"), ("after", "HV", "--")):
                    layers, mean, _ = _heads(part, f"energy_p{p:g}_{when}")
                    label = f"{look.label}: J({matrix})"
                    line(axis, look, (layers, mean, None), label, linestyle=dashes)

        return draw

    powers = dict.fromkeys(p for diagnosis in diagnoses.values() for p in diagnosis.powers)
    kinds = (
        Panel("layer", "energy a token", draws(p), f"p = {p:g}", logarithmic=True) for p in powers
    )
    return by_part(diagnoses, title, *kinds)


def _draw_scalars(diagnoses: Diagnoses, title: str) -> Any:
    """A panel for each learned scalar; None if there is none."""

    def draws(name: str) -> Draw:
        def draw(axis: Any, look: Look, _: Measurements, part: Part) -> None:
            if name in part.learned:
                line(axis, look, (range(part.layers), *_spread(part.scalars[name], 1)))

        return draw

    parts = [part for diagnosis in diagnoses.values() for part in diagnosis.parts]
    names = dict.fromkeys(name for part in parts for name in part.learned)
    kinds = [Panel("layer", name, draws(name)) for name in names]
    return by_part(diagnoses, title, *kinds) if kinds else None


def _draw_approximation(axis: Any, look: Look, diagnosis: Measurements, part: Part) -> None:
    orders = np.array(diagnosis.orders)
    mean, _ = _spread(part.approximation_error.mean, (0, 1))
    line(axis, look, (orders, mean, None), f"{look.label}: mean")
    line(axis, look, (orders, part.worst_error, None), f"{look.label}: worst", linestyle=":")
    axis.plot(orders, 2 * orders, color=GREY, linewidth=1.2, label="bound 2K")


def _heads(part: Part, statistic: str) -> Values:
    """A line by layer: (layers, mean over heads, deviation between heads)."""
    return range(part.layers), *_spread(part.by_head[statistic].mean, 1)


def _spread(values: np.ndarray, axis: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(Mean, deviation) of the finite values; NaN if there are none."""
    finite = np.ma.masked_invalid(values)
    return finite.mean(axis=axis).filled(np.nan), finite.std(axis=axis).filled(np.nan)


# GFSA is arXiv 2312.04234, p-LaT arXiv 2311.03235.
FIGURES: Mapping[str, Figure] = {
    "cosine_similarity": Figure(
        "Cosine similarity of the tokens by depth",
        "GFSA (Fig. 2) and p-LaT hold that plain attention makes tokens more alike with depth, "
        "and that their filters do so less.",
        _panels(_by_depth("cosine", "mean cos(h_x, h_y), x ≠ y")),
    ),
    "singular_values": Figure(
        "Singular values at the last depth, and effective rank by depth",
        "GFSA (Fig. 2) holds that plain attention leaves few directions, and its filter more. "
        "The effective rank is exp(entropy of the normalised singular values).",
        _panels(
            Panel(
                "index of the singular value (0 largest, 1 smallest)",
                "σ / σ₁",  # noqa: RUF001 (sigma)
                _draw_singular_values,
                counted=False,
                logarithmic=True,
            ),
            _by_depth("effective_rank", "effective rank (directions)"),
        ),
    ),
    "frequency_response": Figure(
        "Frequency response: |eigenvalues| of H, and what H leaves of a wave",
        "GFSA holds that plain attention is a low-pass filter, and that its filter passes higher "
        "frequencies too. Its Fig. 2 shows this by a Fourier transform over the tokens, below. "
        "The eigenvalues are frequencies on the graph A. A causal matrix has its "
        "diagonal as eigenvalues: how much each token looks at itself.",
        _panels(
            Panel(
                "index of the eigenvalue (0 largest, 1 smallest)",
                "|λ|, mean of all heads",
                _draw_response,
                counted=False,
            ),
            Panel(
                "frequency (0: constant, 1: changes at every token)",
                "‖H f‖, mean of all heads",
                _draw_fourier,
                counted=False,
            ),
        ),
    ),
    "high_to_dc": Figure(
        "High-frequency over DC energy by depth",
        "A layer is low-pass when repeating it drives this ratio to 0 (p-LaT, Def. 4.1). "
        "The mean of the tokens is the DC part.",
        _panels(_by_depth("high_to_dc", "‖HC[h]‖ / ‖DC[h]‖")),
    ),
    "energy": Figure(
        "p-Dirichlet energy of the values V, and of H V",
        "The energy J does not rise from the output of a layer to that of the next (p-LaT, Theorem "
        "3.4). Here J is that of one layer's values, weighted with A, which the theorem does not "
        "cover.",
        _draw_energy,
    ),
    "largest_eigenvalue": Figure(
        "Largest eigenvalue of H",
        "A largest eigenvalue above 1 that is not the constant vector's means that the layer is "
        "not low-pass (p-LaT, Theorem 4.4); one below 1 proves nothing. Plain attention has 1. "
        "p-LaT's causal H has eps^((p-2)/2) whatever the data.",
        _panels(Panel("layer", "|λ|max of H", _by_layer("largest_eigenvalue"))),
    ),
    "homophily": Figure(
        "Homophily: share of value pairs closer than 1",
        "A layer is homophilic if all pairs of its values are closer than 1, and heterophilic if "
        "none is (p-LaT, Def. 4.5). p < 2 weighs close pairs more, p > 2 distant ones.",
        _panels(Panel("layer", "share of pairs", _by_layer("homophily"))),
    ),
    "attention_entropy": Figure(
        "Entropy of the attention by layer",
        "No paper's claim: a head of low entropy looks at few tokens.",
        _panels(Panel("layer", "entropy (nats)", _by_layer("entropy"))),
    ),
    "scalars": Figure(
        "Learned scalars of the filters by layer",
        "A scalar that stayed at its start was not trained, or its learning rate was too low, or "
        "the head is best with plain attention. filter_learning_rate=1e-2 tells which.",
        _draw_scalars,
    ),
    "approximation_error": Figure(
        "Error of GFSA's A^K: ‖A^K - (A + (K-1)(A² - A))‖∞",
        "The error is at most 2K (GFSA, Theorem 3.1, Fig. 3), and from K = 3 on at most 2K - 2.",
        _panels(Panel("K", "error (largest row sum)", _draw_approximation)),
    ),
}
