"""What was measured: numbers by depth, layer and head; of one model, or of several."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1  # of the JSON
DEPTHS = ("cosine", "high_to_dc", "effective_rank")  # of the tokens after a layer, in the table
HEADS = ("entropy", "largest_eigenvalue", "homophily")  # of its attention, means over heads


@dataclass(frozen=True)
class Summary:
    """A statistic over sequences: mean and sample standard deviation, arrays of the same shape.

    The deviation of a single sequence is NaN.
    """

    mean: np.ndarray
    std: np.ndarray


@dataclass(frozen=True)
class Part:
    """One stack of layers: "encoder" or "decoder" of an encoder-decoder model, else "model".

    A model of L layers has depths 0 (embeddings) to L (the last layer's output, after the final
    norm where the model has one). H is the number of heads. A spectrum has P points; those of
    all sequences are interpolated to the same P. Eigenvalues and singular values fall along it.

    sequences, tokens: how many went into the means. Padding is excluded from every statistic.
    variants: the variant of each layer, "plain" for plain attention. (L)
    by_depth: statistic -> Summary of (L + 1,): "cosine", "high_to_dc", "effective_rank".
    by_head: statistic -> Summary of (L, H): "entropy", "uniform_entropy" (the most that it could
        be under the same mask), "homophily", "largest_eigenvalue",
        "energy_p<p>_before" and "_after" (J_p of the values and of H values), "energy_p<p>_falls"
        (the share of sequences in which it fell).
    approximation_error: Summary of (L, H, orders): |A^K - GFSA's term|_inf, K as in `orders`.
    worst_error: (orders,): the largest error in any layer, head and sequence.
    singular_values: Summary of (P,): those of the last depth, scaled so that the largest is 1.
    response: Summary of (L, H, P): |eigenvalues| of H. attention_response: those of A.
    fourier_response: Summary of (L, H, P): what H leaves of a wave over the tokens, from the
        constant one to the fastest.
    scalars: the filters' scalars, (L, H), NaN in a layer without them. learned: the names of those
        that are parameters.
    """

    name: str
    sequences: int
    tokens: int
    variants: tuple[str, ...]
    by_depth: dict[str, Summary]
    by_head: dict[str, Summary]
    approximation_error: Summary
    worst_error: np.ndarray
    singular_values: Summary
    response: Summary
    attention_response: Summary
    fourier_response: Summary
    scalars: dict[str, np.ndarray]
    learned: tuple[str, ...]

    @property
    def layers(self) -> int:
        return len(self.variants)

    @property
    def heads(self) -> int:
        return int(self.response.mean.shape[1])

    @property
    def variant(self) -> str:
        """The variants of the layers, each of them named once."""
        return ", ".join(dict.fromkeys(self.variants))


@dataclass(frozen=True)
class Measurements:
    """Everything that `diagnose` measured of a model, as numbers; `Diagnosis` also shows them.

    model: class name. parts: the stacks of layers. powers: the p of the energies. orders: the K
    of the approximation error. versions: of hf_graphattn, torch and transformers.
    """

    model: str
    parts: tuple[Part, ...]
    powers: tuple[float, ...]
    orders: tuple[int, ...]
    versions: dict[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain dict for each number, as in `Diagnosis.to_pandas`."""
        for part in self.parts:
            for row in _rows(part, self.orders):
                yield {"part": part.name} | row

    def to_dict(self) -> dict[str, Any]:
        """JSON values: arrays as nested lists, NaN and infinity as None."""
        return {"format": FORMAT, **_plain(asdict(self))}

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The text of `to_dict`, also written to `path` if there is one."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text


Diagnoses = Mapping[str, Measurements]  # by the model's name in the figures


def number(value: float) -> str:
    """Three digits; a dash for what is not finite."""
    return f"{value:.3g}" if math.isfinite(value) else "-"


def named_parts(diagnoses: Diagnoses) -> Iterator[tuple[str, Measurements, Part]]:
    """Every part of every model: (its name in the figures, its diagnosis, the part)."""
    for model, diagnosis in diagnoses.items():
        for part in diagnosis.parts:
            several = len(diagnosis.parts) > 1
            yield f"{model}, {part.name}" if several else model, diagnosis, part


def _rows(part: Part, orders: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    positions = np.linspace(0, 1, part.singular_values.mean.size).tolist()
    for name, summary in part.by_depth.items():
        yield from _each(name, summary, depth=range(part.layers + 1))
    by_head = {"layer": range(part.layers), "head": range(part.heads)}
    for name, summary in part.by_head.items():
        yield from _each(name, summary, **by_head)
    for name, scalar in part.scalars.items():
        yield from _each(name, Summary(scalar, np.full(scalar.shape, math.nan)), **by_head)
    yield from _each("approximation_error", part.approximation_error, **by_head, order=orders)
    yield from _each("singular_value", part.singular_values, position=positions)
    yield from _each("response", part.response, **by_head, position=positions)
    yield from _each("attention_response", part.attention_response, **by_head, position=positions)
    yield from _each("fourier_response", part.fourier_response, **by_head, position=positions)


def _each(statistic: str, summary: Summary, **axes: Any) -> Iterator[dict[str, Any]]:
    """A row for each entry of a summary. `axes` names its dimensions, in order."""
    for index in np.ndindex(summary.mean.shape):
        where = {name: axis[i] for (name, axis), i in zip(axes.items(), index, strict=True)}
        mean, std = float(summary.mean[index]), float(summary.std[index])
        yield {"statistic": statistic, **where, "mean": mean, "std": std}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
