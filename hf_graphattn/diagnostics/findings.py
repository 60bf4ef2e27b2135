"""What each figure's paper says, and what these models show, as sentences made from the numbers.

A finding reports what was measured on these texts, whether it agrees with the paper or not. One
model on a few sequences proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .result import Diagnoses, Measurements, Part, having, named_parts, part_names, reference

OVERFLOWED = "the model's own numbers are not finite: nothing can be read off."
SAME = 0.01  # a change that is a smaller share of the larger value is called none

# Figure -> the statistic by depth in which models are compared, and words for more and less of it.
COMPARED = {
    "cosine_similarity": ("cosine", "tokens more alike", "tokens less alike"),
    "singular_values": ("effective_rank", "more directions", "fewer directions"),
    "high_to_dc": ("high_to_dc", "more detail", "less detail"),
}


@dataclass(frozen=True)
class Finding:
    """What goes with a figure.

    heading: the figure's. claim: what the paper says that one sees. here: a sentence for each model
    and part; then each other model's last depth against the plain one's, or the first's.
    """

    heading: str
    claim: str
    here: tuple[str, ...]


def findings(diagnoses: Diagnoses) -> dict[str, Finding]:
    """Name -> finding, for every figure of `plots.FIGURES`."""
    return {
        name: Finding(heading, claim, (*_each(diagnoses, sentence), *_compared(diagnoses, name)))
        for name, (heading, claim, sentence) in FINDINGS.items()
    }


def is_finite(part: Part) -> bool:
    """Whether the model's own numbers are: else nothing can be said of them."""
    every = (part.by_depth["cosine"].mean, part.by_head["entropy"].mean)
    return all(bool(np.isfinite(values).all()) for values in every)


def _each(diagnoses: Diagnoses, sentence: Callable[[Measurements, Part], str]) -> Iterator[str]:
    for where, diagnosis, part in named_parts(diagnoses):
        yield f"{where}: {sentence(diagnosis, part) if is_finite(part) else OVERFLOWED}"


def _compared(diagnoses: Diagnoses, figure: str) -> Iterator[str]:
    if figure not in COMPARED:
        return
    statistic, more, less = COMPARED[figure]
    for name in part_names(diagnoses):
        found = list(having(diagnoses, name))
        base = next((each for each in found if each[1] == reference(diagnoses)), found[0])
        _, compared_to, _, first = base
        for _, model, diagnosis, part in (each for each in found if each is not base):
            old, new = (float(p.by_depth[statistic].mean[-1]) for p in (first, part))
            verdict = _direction(old, new, more, less, "no difference")
            where = f" of the {name}" if len(diagnosis.parts) > 1 else ""
            told = f"{model} against {compared_to} at the last depth{where}"
            yield f"{told}: {new:.3g} to {old:.3g}, {verdict}."


def _cosine(diagnosis: Measurements, part: Part) -> str:
    first, last = part.by_depth["cosine"].mean[[0, -1]]
    told = f"from {first:.3g} at the embeddings to {last:.3g} at the last depth"
    return f"{told}: {_direction(first, last, 'the tokens grew alike', 'they grew apart')}."


def _rank(diagnosis: Measurements, part: Part) -> str:
    rank = part.by_depth["effective_rank"].mean
    told = f"effective rank {rank[0]:.3g} at the embeddings, {rank[-1]:.3g} at the last depth"
    return f"{told}; sequences of {part.tokens / part.sequences:.3g} tokens in the mean."


def _response(diagnosis: Measurements, part: Part) -> str:
    own, attention = (_tail(s.mean) for s in (part.response, part.attention_response))
    told = f"the smaller half of the spectrum has mean magnitude {own:.3g}"
    if part.variant == "plain":
        return f"{told}, against 1 for the largest eigenvalue."
    verdict = _direction(attention, own, "the filter passes more of it", "the filter passes less")
    return f"{told} in H and {attention:.3g} in A: {verdict}."


def _high_to_dc(diagnosis: Measurements, part: Part) -> str:
    first, last = part.by_depth["high_to_dc"].mean[[0, -1]]
    lowest = float(part.by_depth["high_to_dc"].mean.min())
    told = f"from {first:.3g} to {last:.3g}, lowest {lowest:.3g}"
    return f"{told}: {_direction(first, last, 'detail gained weight', 'detail lost weight')}."


def _energy(diagnosis: Measurements, part: Part) -> str:
    shares = {p: float(part.by_head[f"energy_p{p:g}_falls"].mean.mean()) for p in diagnosis.powers}
    told = ", ".join(f"p = {p:g}: {share:.1%}" for p, share in shares.items())
    always = all(share == 1 for share in shares.values())
    verdict = "the decrease holds everywhere here" if always else "it does not hold everywhere"
    return f"the energy fell in this share of heads and sequences: {told}; {verdict}."


def _largest(diagnosis: Measurements, part: Part) -> str:
    largest = part.by_head["largest_eigenvalue"].mean
    above = float((largest > 1 + SAME).mean())
    told = f"{largest.min():.3g} to {largest.max():.3g}"
    return f"{told}; above {1 + SAME:g} in {above:.0%} of the heads."


def _homophily(diagnosis: Measurements, part: Part) -> str:
    share = part.by_head["homophily"].mean
    every, none = float((share == 1).mean()), float((share == 0).mean())
    told = f"{share.mean():.1%} of the pairs, {share.min():.1%} to {share.max():.1%} a head"
    return f"{told}; all pairs in {every:.0%} of the heads, none in {none:.0%}."


def _entropy(diagnosis: Measurements, part: Part) -> str:
    entropy = part.by_head["entropy"].mean
    most = part.by_head["uniform_entropy"].mean.mean()
    told = f"mean {entropy.mean():.3g} nats, heads from {entropy.min():.3g} to {entropy.max():.3g}"
    return f"{told}; attention spread evenly over what each token may see has {most:.3g}."


def _scalars(diagnosis: Measurements, part: Part) -> str:
    if not part.learned:
        return "no learned scalars."
    told = []
    for name in part.learned:
        values = part.scalars[name][np.isfinite(part.scalars[name])]
        told.append(
            f"{name} from {values.min():.3g} to {values.max():.3g}, mean {values.mean():.3g}"
        )
    return "; ".join(told) + "."


def _approximation(diagnosis: Measurements, part: Part) -> str:
    worst, orders = part.worst_error, np.array(diagnosis.orders)
    share = worst / (2 * orders)
    k = int(share.argmax())
    verdict = "the bound holds" if share.max() <= 1 else "THE BOUND IS BROKEN"
    told = f"the worst error seen is {worst[k]:.3g} at K = {orders[k]}, {share[k]:.0%} of 2K"
    return f"{told}: {verdict}."


def _direction(
    first: float, last: float, rose: str, fell: str, same: str = "it hardly changed"
) -> str:
    if not (math.isfinite(first) and math.isfinite(last)):
        return "which cannot be compared"
    if abs(last - first) <= SAME * max(abs(first), abs(last)):
        return same
    return rose if last > first else fell


def _tail(spectrum: np.ndarray) -> float:
    return float(spectrum[..., spectrum.shape[-1] // 2 :].mean())


# Figure -> its heading, what the papers say of it, and the sentence about one part of one model.
FINDINGS: dict[str, tuple[str, str, Callable[[Measurements, Part], str]]] = {
    "cosine_similarity": (
        "Cosine similarity by depth",
        "GFSA (arXiv 2312.04234, Fig. 2) and p-LaT (arXiv 2311.03235) hold that plain attention "
        "makes tokens more alike with depth (oversmoothing), and their filters less.",
        _cosine,
    ),
    "singular_values": (
        "Singular values and effective rank",
        "GFSA (Fig. 2): with plain attention the last features fall into few directions, their "
        "singular values drop fast; with the filter more remain. The effective rank is "
        "exp(entropy of the normalised singular values).",
        _rank,
    ),
    "frequency_response": (
        "Frequency response",
        "GFSA: plain attention is a low-pass filter; the learned filter also lets higher "
        "frequencies through. Its Figures 2, 4 and 5 show that by a discrete Fourier transform "
        "(appendix D); here are the eigenvalues instead, the response by graph frequency. A "
        "causal matrix is triangular, and its eigenvalues are its diagonal: there the figure "
        "shows how much each token looks at itself.",
        _response,
    ),
    "high_to_dc": (
        "High-frequency over DC energy",
        "p-LaT (Def. 4.1): a layer is low-pass when repeating it drives the ratio of "
        "high-frequency to DC energy to 0. The tokens' mean is the DC part.",
        _high_to_dc,
    ),
    "energy": (
        "p-Dirichlet energy",
        "p-LaT (Theorem 3.4): from the output of a layer to that of the next the energy J does not "
        "rise, for any p. Here J is that of one layer's values before and after its filter, "
        "weighted with A itself, which the theorem does not speak of; trained attention, not "
        "symmetric, need not obey. A filter that only makes the values smaller lowers J too.",
        _energy,
    ),
    "largest_eigenvalue": (
        "Largest eigenvalue",
        "p-LaT (Theorem 4.4): if a layer is low-pass, and the largest eigenvalue not that of the "
        "constant vector, it is at most 1. So where such a one is above 1 the layer is not "
        "low-pass; one below proves nothing. (Theorem 4.3, by which a positive matrix with a "
        "largest eigenvalue of at most 1 is low-pass, is false as it stands: that of "
        "[[0.5, 0.3], [0.1, 0.2]] is 0.579, and its ratio of high-frequency to DC energy tends to "
        "0.583. What decides is whether the leading eigenvector is constant.) Plain attention's "
        "is 1, since its rows sum to 1. A causal H has its diagonal as eigenvalues. That of p-LaT "
        "is A_xx eps^((p-2)/2), and A_xx is 1 for the first token: the largest is then "
        "eps^((p-2)/2) whatever the data, and eps is ours, since the paper does not say "
        "what a token's factor with itself is.",
        _largest,
    ),
    "homophily": (
        "Homophily",
        "p-LaT (Def. 4.5): a layer is homophilic if all pairs of its values are closer than 1, and "
        "heterophilic if none is. Here: the share of pairs that are closer. p < 2 weighs close "
        "pairs more, p > 2 distant ones.",
        _homophily,
    ),
    "attention_entropy": (
        "Attention entropy",
        "No paper's claim: low entropy is a head that looks at few tokens, for which A is far from "
        "an average.",
        _entropy,
    ),
    "scalars": (
        "Scalars of the filters",
        "What training made of each head's filter. A scalar that stayed near its start says that "
        "the head is content with plain attention, that its learning rate was too low to move it, "
        "or that it was not trained. Training again with filter_learning_rate=1e-2 tells which.",
        _scalars,
    ),
    "approximation_error": (
        "GFSA's approximation of A^K",
        "GFSA (Theorem 3.1, Fig. 3): the approximation of A^K is off by at most 2K. From K = 3 on "
        "2K - 2 is a bound too, and the least: the approximation is (2-K) A + (K-1) A^2, whose "
        "norms and that of A^K add up to it, and where each token looks at the next alone, in a "
        "circle of more than K, it is reached.",
        _approximation,
    ),
}
