"""The statistics, as functions of matrices and states from which padding was already removed.

Shapes: matrices of all heads (H, N, N), their values (H, N, D), states of one depth (N, D). Every
function computes in the precision of its arguments, which `measure` makes float64. GFSA is arXiv
2312.04234, p-LaT arXiv 2311.03235.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

ROUNDING = 1e-12  # the relative rounding error of a sum in float64


def mean_cosine(states: Tensor) -> float:
    """Mean of cos(h_x, h_y) over the pairs x != y (GFSA, Fig. 2): 1 when all tokens point one way.

    A zero vector has cosine 0 with every other. The mean is NaN for a single token.
    """
    count = len(states)
    if count < 2:
        return math.nan
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
    another spectrum, a discrete Fourier transform (its appendix D). A causal matrix is triangular:
    its eigenvalues are its diagonal. p-LaT's Theorem 4.3, by which a positive matrix with a largest
    eigenvalue of at most 1 is low-pass, is false as it stands: that of [[0.5, 0.3], [0.1, 0.2]] is
    0.579, and its ratio of high-frequency to DC energy tends to 0.583. It is NaN if the matrix has
    a value that is not finite.
    """
    finite = matrix.isfinite().flatten(1).all(-1)
    eigenvalues = torch.linalg.eigvals(matrix.where(finite[:, None, None], torch.zeros(())))
    magnitudes = eigenvalues.abs().sort(dim=-1, descending=True).values
    return magnitudes.where(finite[:, None], torch.tensor(math.nan))


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
    """The share of pairs x != y with |v_x - v_y| < 1, (H,); NaN for one token.

    A layer is homophilic at 1 and heterophilic at 0 (p-LaT, Def. 4.5).
    """
    count = distance.shape[-1]
    if count < 2:
        return distance.new_full(distance.shape[:1], math.nan)
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
    power, reached, errors = matrix, 1, {}
    for order in sorted(set(orders)):
        power = power @ torch.linalg.matrix_power(matrix, order - reached)
        approximation = matrix + (order - 1) * (square - matrix)
        errors[order] = (power - approximation).abs().sum(-1).amax(-1)
        reached = order
    return torch.stack([errors[order] for order in orders], dim=-1)


def on_grid(values: Tensor, points: int) -> Tensor:
    """Sorted values (..., n) at `points` equally spaced places from the first to the last.

    Values in between are interpolated linearly. So spectra of sequences of different lengths have
    the same number of points, and thus a mean.
    """
    rows = values.reshape(1, -1, values.shape[-1])
    sampled = nn.functional.interpolate(rows, points, mode="linear", align_corners=True)
    return sampled.reshape(*values.shape[:-1], points)
