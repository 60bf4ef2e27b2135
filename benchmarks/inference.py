"""Inference, no gradients, with BERT-base, GPT-2 small and ViT-base of random weights.

python benchmarks/inference.py --cases bert gpt2-prefill
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import forms
import measure
import step
import torch
from torch import Tensor
from transformers import PreTrainedModel, ViTConfig, ViTForImageClassification


@dataclass(frozen=True)
class Case:
    """A model, and what makes its batch on a device."""

    build: Callable[[], PreTrainedModel]
    batch: Callable[[str], dict[str, Tensor | bool | int]]


def text(batch: int, length: int, device: str, **settings: bool | int) -> dict:
    return {"input_ids": torch.randint(5, 30000, (batch, length), device=device), **settings}


def padded(batch: int, length: int, device: str) -> dict:
    """Sequences of half the length to all of it."""
    seen = forms.padding(batch, length, causal=False, device=device)[:, 0, 0].long()
    return text(batch, length, device) | {"attention_mask": seen}


def images(batch: int, device: str) -> dict:
    return {"pixel_values": torch.randn(batch, 3, 224, 224, device=device)}


bert, gpt2 = partial(step.bert, 0.1), partial(step.gpt2, 0.1)
CASES = {
    "bert": Case(bert, partial(text, 8, 128)),
    "bert-padded": Case(bert, partial(padded, 8, 128)),
    "gpt2": Case(gpt2, partial(text, 1, 1024, use_cache=False)),
    # What `generate` does first: the cache is filled, and the last token alone has logits.
    "gpt2-prefill": Case(gpt2, partial(text, 1, 1024, use_cache=True, logits_to_keep=1)),
    "vit": Case(partial(ViTForImageClassification, ViTConfig()), partial(images, 8)),
}


@torch.no_grad()
def main() -> None:
    """Print ratios to plain, a line a case, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument(
        "--forms", nargs="+", default=list(forms.CONFIGS), choices=list(forms.CONFIGS)
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--default_allocator", action="store_true", help=measure.DEFAULT_ALLOCATOR)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=30.0, help="Seconds a case.")
    parser.add_argument("--output", type=Path, help="JSON file.")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.cases:
        models = step.models(CASES[name].build, arguments.forms, arguments.device)
        batch = CASES[name].batch(arguments.device)
        taken = measure.interleaved(
            {form: partial(model.eval(), **batch) for form, model in models.items()},
            rounds=arguments.rounds,
            device=arguments.device,
            budget=arguments.budget,
            keep=not arguments.default_allocator,
        )
        results[name] = {form: asdict(timing) for form, timing in taken.items()}
        shown = "  ".join(f"{form} {timing.ratio:.2f}" for form, timing in taken.items())
        print(f"{name:16s} {taken['plain'].seconds:8.3f} s  {shown}", flush=True)
    if arguments.output:
        machine = measure.origin(arguments.device)
        measure.write(arguments.output, {"machine": machine, "cases": results})


if __name__ == "__main__":
    main()
