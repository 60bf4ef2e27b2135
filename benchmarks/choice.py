"""What "auto" chooses on a CPU for filters of several passes, against what it could choose.

GFSA forward and backward (or forward alone), as a multiple of plain attention in the same run, for
each backend, by batch, length, causality, dropout and number of threads:

    python benchmarks/choice.py --shapes 8x512 1x1024 --threads 1 2 4 --output choice-cpu.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import forms
import measure
import torch

import hf_graphattn as ga
from hf_graphattn import backends
from hf_graphattn.backends import AttentionInputs

BACKENDS = ("shared", "sdpa", "eager")
HEADS, WIDTH = 12, 64
KEPT = 2**27  # of more elements, whole matrices are not formed: 512 MB each


def call(
    backend: str | None, batch: int, length: int, causal: bool, dropout: float, learns: bool
) -> Callable[[], None]:
    """GFSA by a backend, or plain attention, on states of its own."""
    q, k, v = forms.states(length, HEADS, WIDTH, batch, "cpu", torch.float32)
    inputs = AttentionInputs(q, k, None, causal, WIDTH**-0.5, dropout)
    upstream, graph_filter = torch.randn_like(q), forms.CONFIGS["gfsa"].build(HEADS)

    def attend() -> torch.Tensor:
        if backend is None:
            return forms.plain(q, k, v, causal, dropout)
        return graph_filter(backends.make(backend, inputs), v)

    def run() -> None:
        with torch.set_grad_enabled(learns):
            out = attend()
        if learns:
            out.backward(upstream)
            q.grad = k.grad = v.grad = None

    return run


def chosen(batch: int, length: int, causal: bool, dropout: float, learns: bool) -> str:
    """By "auto"."""
    query = torch.empty(batch, HEADS, length, WIDTH, requires_grad=learns)
    inputs = AttentionInputs(query, query, None, causal, WIDTH**-0.5, dropout)
    graph_filter: ga.GraphFilter = forms.CONFIGS["gfsa"].build(HEADS)
    return backends.choose("auto", graph_filter.backends, inputs, 2, graph_filter.fits)


def rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    settings = (
        arguments.threads,
        arguments.shapes,
        (True, False),
        arguments.dropout,
        (True, False),
    )
    for threads, shape, causal, dropout, learns in product(*settings):
        if learns is False and dropout:
            continue  # dropout is of training
        torch.set_num_threads(threads)
        batch, length = map(int, shape.split("x"))
        own = (batch, length, causal, dropout, learns)
        names = [
            name
            for name in BACKENDS
            if not (name == "eager" and batch * HEADS * length**2 > KEPT)
            and not (name == "shared" and dropout)  # which makes fused passes then
        ]
        cases = {"plain": call(None, *own)} | {name: call(name, *own) for name in names}
        taken = measure.interleaved(cases, rounds=arguments.rounds, budget=arguments.budget)
        yield {
            "threads": threads,
            "batch": batch,
            "length": length,
            "causal": causal,
            "dropout": dropout,
            "gradients": learns,
            "auto": chosen(*own),
            "times": {name: asdict(timing) for name, timing in taken.items()},
        }


def line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{name} {timing['ratio']:.2f}" for name, timing in row["times"].items())
    kind = "causal" if row["causal"] else "bidirectional"
    what = "forward, backward" if row["gradients"] else "forward"
    return (
        f"{row['threads']} threads  {row['batch']:3d} x {row['length']:5d}  {kind:13s}  "
        f"dropout {row['dropout']}  {what:17s}  {times}  auto: {row['auto']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["32x128", "8x512", "1x1024", "1x2048"])
    parser.add_argument("--threads", nargs="+", type=int, default=[torch.get_num_threads()])
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds a row, about")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found = []
    for row in rows(arguments):
        found.append(row)
        print(line(row), flush=True)
        if arguments.output:  # as soon as it is measured
            measure.write(arguments.output, {"machine": measure.origin(), "rows": found})


if __name__ == "__main__":
    main()
