"""Attention alone, forward and backward, against plain attention and the published forms.

python benchmarks/attention.py --lengths 128 1024 4096 --output attention.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import forms
import measure
import torch

PUBLISHED_LIMIT = 2048  # the published forms are not timed beyond: their matrices grow as N^2


def call(form: forms.Form, length: int, arguments: argparse.Namespace) -> Callable[[], None]:
    """Forward and backward of one form, on states of its own."""
    dtype = getattr(torch, arguments.dtype)
    shape = (length, arguments.heads, arguments.width, arguments.batch)
    q, k, v = forms.states(*shape, arguments.device, dtype)
    upstream = torch.randn_like(q)

    def run() -> None:
        form(q, k, v, not arguments.bidirectional, arguments.dropout).backward(upstream)
        q.grad = k.grad = v.grad = None

    return run


def main() -> None:
    """Print a table, a line a length, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--forms", nargs="+", default=list(forms.FORMS), choices=list(forms.FORMS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=30.0, help="Seconds a length.")
    parser.add_argument("--output", type=Path, help="JSON file.")
    arguments = parser.parse_args()
    forms.check(arguments.device, getattr(torch, arguments.dtype))
    results = {}
    for length in arguments.lengths:
        names = [
            name
            for name in dict.fromkeys(["plain", *arguments.forms])
            if length <= PUBLISHED_LIMIT or not name.startswith("published")
        ]
        cases = {name: call(forms.FORMS[name], length, arguments) for name in names}
        taken = measure.interleaved(
            cases, rounds=arguments.rounds, device=arguments.device, budget=arguments.budget
        )
        results[length] = {name: asdict(timing) for name, timing in taken.items()}
        shown = "  ".join(f"{name} {timing.ratio:.2f}" for name, timing in taken.items())
        print(f"N {length:6d}  {1000 * taken['plain'].seconds:9.2f} ms  {shown}", flush=True)
    if arguments.output:
        settings = {k: v for k, v in vars(arguments).items() if k != "output"}
        machine = measure.origin(arguments.device)
        measure.write(
            arguments.output, {"machine": machine, "settings": settings, "lengths": results}
        )


if __name__ == "__main__":
    main()
