"""Attention alone, forward and backward, against plain attention and the published forms.

python benchmarks/attention.py --lengths 128 1024 4096 --memory --output attention.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import forms
import measure
import plot
import torch

KEPT_LIMIT = 2048  # forms that keep N x N matrices are not run beyond, in time or in memory
LONG = 8192  # from here one round: a call takes seconds to minutes, and moves little


def call(form: forms.Form, length: int, arguments: argparse.Namespace) -> Callable[[], None]:
    """Forward and backward of one form, on states of its own.

    The output is put into the order (B, N, H, D), as transformers' attention functions do.
    """
    device, causal = arguments.device, not arguments.bidirectional
    shape = (length, arguments.heads, arguments.width, arguments.batch)
    shared = (length, arguments.key_heads or arguments.heads, arguments.width, arguments.batch)
    dtype = getattr(torch, arguments.dtype)
    q, *_ = forms.states(*shape, device, dtype)
    k, v, _ = forms.states(*shared, device, dtype)
    mask = forms.padding(arguments.batch, length, causal, device) if arguments.padding else None
    upstream = torch.randn_like(q).transpose(1, 2)

    def run() -> None:
        out = form(q, k, v, causal, arguments.dropout, mask)
        out.transpose(1, 2).contiguous().backward(upstream)
        q.grad = k.grad = v.grad = None

    return run


def names(length: int, arguments: argparse.Namespace) -> list[str]:
    """The forms that are run at this length, plain first."""
    return [
        name
        for name in dict.fromkeys(["plain", *arguments.forms])
        if length <= KEPT_LIMIT or name not in forms.KEEPS_MATRICES
    ]


def memory(arguments: argparse.Namespace) -> dict[int, dict[str, int]]:
    """Peak bytes by length and form."""
    return {
        length: {
            name: measure.peak_memory(
                partial(call, forms.FORMS[name], length, arguments), arguments.device
            )
            for name in names(length, arguments)
        }
        for length in arguments.lengths
    }


def seconds(length: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Timings by form."""
    cases = {name: call(forms.FORMS[name], length, arguments) for name in names(length, arguments)}
    once = length >= LONG and arguments.device == "cpu"
    if once:
        cases["plain"]()  # the first call of a length pays for its memory
    taken = measure.interleaved(
        cases,
        rounds=1 if once else arguments.rounds,
        warm_up=0 if once else 1,
        device=arguments.device,
        budget=arguments.budget,
        keep=not arguments.default_allocator,
        clock=time.process_time if arguments.cpu_time else time.perf_counter,
    )
    return {name: asdict(timing) for name, timing in taken.items()}


def line(length: int, row: dict[str, Any]) -> str:
    shown = "  ".join(
        f"{name} {timing['ratio']:.2f}"
        + (f" (+{timing['peak_bytes'] / 2**20:.0f} MB)" if "peak_bytes" in timing else "")
        for name, timing in row.items()
    )
    return f"N {length:6d}  {1000 * row['plain']['seconds']:9.2f} ms  {shown}"


def main() -> None:
    """Print a table, a line a length; write the JSON, and the plot beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument(
        "--forms", nargs="+", default=list(forms.DEFAULT), choices=list(forms.FORMS)
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--key_heads", type=int, help="Fewer, which query heads share.")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--padding", action="store_true", help="With a padding mask.")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--memory", action="store_true", help="Measure peak memory too.")
    parser.add_argument("--default_allocator", action="store_true", help=measure.DEFAULT_ALLOCATOR)
    cpu_time = "One thread, by the time of its CPU: other processes weigh less."
    parser.add_argument("--cpu_time", action="store_true", help=cpu_time)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=30.0, help="Seconds a length.")
    parser.add_argument("--output", type=Path, help="JSON file; the plot goes beside it.")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        torch.set_num_threads(1)
    peaks = memory(arguments) if arguments.memory else {}  # first: see measure.peak_memory
    forms.check(arguments.device, getattr(torch, arguments.dtype))
    results = {}
    for length in arguments.lengths:
        row = seconds(length, arguments)
        for name, peak in peaks.get(length, {}).items():
            row[name]["peak_bytes"] = peak
        results[length] = row
        print(line(length, row), flush=True)
    if arguments.output:
        settings = {k: v for k, v in vars(arguments).items() if k != "output"}
        found = {
            "machine": measure.origin(arguments.device),
            "settings": settings,
            "lengths": results,
        }
        measure.write(arguments.output, found)
        plot.draw(arguments.output)


if __name__ == "__main__":
    main()
