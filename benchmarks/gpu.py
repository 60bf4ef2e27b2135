"""Every GPU row in one go: exactness first, then blocks, attention, memory, steps, decoding.

python benchmarks/gpu.py    # writes benchmarks/results/{blocks,attention,step,decode}-<gpu>.json

Nothing is timed unless ours agrees with the published forms in float64. Half an hour at most.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import forms
import measure
import torch

from hf_graphattn.backends import AttentionInputs
from hf_graphattn.kernels import plat

HERE = Path(__file__).parent
CUDA = ("--device", "cuda")
SWEEP = tuple(str(2**power) for power in range(7, 15))  # 128 to 16384
COMMANDS = {
    "attention": ("attention.py", *CUDA, "--dtype", "bfloat16", "--memory", "--lengths", *SWEEP),
    "step": (
        "step.py", *CUDA, "--dtype", "bfloat16", "--rounds", "15",
        "--cases", "gpt2-large-batch", "bert-large-batch",
    ),
    "decode": ("decode.py", *CUDA, "--context", "128", "768"),
}  # fmt: skip
BLOCKS = tuple(itertools.product((32, 64, 128), (16, 32, 64)))


def blocks(dtype: torch.dtype, width: int, length: int = 4096) -> dict[str, Any]:
    """p-LaT's kernels with each size of block, forward and backward, fastest first."""
    q, k, v = forms.states(length, 12, width, 1, "cuda", dtype)
    p = torch.full((12, 1, 1), 1.5, device="cuda", requires_grad=True)
    inputs, upstream = AttentionInputs(q, k, None, True, width**-0.5, 0.0), torch.randn_like(q)

    def run(block: tuple[int, int]) -> None:
        values = plat.Values(every=v, rows=v)
        plat.triton(inputs, values, p, 1e-3, block).backward(upstream)
        q.grad = k.grad = v.grad = p.grad = None

    cases = {}
    for block in BLOCKS:
        try:
            run(block)
        except Exception as error:  # Triton raises its own where shared memory is too small
            print(f"  {block}: {type(error).__name__}")
            continue
        cases[str(block)] = partial(run, block)
    taken = measure.interleaved(cases, rounds=15, device="cuda")
    ordered = sorted(taken.items(), key=lambda item: item[1].seconds)
    print(f"{dtype}, width {width}: " + ", ".join(f"{b} {t.seconds:.2e} s" for b, t in ordered[:3]))
    return {block: asdict(timing) for block, timing in ordered}


def main() -> None:
    """Run all, or say what would be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", type=Path, default=HERE / "results")
    parser.add_argument("--dry_run", action="store_true", help="Print the commands alone.")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if not on_gpu and not arguments.dry_run:
        sys.exit("no CUDA device here: nothing is measured (--dry_run prints what would be run)")
    name = torch.cuda.get_device_name() if on_gpu else "gpu"
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not arguments.dry_run:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            forms.check("cuda", dtype)
        sizes = itertools.product((torch.bfloat16, torch.float32), (64, 128))
        found = {f"{dtype} {width}": blocks(dtype, width) for dtype, width in sizes}
        measure.write(
            arguments.output_dir / f"blocks-{slug}.json",
            {"machine": measure.origin("cuda"), "blocks": found},
        )
    for what, (script, *flags) in COMMANDS.items():
        target = arguments.output_dir / f"{what}-{slug}.json"
        command = [sys.executable, str(HERE / script), *flags, "--output", str(target)]
        print("+", " ".join(command), flush=True)
        if not arguments.dry_run:
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
