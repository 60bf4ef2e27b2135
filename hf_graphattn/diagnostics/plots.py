"""The figures, and what each of them shows in words made from the numbers.

Lines are means over sequences and, for statistics of heads, over heads. Bands are one standard
deviation: between sequences for representations, between heads for attention. A finding reports
what was measured on these texts, whether it agrees with the paper or not. One model on a few
sequences proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .drawing import Draw, Panel, Values, by_part, heat_maps, labelled, line
from .palette import GREY, PLAIN, Look
from .result import Diagnoses, Measurements, Part, named_parts, reference

NOT_FINITE = "the numbers of the model are not finite."
SAME = 0.01  # a change that is a smaller share of the larger value is no change
FLOOR = 1e-4  # smaller singular values are the rounding error of the direction a norm leaves empty


class Trend(NamedTuple):
    """A statistic by depth that is compared: its key, its name, words for more and less of it."""

    statistic: str
    name: str
    more: str
    less: str


@dataclass(frozen=True)
class Figure:
    """One figure, and what goes with it.

    heading: its title. claim: what the papers say about it. draw: (diagnoses, title) -> figure, or
    None if there is nothing to draw. finding: a sentence about one part of one model, without the
    name of the model. trend: what is compared between models.
    """

    heading: str
    claim: str
    draw: Callable[[Diagnoses, str], Any]
    finding: Callable[[Measurements, Part], str]
    trend: Trend | None = None


def figures(diagnoses: Diagnoses) -> dict[str, Any]:
    """Name -> matplotlib figure, for every figure that has something to show.

    Args:
        diagnoses: name -> diagnosis, of one model, or of several that are compared.
    """
    drawn = {name: figure.draw(diagnoses, figure.heading) for name, figure in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def findings(diagnoses: Diagnoses) -> dict[str, list[str]]:
    """Name -> sentences, for every figure: one a model and part; then each model to the plain."""
    return {
        name: [
            *(
                f"{where}: {finding(name, each, part)}"
                for where, each, part in named_parts(diagnoses)
            ),
            *(_comparisons(diagnoses, figure.trend) if figure.trend else ()),
        ]
        for name, figure in FIGURES.items()
    }


def finding(name: str, diagnosis: Measurements, part: Part) -> str:
    """What the figure of this name shows of a part of a model, as one sentence."""
    values = (part.by_depth["cosine"].mean, part.by_head["entropy"].mean)
    if not all(np.isfinite(each).all() for each in values):
        return NOT_FINITE
    return FIGURES[name].finding(diagnosis, part)


def _comparisons(diagnoses: Diagnoses, trend: Trend) -> Iterator[str]:
    last = {
        (model, part.name): float(part.by_depth[trend.statistic].mean[-1])
        for model, diagnosis in diagnoses.items()
        for part in diagnosis.parts
    }
    base = reference(diagnoses)
    for (model, part), value in last.items():
        if model != base and (base, part) in last:
            plain = last[base, part]
            where = f" of the {part}" if len(diagnoses[model].parts) > 1 else ""
            numbers = f"{trend.name} {value:.3g} at the last depth, {base} {plain:.3g}"
            yield f"{model}{where} has {numbers}: {_change(trend, plain, value)}."


def _change(trend: Trend, first: float, last: float) -> str:
    if not (math.isfinite(first) and math.isfinite(last)):
        return "not comparable"
    if abs(last - first) <= SAME * max(abs(first), abs(last)):
        return "no change"
    return trend.more if last > first else trend.less


def _by_depth(heading: str, claim: str, y: str, trend: Trend, *others: Panel) -> Figure:
    """The figure of a statistic of representations, beside other panels of them."""

    def draw(axis: Any, look: Look, _: Measurements, part: Part) -> None:
        summary = part.by_depth[trend.statistic]
        line(axis, look, (range(part.layers + 1), summary.mean, summary.std))

    def compared(part: Part) -> np.ndarray:
        return part.by_depth[trend.statistic].mean

    def change(diagnosis: Measurements, part: Part) -> str:
        first, last = compared(part)[[0, -1]]
        numbers = f"{first:.3g} at the embeddings, {last:.3g} at the last depth"
        return f"{trend.name} {numbers}: {_change(trend, first, last)}."

    log = trend.statistic == "high_to_dc"  # a ratio
    panel = Panel("depth (0: embeddings)", y, draw, logarithmic=log, compared=compared)
    return Figure(heading, claim, _panels(*others, panel), change, trend)


def _panels(*kinds: Panel) -> Callable[[Diagnoses, str], Any]:
    return lambda diagnoses, title: by_part(diagnoses, title, *kinds)


def _by_layer(statistic: str) -> Draw:
    """Return what draws a statistic of heads, with its deviation between them."""
    return lambda axis, look, _, part: line(axis, look, _heads(part, statistic))


def _draw_singular_values(axis: Any, look: Look, _: Measurements, part: Part) -> None:
    values = part.singular_values.mean
    shown = np.where(values >= FLOOR, values, np.nan)
    line(axis, look, (np.linspace(0, 1, values.size), shown, None), marker="")


def _draw_response(axis: Any, look: Look, _: Measurements, part: Part) -> None:
    """|eigenvalues| of the filtered matrix H, sorted, and of A, dashed."""
    filtered, plain = (
        each.mean.reshape(-1, each.mean.shape[-1])
        for each in (part.response, part.attention_response)
    )
    position = np.linspace(0, 1, filtered.shape[-1])
    line(axis, look, (position, _mean(filtered, 0), _std(filtered, 0)), marker="")
    if part.variant not in PLAIN:
        values = (position, _mean(plain, 0), None)
        line(axis, look, values, f"{look.label}: its A", marker="", linestyle="--")


def _response(diagnosis: Measurements, part: Part) -> str:
    summaries = (part.response.mean, part.attention_response.mean)
    filtered, plain = (float(each[..., each.shape[-1] // 2 :].mean()) for each in summaries)
    numbers = f"the smaller half of the spectrum has mean magnitude {filtered:.3g} in H"
    return f"{numbers}, {plain:.3g} in A."


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


def _energy(diagnosis: Measurements, part: Part) -> str:
    shares = {p: part.by_head[f"energy_p{p:g}_falls"].mean.mean() for p in diagnosis.powers}
    shown = ", ".join(f"{share:.1%} for p = {p:g}" for p, share in shares.items())
    return f"the energy falls in this share of heads and sequences: {shown}."


def _largest(diagnosis: Measurements, part: Part) -> str:
    largest = part.by_head["largest_eigenvalue"].mean
    above = float((largest > 1 + SAME).mean())
    return f"{largest.min():.3g} to {largest.max():.3g}, above 1 in {above:.0%} of the heads."


def _homophily(diagnosis: Measurements, part: Part) -> str:
    share = part.by_head["homophily"].mean
    every, none = float((share == 1).mean()), float((share == 0).mean())
    mean = f"{share.mean():.1%} of the pairs are close"
    return f"{mean}: all pairs in {every:.0%} of the heads, none in {none:.0%}."


def _draw_entropy(diagnoses: Diagnoses, title: str) -> Any:
    parts = named_parts(labelled(diagnoses))
    maps = {where: part.by_head["entropy"].mean for where, _, part in parts}
    return heat_maps(title, "entropy (nats)", maps)


def _entropy(diagnosis: Measurements, part: Part) -> str:
    entropy, most = (part.by_head[name].mean.mean() for name in ("entropy", "uniform_entropy"))
    return f"the mean is {entropy:.3g} nats, that of uniform attention {most:.3g}."


def _draw_scalars(diagnoses: Diagnoses, title: str) -> Any:
    """The learned scalars, and fixed ones that are not the same number everywhere."""
    maps = {}
    for where, _, part in named_parts(labelled(diagnoses)):
        for name, values in part.scalars.items():
            learned = name in part.learned
            if learned or len(set(values[np.isfinite(values)])) > 1:
                maps[f"{where}: {name}{' (learned)' if learned else ''}"] = values
    return heat_maps(title, "value", maps) if maps else None


def _scalars(diagnosis: Measurements, part: Part) -> str:
    values = {name: part.scalars[name][np.isfinite(part.scalars[name])] for name in part.learned}
    ends = [f"{name} from {each.min():.3g} to {each.max():.3g}" for name, each in values.items()]
    return f"{'; '.join(ends) or 'no learned scalars'}."


def _draw_approximation(axis: Any, look: Look, diagnosis: Measurements, part: Part) -> None:
    orders, worst = np.array(diagnosis.orders), (diagnosis.orders, part.worst_error, None)
    mean = _mean(part.approximation_error.mean, (0, 1))
    line(axis, look, (orders, mean, None), f"{look.label}: mean")
    line(axis, look, worst, f"{look.label}: worst", linestyle=":")
    axis.plot(orders, 2 * orders, color=GREY, linewidth=1.2, label="bound 2K")


def worst_share(diagnosis: Measurements, part: Part) -> np.ndarray:
    """The largest error of each A^K as a share of its bound 2K, (orders,)."""
    return part.worst_error / (2 * np.array(diagnosis.orders))


def _approximation(diagnosis: Measurements, part: Part) -> str:
    share = worst_share(diagnosis, part)
    k = int(share.argmax())
    verdict = "the bound holds" if share[k] <= 1 else "THE BOUND IS BROKEN"
    worst = f"the largest error is {part.worst_error[k]:.3g} at K = {diagnosis.orders[k]}"
    return f"{worst}, {share[k]:.0%} of 2K: {verdict}."


def _heads(part: Part, statistic: str) -> Values:
    """A line by layer: (layers, mean over heads, deviation between heads)."""
    values = part.by_head[statistic].mean
    return range(part.layers), _mean(values, 1), _std(values, 1)


def _mean(values: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """The mean of the finite values; NaN if there are none."""
    return np.ma.masked_invalid(values).mean(axis=axis).filled(np.nan)


def _std(values: np.ndarray, axis: int) -> np.ndarray:
    return np.ma.masked_invalid(values).std(axis=axis).filled(np.nan)


# GFSA is arXiv 2312.04234, p-LaT arXiv 2311.03235.
FIGURES: Mapping[str, Figure] = {
    "cosine_similarity": _by_depth(
        "Cosine similarity of the tokens by depth",
        "GFSA (Fig. 2) and p-LaT hold that plain attention makes tokens more alike with depth, "
        "and that their filters do so less.",
        "mean cos(h_x, h_y), x ≠ y",
        Trend("cosine", "cosine similarity", "tokens more alike", "tokens less alike"),
    ),
    "singular_values": _by_depth(
        "Singular values at the last depth, and effective rank by depth",
        "GFSA (Fig. 2) holds that plain attention leaves few directions, and its filter more. "
        "The effective rank is exp(entropy of the normalised singular values).",
        "effective rank (directions)",
        Trend("effective_rank", "effective rank", "more directions", "fewer directions"),
        Panel(
            "index of the singular value (0 largest, 1 smallest)",
            "σ / σ₁",  # noqa: RUF001 (sigma)
            _draw_singular_values,
            counted=False,
            logarithmic=True,
        ),
    ),
    "frequency_response": Figure(
        "Frequency response: |eigenvalues| of H",
        "GFSA holds that plain attention is a low-pass filter, and that its filter passes higher "
        "frequencies too (by a Fourier transform; here are eigenvalues). A causal matrix has its "
        "diagonal as eigenvalues: how much each token looks at itself.",
        _panels(
            Panel(
                "index of the eigenvalue (0 largest, 1 smallest)",
                "|λ|, mean of all heads",
                _draw_response,
                counted=False,
            )
        ),
        _response,
    ),
    "high_to_dc": _by_depth(
        "High-frequency over DC energy by depth",
        "A layer is low-pass when repeating it drives this ratio to 0 (p-LaT, Def. 4.1). "
        "The mean of the tokens is the DC part.",
        "‖HC[h]‖ / ‖DC[h]‖",
        Trend("high_to_dc", "high-frequency over DC energy", "more detail", "less detail"),
    ),
    "energy": Figure(
        "p-Dirichlet energy of the values V, and of H V",
        "The energy J does not rise from the output of a layer to that of the next (p-LaT, Theorem "
        "3.4). Here J is that of one layer's values, weighted with A, which the theorem does not "
        "cover.",
        _draw_energy,
        _energy,
    ),
    "largest_eigenvalue": Figure(
        "Largest eigenvalue of H",
        "A largest eigenvalue above 1 that is not the constant vector's means that the layer is "
        "not low-pass (p-LaT, Theorem 4.4); one below 1 proves nothing. Plain attention has 1. "
        "p-LaT's causal H has eps^((p-2)/2) whatever the data.",
        _panels(Panel("layer", "|λ|max of H", _by_layer("largest_eigenvalue"), shown=(0.9, 1.1))),
        _largest,
    ),
    "homophily": Figure(
        "Homophily: share of value pairs closer than 1",
        "A layer is homophilic if all pairs of its values are closer than 1, and heterophilic if "
        "none is (p-LaT, Def. 4.5). p < 2 weighs close pairs more, p > 2 distant ones.",
        _panels(Panel("layer", "share of pairs", _by_layer("homophily"), shown=(-0.03, 1.03))),
        _homophily,
    ),
    "attention_entropy": Figure(
        "Entropy of the attention by layer and head",
        "No paper's claim: a head of low entropy looks at few tokens.",
        _draw_entropy,
        _entropy,
    ),
    "scalars": Figure(
        "Scalars of the filters by layer and head",
        "A scalar that stayed at its start was not trained, or its learning rate was too low, or "
        "the head is best with plain attention. filter_learning_rate=1e-2 tells which.",
        _draw_scalars,
        _scalars,
    ),
    "approximation_error": Figure(
        "Error of GFSA's A^K: ‖A^K - (A + (K-1)(A² - A))‖∞",
        "The error is at most 2K (GFSA, Theorem 3.1, Fig. 3), and from K = 3 on at most 2K - 2.",
        _panels(Panel("K", "error (largest row sum)", _draw_approximation)),
        _approximation,
    ),
}
