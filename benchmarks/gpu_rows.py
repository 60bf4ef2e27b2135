"""The rows of `gpu.py`, in the order of their worth; each is run in a process of its own.

A row is a generator of (what, its figures): what it has measured stays when it is stopped or fails.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from typing import Any

import attention
import decode
import forms
import inference
import measure
import step
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from hf_graphattn.backends import AttentionInputs, attention_matrix
from hf_graphattn.kernels import plat, plat_triton
from hf_graphattn.kernels.plat_triton import Block

Figures = Iterator[tuple[str, Any]]
Row = Callable[[], Figures]
DTYPES = {str(x).removeprefix("torch."): x for x in forms.TOLERANCE}
LENGTHS = (1024, 4096, 512, 2048, 8192, 16384, 256, 128)
# What is timed beside the default: of those that spill few registers when compiled for an H100.
HALF = [Block(64, 32, 8), Block(64, 64, 8), Block(128, 32, 8), Block(128, 64, 8)]
HALF += [Block(64, 32, stages=3), Block(64, 64)]
FLOAT32 = [Block(32, 32), Block(32, 16), Block(64, 32, 8)]


def rows(device: str, tiny: bool) -> dict[str, Row]:
    """Every row by its name; `tiny` ones measure nothing, and show that all of them run."""
    AttentionInterface.register(step.PUBLISHED, step.published_gfsa)
    AttentionMaskInterface.register(step.PUBLISHED, lambda *_, **__: None)  # it makes its own
    lengths = (32, 48) if tiny else LENGTHS
    steps = dict(itertools.islice(step.CASES.items(), 2)) if tiny else step.CASES
    widths = (16,) if tiny else (64, 128)
    found: dict[str, Row] = {}
    for name in DTYPES:
        found[f"exact {name}"] = partial(exact, name, device)
    found["exact dropout"] = partial(exact_dropout, device)
    for length in lengths:
        found[f"attention {length}"] = partial(attend, length, device, tiny)
    for name in sorted(steps, key=lambda name: "large" not in name):
        found[f"step {name}"] = partial(train, name, device, tiny)
    for context in (8,) if tiny else (128, 768):
        found[f"decode {context}"] = partial(generate, context, device, tiny)
    for width, name in itertools.product(widths, ("bfloat16", "float32", "float16")):
        found[f"blocks {name} {width}"] = partial(blocks, name, width, device, tiny)
    for name in inference.CASES:
        found[f"inference {name}"] = partial(infer, name, device, tiny)
    for length in lengths[:2]:
        found[f"attention bidirectional {length}"] = partial(
            attend, length, device, tiny, bidirectional=True
        )
    return found


def machine(device: str) -> Figures:
    """Where the figures are from."""
    found = measure.origin(device)
    if device == "cuda":
        found["capability"] = torch.cuda.get_device_capability()
        found["triton"] = metadata.version("triton")
    yield "machine", found


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def exact(dtype: str, device: str) -> Figures:
    """Ours against the published forms in float64, outputs and gradients."""
    forms.check(device, DTYPES[dtype])
    yield "allowed", forms.TOLERANCE[DTYPES[dtype]]


def exact_dropout(device: str) -> Figures:
    """p-LaT's kernels under dropout: the mask of the forward is that of the backward.

    With p = 2 and the identity as values the output is the dropped-out A, which shows the mask.
    """
    length, rate = 48, 0.3
    q, k, v = (x.detach() for x in forms.states(length, 2, length, 2, device, torch.float32))
    p = torch.tensor([1.4, 2.6], device=device).view(-1, 1, 1)
    inputs = AttentionInputs(q, k, None, False, length**-0.5, rate)

    def run(inputs: AttentionInputs, value: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return plat_triton.triton(inputs, plat.Values(value, value), p, 1e-2)

    kept = run(inputs, torch.eye(length, device=device).expand_as(v), torch.full_like(p, 2.0)) != 0
    whole = replace(inputs, dropout=0.0)
    upstream = torch.randn_like(v)
    results = []
    for precise in (False, True):
        dtype = torch.float64 if precise else torch.float32
        own = [x.to(dtype).requires_grad_() for x in (q, k, v, p)]
        given = replace(whole if precise else inputs, query=own[0], key=own[1])
        if precise:
            a = attention_matrix(given) * kept / (1 - rate)
            out = plat.naive(a, plat.Values(own[2], own[2]), own[3], 1e-2)
        else:
            out = run(given, own[2], own[3])
        results.append([out, *torch.autograd.grad((out * upstream).sum(), own)])
    pairs = zip(*results, strict=True)
    error = max(((x - y).abs().max() / y.abs().max()).item() for x, y in pairs)
    if not error <= forms.TOLERANCE[torch.float32]:
        raise ValueError(f"p-LaT's dropout is wrong by {error:.1e}")
    yield "error", error
    yield "dropped", 1 - kept.double().mean().item()


def timed(cases: dict[str, Callable[[], object]], device: str, tiny: bool) -> Figures:
    """Timings of the cases that run, and the words of those that do not."""
    running, failed = {}, ""
    for name, case in cases.items():
        try:
            case()
        except Exception as error:  # one form out of memory must not lose the others
            failed = words(error)
            yield f"failed: {name}", failed
        else:
            running[name] = case
    if not running:
        raise RuntimeError(failed)
    taken = measure.interleaved(running, rounds=60, device=device, budget=0.0 if tiny else 15.0)
    for name, timing in taken.items():
        yield name, asdict(timing)


def attend(length: int, device: str, tiny: bool, bidirectional: bool = False) -> Figures:
    """Attention alone in bf16, forward and backward: memory and time of each form."""
    settings = Namespace(
        device=device, dtype="bfloat16", batch=1, heads=2 if tiny else 12,
        width=16 if tiny else 64, dropout=0.0, bidirectional=bidirectional, padding=False,
        forms=list(forms.DEFAULT),
    )  # fmt: skip
    names = attention.names(length, settings)
    made = {name: partial(attention.call, forms.FORMS[name], length, settings) for name in names}
    memory = {}
    for name in names:  # before anything is timed: see measure.peak_memory
        try:
            memory[name] = measure.peak_memory(made[name], device)
        except Exception as error:
            memory[name] = words(error)
    yield "peak_bytes", memory
    yield from timed({name: make() for name, make in made.items()}, device, tiny)


def train(name: str, device: str, tiny: bool) -> Figures:
    """Whole training steps in bf16."""
    case = step.CASES[name]
    case = replace(case, build=partial(small, name), batch=2, length=8) if tiny else case
    models = step.models(case.build, step.FORMS, device)
    cases = {x: step.step(m.train(), case, device, torch.bfloat16) for x, m in models.items()}
    yield from timed(cases, device, tiny)


def small(name: str) -> PreTrainedModel:
    """A model of the kind that a case's name begins with, with one layer."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    kind = name.partition("-")[0]
    if kind == "gpt2":
        return step.GPT2LMHeadModel(step.GPT2Config(n_embd=32, n_layer=1, n_head=2))
    if kind == "bert":
        config = step.BertConfig(intermediate_size=32, **sizes)
        return step.BertForSequenceClassification(config)
    config = inference.ViTConfig(intermediate_size=32, **sizes)
    return inference.ViTForImageClassification(config)


@torch.no_grad()
def generate(context: int, device: str, tiny: bool) -> Figures:
    """One token of one sequence, with the cache, in float32."""
    build = partial(small, "gpt2") if tiny else partial(step.gpt2, 0.1)
    models = step.models(build, list(forms.CONFIGS), device)
    cases = {x: decode.decoding_step(m.eval(), context, device) for x, m in models.items()}
    yield from timed(cases, device, tiny)


@torch.no_grad()
def infer(name: str, device: str, tiny: bool) -> Figures:
    """One forward without gradients, in float32."""
    case = inference.CASES[name]
    build = partial(small, name) if tiny else case.build
    models = step.models(build, list(forms.CONFIGS), device)
    batch = case.batch(device)
    yield from timed({x: partial(m.eval(), **batch) for x, m in models.items()}, device, tiny)


def blocks(dtype: str, width: int, device: str, tiny: bool) -> Figures:
    """p-LaT's kernels with one size of block after the other, the default first.

    The forward alone, and forward and backward; each size is written as soon as it is timed.
    """
    kind = DTYPES[dtype]
    shape = (32, 2) if tiny else (4096, 12)
    q, k, v = forms.states(*shape, width, 1, device, kind)
    p = torch.full((shape[1], 1, 1), 1.5, device=device, requires_grad=True)
    inputs, upstream = AttentionInputs(q, k, None, True, width**-0.5, 0.0), torch.randn_like(q)
    values = plat.Values(every=v, rows=v)

    def forward(sizes: tuple[Block, Block] | None) -> torch.Tensor:
        return plat_triton.triton(inputs, values, p, 1e-3, sizes)

    def both(sizes: tuple[Block, Block] | None) -> None:
        forward(sizes).backward(upstream)
        q.grad = k.grad = v.grad = p.grad = None

    others = [Block(16, 16)] if tiny else FLOAT32 if kind == torch.float32 else HALF
    for block in (None, *others):
        name = str(tuple(block)) if block else "default"
        sizes = (block, block) if block else None
        cases = {"forward": partial(forward, sizes), "both": partial(both, sizes)}
        try:
            yield name, dict(timed(cases, device, tiny))
        except RuntimeError as error:  # too large for the GPU; the default must run
            if block is None:
                raise
            yield name, words(error)
