"""One layer's call becomes numbers, sequence by sequence; the sequences' numbers become means.

Padding is cut out of the attention's inputs before anything is computed. Real tokens do not
attend to padding, so the rest is the model's own attention.

The statistics are functions of the matrices of all heads (H, N, N), of their values (H, N, D), and
of the states of one depth (N, D). They compute in the precision of their arguments, which is
float64 here. GFSA is arXiv 2312.04234, p-LaT arXiv 2311.03235.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_graphattn import backends
from hf_graphattn.backends import DELEGATE, EAGER, one_per_query_head
from hf_graphattn.variants import GraphFilter

from .result import Part, Summary

POINTS = 65  # of every spectrum, so that sequences of different lengths have a mean
ROUNDING = 1e-12  # the relative rounding error of a sum in float64

Numbers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Settings:
    """What a caller of `diagnose` may choose."""

    max_sequences: int
    max_tokens: int
    powers: tuple[float, ...]
    orders: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A self-attention module whose calls are read.

    part: as in `Part`. variant: "plain" for plain attention. filter: a copy of the module's filter
    on the CPU; for plain attention, a filter that computes A V.
    """

    part: str
    variant: str
    filter: GraphFilter


@dataclass
class Tally:
    """What has been measured of one stack of layers so far.

    layers: layer -> for each sequence a dict of (H, ...) arrays. sites: layer -> where it was read.
    states: for each sequence a dict of (L + 1,) arrays, and its singular values.
    """

    layers: dict[int, list[Numbers]] = field(default_factory=lambda: defaultdict(list))
    sites: dict[int, Site] = field(default_factory=dict)
    states: list[Numbers] = field(default_factory=list)
    tokens: int = 0


def exact(tensor: Tensor) -> Tensor:
    """The tensor on the CPU (not every device has float64), in float64 if it is floating point."""
    tensor = tensor.detach().cpu()
    return tensor.double() if tensor.is_floating_point() else tensor


def measure_heads(
    graph_filter: GraphFilter,
    attend: Any,
    value: Tensor,
    sequence: tuple[int, Tensor],
    settings: Settings,
) -> Numbers:
    """Every statistic of one sequence in one layer, as arrays of (H,) or (H, points).

    Args:
        graph_filter: the layer's filter, on the CPU.
        attend: what the filter was called with, for the whole batch. Where only the architecture's
            own attention knows A, it is that one's, in the model's dtype.
        value: the values that the filter was called with, (B, H or fewer, N, D).
        sequence: its row in the batch, and the indices of its real tokens, ascending.
        settings: the powers and orders.
    """
    row, keep = sequence
    inputs = attend.inputs.of_sequence(row, keep, exact)
    value = one_per_query_head(exact(value[row : row + 1])[:, :, keep], inputs.query)
    attend = backends.make(DELEGATE if attend.name == DELEGATE else EAGER, inputs)
    attention, filtered = attend.matrix[0], graph_filter.matrix(attend, value)[0]
    eigenvalues = spectrum(attention)
    # Plain attention is its own filtered matrix: its eigenvalues, which cost most, are known.
    response = eigenvalues if attention.equal(filtered) else spectrum(filtered)
    before, after = distances(value[0]), distances(filtered @ value[0])
    numbers = {
        "entropy": entropy(attention),
        "uniform_entropy": uniform_entropy(attention),
        "homophily": homophily(before),
        "largest_eigenvalue": response[:, 0],
        "response": on_grid(response, POINTS),
        "attention_response": on_grid(eigenvalues, POINTS),
        "fourier_response": on_grid(fourier_response(filtered), POINTS),
        "approximation_error": approximation_error(attention, settings.orders),
    }
    for p in settings.powers:
        first, last = (energy(attention, d, p) for d in (before, after))
        numbers |= {f"energy_p{p:g}_before": first, f"energy_p{p:g}_after": last}
        numbers[f"energy_p{p:g}_falls"] = falls(first, last).double()
    return {name: tensor.numpy() for name, tensor in numbers.items()}


def measure_states(hidden: Sequence[Tensor], row: int, keep: Tensor) -> Numbers:
    """Every statistic of one sequence's representations, (depths,), from (B, N, D) at each depth.

    "singular_values", (POINTS,), are those of the last depth, scaled so that the largest is 1.
    """
    states = [exact(depth[row])[keep] for depth in hidden]
    values = [singular_values(each) for each in states]
    last = values[-1]
    return {
        "cosine": np.array([mean_cosine(each) for each in states]),
        "high_to_dc": np.array([high_to_dc(each) for each in states]),
        "effective_rank": np.array([effective_rank(each) for each in values]),
        "singular_values": on_grid(last / last[0], POINTS).numpy(),
    }


def summarize(name: str, tally: Tally) -> Part:
    """The means and deviations of a stack of layers, over the sequences."""
    layers = [tally.layers[layer] for layer in sorted(tally.layers)]
    sites = [tally.sites[layer] for layer in sorted(tally.sites)]
    every = {n: np.array([[seq[n] for seq in layer] for layer in layers]) for n in layers[0][0]}
    by_head = {n: _over_sequences(values, axis=1) for n, values in every.items()}
    by_depth = {
        n: _over_sequences(np.array([seq[n] for seq in tally.states]), axis=0)
        for n in tally.states[0]
    }
    scalars, learned = _scalars(sites)
    return Part(
        name=name,
        sequences=len(tally.states),
        tokens=tally.tokens,
        variants=tuple(site.variant for site in sites),
        singular_values=by_depth.pop("singular_values"),
        by_depth=by_depth,
        response=by_head.pop("response"),
        attention_response=by_head.pop("attention_response"),
        fourier_response=by_head.pop("fourier_response"),
        approximation_error=by_head.pop("approximation_error"),
        worst_error=every["approximation_error"].max(axis=(0, 1, 2)),
        by_head=by_head,
        scalars=scalars,
        learned=learned,
    )


def _over_sequences(values: np.ndarray, axis: int) -> Summary:
    mean = values.mean(axis)
    if values.shape[axis] == 1:
        return Summary(mean, np.full_like(mean, math.nan))
    with np.errstate(invalid="ignore"):  # an infinite ratio has no deviation
        return Summary(mean, values.std(axis, ddof=1))


def _scalars(sites: Sequence[Site]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """(Name -> (layers, heads), NaN where a layer lacks the scalar; names of the learned ones)."""
    rows = [_scalars_of(site.filter) if site.variant != "plain" else {} for site in sites]
    names = list(dict.fromkeys(name for row in rows for name in row))
    missing = np.full(sites[0].filter.num_heads, math.nan)
    scalars = {name: np.stack([row.get(name, missing) for row in rows]) for name in names}
    trainable = {s for site in sites for s in site.filter.variant_config.trainable}
    learned = tuple(n for n in names if n in trainable or n.rpartition("_")[0] in trainable)
    return scalars, learned


def _scalars_of(graph_filter: GraphFilter) -> Numbers:
    """Name -> (H,). If each head has several values (polynomial), they are name_0, name_1 ..."""
    numbers: Numbers = {}
    for name in graph_filter.variant_config.scalars:
        value: Any = getattr(graph_filter, name)
        array = np.asarray(exact(value) if isinstance(value, Tensor) else value)
        if array.ndim == 2:
            numbers |= {f"{name}_{k}": column for k, column in enumerate(array.T)}
        else:
            numbers[name] = np.broadcast_to(array, (graph_filter.num_heads,)).copy()
    return numbers


def mean_cosine(states: Tensor) -> float:
    """Mean of cos(h_x, h_y) over the pairs x != y (GFSA, Fig. 2): 1 when all tokens point one way.

    A zero vector has cosine 0 with every other.
    """
    count = len(states)
    unit = nn.functional.normalize(states, dim=-1)
    cosines = unit @ unit.T
    return float((cosines.sum() - cosines.diagonal().sum()) / (count * (count - 1)))


def high_to_dc(states: Tensor) -> float:
    """|HC[f]|_F / |DC[f]|_F (p-LaT, Def. 4.1): 0 when all tokens are equal.

    DC[f] = (1/N) 1 1^T f is the tokens' mean at every token, HC[f] = f - DC[f] the rest. The ratio
    is infinite if the mean is 0, and NaN if a state is NaN.
    """
    mean = states.mean(dim=0, keepdim=True)
    dc = mean.norm() * math.sqrt(len(states))
    return float((states - mean).norm() / dc)


def singular_values(states: Tensor) -> Tensor:
    """The singular values of the states, (min(N, D),), largest first (GFSA, Fig. 2)."""
    if not states.isfinite().all():
        return states.new_full((min(states.shape),), math.nan)
    return torch.linalg.svdvals(states)


def effective_rank(values: Tensor) -> float:
    """exp(entropy of s / sum(s)) of singular values s (Roy and Vetterli, 2007).

    It is k when k of them are equal and the others 0, and NaN when all are 0.
    """
    return float(torch.special.entr(values / values.sum()).sum().exp())


def spectrum(matrix: Tensor) -> Tensor:
    """|eigenvalues| of each head's matrix, (H, N), largest first.

    For attention the largest is 1, and its eigenvector is constant: graph frequency rises along the
    row. For the filtered matrix H it is the filter's frequency response on the graph A, and its
    first entry is the largest eigenvalue of p-LaT's Theorem 4.4. GFSA's Figures 2, 4 and 5 draw
    another spectrum: `fourier_response`. A causal matrix is triangular:
    its eigenvalues are its diagonal. p-LaT's Theorem 4.3, by which a positive matrix with a largest
    eigenvalue of at most 1 is low-pass, is false as it stands: that of [[0.5, 0.3], [0.1, 0.2]] is
    0.579, and its ratio of high-frequency to DC energy tends to 0.583. It is NaN if the matrix has
    a value that is not finite.
    """
    finite = matrix.isfinite().flatten(1).all(-1)
    eigenvalues = torch.linalg.eigvals(matrix.where(finite[:, None, None], torch.zeros(())))
    magnitudes = eigenvalues.abs().sort(dim=-1, descending=True).values
    return magnitudes.where(finite[:, None], torch.tensor(math.nan))


def fourier_response(matrix: Tensor) -> Tensor:
    """|H f_k| of each head's matrix, (H, N // 2 + 1), from the constant wave to the fastest.

    f_k is the discrete Fourier transform's wave of k periods over the N tokens, of norm 1. So this
    is what H leaves of a wave, at whatever frequencies, with the order of the tokens as the axis;
    `spectrum` knows no order. GFSA's Figures 2, 4 and 5 draw a discrete Fourier transform (its
    appendix D), without a formula: the norm is ours.
    """
    waves = torch.fft.ifft(matrix, norm="ortho")  # row x: sum_y H_xy exp(2 pi i k y / N) / sqrt(N)
    return waves.abs().square().sum(-2).sqrt()[:, : matrix.shape[-1] // 2 + 1]


def entropy(matrix: Tensor) -> Tensor:
    """Mean over rows x of -sum_y A_xy ln A_xy, in nats, (H,): ln N when A is uniform."""
    return torch.special.entr(matrix).sum(-1).mean(-1)


def uniform_entropy(matrix: Tensor) -> Tensor:
    """The most that `entropy` can be where these zeros stay zero, (H,).

    It is the mean over rows of ln(number of y with A_xy > 0): ln N without a mask, less under a
    causal one.
    """
    return (matrix > 0).sum(-1).to(matrix.dtype).log().mean(-1)


def distances(values: Tensor) -> Tensor:
    """|v_x - v_y| from the differences themselves, (H, N, N): exactly 0 for equal values."""
    return torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")


def energy(matrix: Tensor, distance: Tensor, p: float) -> Tensor:
    """J_p(U) = 1/(2N) sum_xy A_xy |u_x - u_y|^p, (H,); `distance` is |u_x - u_y|, (H, N, N).

    This is the p-Dirichlet energy from whose descent p-LaT derives attention, with the attention
    weights as its kernel k(x, y). Its Theorem 3.4 compares the outputs of two layers, for any p.
    J is divided by N, so that sequences of different lengths have a mean; whether it falls does not
    depend on that. For uniform attention and p = 2 it is the variance of the tokens.
    """
    return (matrix * distance**p).sum((-2, -1)) / (2 * matrix.shape[-1])


def falls(before: Tensor, after: Tensor) -> Tensor:
    """Whether an energy fell by more than its rounding error."""
    return after < before * (1 - ROUNDING)


def homophily(distance: Tensor) -> Tensor:
    """The share of pairs x != y with |v_x - v_y| < 1, (H,).

    A layer is homophilic at 1 and heterophilic at 0 (p-LaT, Def. 4.5).
    """
    count = distance.shape[-1]
    apart = ~torch.eye(count, dtype=torch.bool, device=distance.device)
    return ((distance < 1) & apart).sum((-2, -1)) / (count * (count - 1))


def approximation_error(matrix: Tensor, orders: Sequence[int]) -> Tensor:
    """|A^K - (A + (K-1)(A^2 - A))|_inf for each K of `orders`, (H, len(orders)).

    This is how far GFSA's term is from the power that it approximates; its Theorem 3.1 bounds it by
    2K. The norm is the largest sum of absolute values in a row. The error is 0 for K = 1 and 2.
    From K = 3 on 2K - 2 is a bound too, and the least: the approximation is (2-K) A + (K-1) A^2, so
    the norms add up to 1 + (K-2) + (K-1), which a cyclic shift of more than K tokens reaches.
    """
    square = matrix @ matrix
    errors = []
    for order in orders:
        approximation = matrix + (order - 1) * (square - matrix)
        gap = torch.linalg.matrix_power(matrix, order) - approximation
        errors.append(gap.abs().sum(-1).amax(-1))
    return torch.stack(errors, dim=-1)


def on_grid(values: Tensor, points: int) -> Tensor:
    """Sorted values (..., n) at `points` equally spaced places from the first to the last.

    Values in between are interpolated linearly. So spectra of sequences of different lengths have
    the same number of points, and thus a mean.
    """
    rows = values.reshape(1, -1, values.shape[-1])
    sampled = nn.functional.interpolate(rows, points, mode="linear", align_corners=True)
    return sampled.reshape(*values.shape[:-1], points)
