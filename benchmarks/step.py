"""Whole training steps (forward, backward, AdamW) of GPT-2 small and BERT-base, random weights.

The models of the studies of depth are there too: how many steps does plain attention take in a
filter's seconds?

python benchmarks/step.py --cases gpt2 gpt2-dropout bert-dropout
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import forms
import measure
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

import hf_graphattn as ga

PUBLISHED = "benchmark_published_gfsa"
FORMS = (*forms.CONFIGS, "published gfsa")  # beside plain


@dataclass(frozen=True)
class Case:
    """A model and its batch: sequences of one length."""

    build: Callable[[], PreTrainedModel]
    batch: int
    length: int


def gpt2(attention_dropout: float) -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(attn_pdrop=attention_dropout))


def characters(layers: int) -> PreTrainedModel:
    """The model of the studies of depth in docs/evidence.md."""
    settings = {"n_head": 4, "n_embd": 128, "n_positions": 64, "vocab_size": 66}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, **settings, **dropout))


def bert(attention_dropout: float) -> PreTrainedModel:
    settings = {"attention_probs_dropout_prob": attention_dropout}
    return BertForSequenceClassification(BertConfig(**settings))


CASES = {
    "gpt2": Case(partial(gpt2, 0.0), 1, 1024),
    "gpt2-dropout": Case(partial(gpt2, 0.1), 1, 1024),
    "bert-dropout": Case(partial(bert, 0.1), 8, 128),
    "characters-4": Case(partial(characters, 4), 12, 64),
    "characters-5": Case(partial(characters, 5), 12, 64),
    "characters-12": Case(partial(characters, 12), 12, 64),
    "gpt2-large-batch": Case(partial(gpt2, 0.0), 8, 1024),
    "bert-large-batch": Case(partial(bert, 0.1), 32, 128),
}


def published_gfsa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **ignored: object,
) -> tuple[Tensor, None]:
    """The published form as an attention function: `A @ A` formed."""
    causal = bool(getattr(module, "is_causal", False))
    out = forms.published_gfsa(query, key, value, causal, dropout)
    return out.transpose(1, 2).contiguous(), None


def models(
    build: Callable[[], PreTrainedModel], names: Sequence[str], device: str
) -> dict[str, PreTrainedModel]:
    """The model in plain form, and in the forms of these names, from the same weights."""
    torch.manual_seed(0)
    plain = build().to(device)
    found = {"plain": plain}
    for name in names:
        found[name] = copy.deepcopy(plain)
        if name == "published gfsa":
            found[name].set_attn_implementation(PUBLISHED)
        else:
            ga.patch_model(found[name], forms.CONFIGS[name])
    return found


def step(model: PreTrainedModel, case: Case, device: str, dtype: torch.dtype) -> Callable[[], None]:
    """One training step on a fixed batch."""
    ids = torch.randint(5, model.config.vocab_size, (case.batch, case.length), device=device)
    is_writer = isinstance(model, GPT2LMHeadModel)
    labels = ids if is_writer else torch.zeros(case.batch, dtype=torch.long, device=device)
    optimizer = torch.optim.AdamW(ga.optimizer_groups(model, 1e-5))

    def run() -> None:
        half = dtype != torch.float32
        with torch.autocast(device, dtype, enabled=half):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def main() -> None:
    """Print ratios to plain, a line a case, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=["gpt2", "bert-dropout"], choices=list(CASES))
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=120.0, help="Seconds a case.")
    parser.add_argument("--output", type=Path, help="JSON file.")
    arguments = parser.parse_args()
    AttentionInterface.register(PUBLISHED, published_gfsa)
    AttentionMaskInterface.register(PUBLISHED, lambda *_, **__: None)  # it makes its own
    forms.check(arguments.device, torch.float32)
    results = {}
    for name in arguments.cases:
        case, dtype = CASES[name], getattr(torch, arguments.dtype)
        steps = {
            form: step(model.train(), case, arguments.device, dtype)
            for form, model in models(case.build, arguments.forms, arguments.device).items()
        }
        taken = measure.interleaved(
            steps, rounds=arguments.rounds, device=arguments.device, budget=arguments.budget
        )
        results[name] = {form: asdict(timing) for form, timing in taken.items()}
        shown = "  ".join(f"{form} {timing.ratio:.2f}" for form, timing in taken.items())
        print(f"{name:16s} {taken['plain'].seconds:8.3f} s  {shown}", flush=True)
    if arguments.output:
        machine = measure.origin(arguments.device) | {"dtype": arguments.dtype}
        measure.write(arguments.output, {"machine": machine, "cases": results})


if __name__ == "__main__":
    main()
