"""Decoding speed of GPT-2 small, random weights: one token of one sequence, with the cache.

python benchmarks/decode.py --context 128 768
python benchmarks/decode.py --context 128 768 --default_allocator
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import measure
import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, PreTrainedModel

import hf_graphattn as ga

VARIANTS = {
    "plain": None,
    "gfsa": ga.GFSAConfig(order=4, w_0=-0.01, w_K=0.1),
    "laplacian": ga.LaplacianConfig(step=0.1),
    "plat": ga.PLaTConfig(),
}


def model_of(config: ga.VariantConfig | None, device: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).to(device).eval()
    return model if config is None else ga.patch_model(model, config)


def decoding_step(model: PreTrainedModel, context: int, device: str) -> Callable[[], object]:
    """One token after ``context`` tokens in the cache; the cache is cropped back afterwards."""
    cache = DynamicCache(config=model.config)
    ids = torch.randint(0, model.config.vocab_size, (1, context + 1), device=device)
    model(ids[:, :-1], past_key_values=cache)

    def step() -> None:
        model(ids[:, -1:], past_key_values=cache)
        cache.crop(-1)

    return step


@torch.no_grad()
def main() -> None:
    """Print seconds a token and the ratio to plain attention, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, nargs="+", default=[128, 768])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--default_allocator", action="store_true", help=measure.DEFAULT_ALLOCATOR)
    parser.add_argument("--output", type=Path, help="JSON file.")
    arguments = parser.parse_args()
    models = {name: model_of(config, arguments.device) for name, config in VARIANTS.items()}
    results = {}
    for context in arguments.context:
        cases = {
            name: decoding_step(model, context, arguments.device) for name, model in models.items()
        }
        taken = measure.interleaved(
            cases,
            rounds=arguments.rounds,
            warm_up=3,
            device=arguments.device,
            keep=not arguments.default_allocator,
        )
        for name, timing in taken.items():
            shown = f"{1000 * timing.seconds:7.2f} ms a token  {timing.ratio:.3f}"
            print(f"context {context:5d}  {name:10s} {shown}")
        results[context] = {name: asdict(timing) for name, timing in taken.items()}
    if arguments.output:
        machine = measure.origin(arguments.device)
        measure.write(arguments.output, {"machine": machine, "contexts": results})


if __name__ == "__main__":
    main()
