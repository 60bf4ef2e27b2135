"""One layer's call becomes numbers, sequence by sequence; the sequences' numbers become means.

Padding is cut out of the attention's inputs before anything is computed. Real tokens do not
attend to padding, so the rest is the model's own attention.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from hf_graphattn import backends
from hf_graphattn.backends import DELEGATE, EAGER
from hf_graphattn.variants import GraphFilter

from . import statistics
from .result import Part, Summary

POINTS = 65  # of every spectrum, so that sequences of different lengths have a mean

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

    attend, value: what the filter was called with, for the whole batch. sequence: its row in the
    batch, and the indices of its real tokens, ascending. Where only the architecture's own
    attention knows A, it is that one's, in the model's dtype.
    """
    row, keep = sequence
    inputs = attend.inputs.of_sequence(row, keep, exact)
    value = exact(value[row : row + 1])[:, :, keep]
    attend = backends.make(DELEGATE if attend.name == DELEGATE else EAGER, inputs)
    attention, filtered = attend.matrix[0], graph_filter.matrix(attend, value)[0]
    spectrum = statistics.spectrum(attention)
    # Plain attention is its own filtered matrix: its eigenvalues, which cost most, are known.
    response = spectrum if attention.equal(filtered) else statistics.spectrum(filtered)
    before = statistics.distances(value[0])
    after = statistics.distances(filtered @ value[0])
    numbers = {
        "entropy": statistics.entropy(attention),
        "uniform_entropy": statistics.uniform_entropy(attention),
        "homophily": statistics.homophily(before),
        "largest_eigenvalue": response[:, 0],
        "response": statistics.on_grid(response, POINTS),
        "attention_response": statistics.on_grid(spectrum, POINTS),
        "approximation_error": statistics.approximation_error(attention, settings.orders),
    }
    for p in settings.powers:
        first, last = (statistics.energy(attention, d, p) for d in (before, after))
        numbers |= {f"energy_p{p:g}_before": first, f"energy_p{p:g}_after": last}
        numbers[f"energy_p{p:g}_falls"] = statistics.falls(first, last).double()
    return {name: tensor.numpy() for name, tensor in numbers.items()}


def measure_states(hidden: Sequence[Tensor], row: int, keep: Tensor) -> Numbers:
    """Every statistic of one sequence's representations, (depths,), from (B, N, D) at each depth.

    "singular_values", (POINTS,), are those of the last depth, scaled so that the largest is 1.
    """
    states = [exact(depth[row])[keep] for depth in hidden]
    values = [statistics.singular_values(each) for each in states]
    last = values[-1]
    return {
        "cosine": np.array([statistics.mean_cosine(each) for each in states]),
        "high_to_dc": np.array([statistics.high_to_dc(each) for each in states]),
        "effective_rank": np.array([statistics.effective_rank(each) for each in values]),
        "singular_values": statistics.on_grid(last / last[0], POINTS).numpy(),
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
