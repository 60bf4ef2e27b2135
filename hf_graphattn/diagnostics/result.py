"""What `diagnose` gives back: plain numbers, by depth, layer and head."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hf_graphattn.errors import GraphAttentionError

FORMAT = 1  # of the JSON


@dataclass(frozen=True)
class Summary:
    """A statistic over sequences: mean and sample standard deviation, arrays of one shape.

    The deviation is NaN where there was one sequence only.
    """

    mean: np.ndarray
    std: np.ndarray


@dataclass(frozen=True)
class Part:
    """One stack of layers: "encoder" or "decoder" of an encoder-decoder model, else "model".

    A model of L layers has depths 0 (embeddings) to L (the last layer's output, after the final
    norm where the model has one). H heads, P points of a spectrum from the largest value to the
    smallest, sequences interpolated to the same P.

    sequences, tokens: how many went into the means; padding is in neither.
    variants: each layer's, "plain" for plain attention. (L)
    by_depth: statistic -> Summary of (L + 1,): "cosine", "high_to_dc", "effective_rank".
    by_head: statistic -> Summary of (L, H): "entropy", "uniform_entropy" (the most it could be
        with the same mask), "homophily", "largest_eigenvalue",
        "energy_p<p>_before" and "_after" (J_p of the values and of H values), "energy_p<p>_falls"
        (the share of sequences in which it fell).
    approximation_error: Summary of (L, H, orders): |A^K - GFSA's term|_inf, K as in `orders`.
    worst_error: (orders,): the largest in any layer, head and sequence.
    singular_values: Summary of (P,): of the last depth, the largest scaled to 1.
    response: Summary of (L, H, P): |eigenvalues| of H. attention_response: those of A.
    scalars: the filters' scalars, (L, H), NaN in a layer without; learned: which are parameters.
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
        """The variants of the layers, each named once."""
        return ", ".join(dict.fromkeys(self.variants))


@dataclass(frozen=True)
class Diagnosis:
    """Everything that `diagnose` measured.

    model: class name. parts: the stacks of layers. powers: the p of the energies. orders: the K
    of the approximation error. versions: of hf_graphattn, torch and transformers.
    """

    model: str
    parts: tuple[Part, ...]
    powers: tuple[float, ...]
    orders: tuple[int, ...]
    versions: dict[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain dict a number, as in `to_pandas`."""
        for part in self.parts:
            for row in _rows(part, self.orders):
                yield {"part": part.name} | row

    def to_pandas(self) -> Any:
        """A long frame, one number a row: part, statistic, mean, std, and where it belongs.

        Where: `depth` of a statistic of states; `layer` and `head` of one of matrices; `order` (K)
        of an approximation error; `position` (0 largest, 1 smallest) of a spectrum. What does not
        apply is missing. `frame.query("statistic == 'entropy'").pivot(index="layer",
        columns="head", values="mean")` is a table.

        Raises:
            GraphAttentionError: pandas is not installed.
        """
        where = ["depth", "layer", "head", "order"]
        columns = ["part", "statistic", *where, "position", "mean", "std"]
        frame = optional("pandas").DataFrame(list(self.rows()), columns=columns)
        return frame.astype(dict.fromkeys(where, "Int64"))

    def to_dict(self) -> dict[str, Any]:
        """JSON values: arrays as nested lists, NaN and infinity as None."""
        return {"format": FORMAT, **_plain(self)}

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The text of `to_dict`, also written to `path` if one is given."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        return text

    def figures(self) -> dict[str, Any]:
        """Name -> matplotlib figure. `diagnostics.figures({"a": ..., "b": ...})` compares."""
        from .plots import figures

        return figures({self.model: self})

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """One page with all figures in it. `diagnostics.save_html` compares several models."""
        from .page import save_html

        save_html({self.model: self}, path)


def optional(module: str) -> Any:
    """A module of the extra `plots`, imported only when it is used.

    Raises:
        GraphAttentionError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise GraphAttentionError(
            f"this needs {module.split('.')[0]}, which is not installed. "
            f"pip install 'hf_graphattn[plots]'"
        ) from error


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


def _each(statistic: str, summary: Summary, **axes: Any) -> Iterator[dict[str, Any]]:
    """A row for each entry of a summary; `axes` name its dimensions, in order."""
    for index in np.ndindex(summary.mean.shape):
        where = {name: axis[i] for (name, axis), i in zip(axes.items(), index, strict=True)}
        mean, std = float(summary.mean[index]), float(summary.std[index])
        yield {"statistic": statistic, **where, "mean": mean, "std": std}


def _plain(value: Any) -> Any:
    if isinstance(value, Diagnosis | Part | Summary):
        return {name: _plain(item) for name, item in vars(value).items()}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
