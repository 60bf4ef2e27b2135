"""What a patched model of every architecture can do: the cells of docs/compatibility.md.

A feature is a function of an architecture's name that raises where it fails; the tests run every
cell. Printing the page runs them again:

    python tests/features.py docs/compatibility.md
"""

from __future__ import annotations

import itertools
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from cases import VARIANT_CASES, VariantCase
from peft import LoraConfig, get_peft_model
from published import check_against_published
from tensors import built
from tiny import HEADS, LAYERS, MODELS, ROWS, Tiny, deep, inputs
from torch import Tensor
from transformers import PreTrainedModel

import hf_graphattn as ga

LEARNED = ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.3, trainable=("w_0", "w_K"))
VARIANTS = {name: case.config for name, case in VARIANT_CASES.items()}
LENGTHS = (11, 12, 17)


@dataclass(frozen=True)
class Feature:
    """A column: its name, the check, the sentence that says what the check is, whom it concerns."""

    name: str
    check: Callable[[str], None]
    says: str
    applies: Callable[[Tiny], bool] = lambda row: True


def patched(
    architecture: str, config: ga.VariantConfig = LEARNED, **settings: object
) -> PreTrainedModel:
    torch.manual_seed(0)
    return ga.patch_model(MODELS[architecture](**settings), config)


def every_variant(
    architecture: str,
    cases: Mapping[str, VariantCase] = VARIANT_CASES,
    stacks: int = 1,
    **settings: object,
) -> PreTrainedModel:
    """A model with a layer of each variant in so many of its stacks together, every scalar learned.

    With one: in each stack. An encoder and a decoder may share them, each having half."""
    torch.manual_seed(0)
    model = deep(architecture, -(-len(cases) // stacks), **settings)
    ga.patch_model(model, LEARNED)
    placed = ga.graph_filters(model)
    for name, case in zip(placed, itertools.cycle(cases.values()), strict=False):
        model.get_submodule(name).graph_filter = built(case, HEADS)
    found = [each.variant_config.variant for each in ga.graph_filters(model).values()]
    assert set(found) == set(cases)
    assert stacks > 1 or found == list(cases) * (len(placed) // len(cases))
    return model


def gradients(model: PreTrainedModel, batch: dict[str, Tensor]) -> list[Tensor]:
    """Of a fixed random sum of the logits, from a fixed seed."""
    model.zero_grad()
    torch.manual_seed(1)
    logits = model(**batch)[0]
    (
        logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    ).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def forward(architecture: str) -> None:
    check_against_published(architecture, "sdpa", "none", with_gradients=False)


def backward(architecture: str) -> None:
    for backend in ("sdpa", "eager"):
        check_against_published(architecture, backend, "none", with_gradients=True)


def padding(architecture: str) -> None:
    for side in set(ROWS[architecture].padding) - {"none"}:
        for backend in ("sdpa", "eager"):
            check_against_published(architecture, backend, side, with_gradients=True)


def save_and_load(architecture: str) -> None:
    for config in VARIANTS.values():
        model = patched(architecture, config)
        batch = inputs(model)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            assert torch.equal(ga.from_pretrained(folder)(**batch)[0], model(**batch)[0])


def cached_generation(architecture: str) -> None:
    """Variant by variant, and in other modes, it is tested in test_generation.py."""
    model = every_variant(architecture, tie_word_embeddings=False)
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    batch = inputs(model, "left")
    batch = {name: x for name, x in batch.items() if not name.startswith("decoder")}
    for mode in ({}, {"num_beams": 3}):
        mode |= {"do_sample": False, "max_new_tokens": 10}
        cached = model.generate(**batch, **mode)
        assert torch.equal(cached, model.generate(**batch, **mode, use_cache=False))


def compiled(architecture: str, cases: Mapping[str, VariantCase] = VARIANT_CASES) -> None:
    torch._dynamo.reset()
    # float64: the p-LaT kernel of the uncompiled model rounds otherwise than plain operations.
    # Nearly all time is torch's tracing, layer by layer: encoder and decoder share the variants.
    stacks = max(1, ROWS[architecture].modules // LAYERS)
    model, graphs = every_variant(architecture, cases, stacks).double(), 0

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    whole = torch.compile(model, fullgraph=True, dynamic=True, backend=count)
    for length in LENGTHS:
        batch = inputs(model, length=length)
        batch = {n: x.double() if x.is_floating_point() else x for n, x in batch.items()}
        with torch.no_grad():
            torch.testing.assert_close(whole(**batch)[0], model(**batch)[0])
    assert graphs == 1, f"{graphs} graphs"
    torch._dynamo.reset()


def peft(architecture: str) -> None:
    settings = LoraConfig(r=2, target_modules="all-linear", modules_to_save=ga.peft_modules())
    model = get_peft_model(patched(architecture), settings).eval()
    batch = inputs(model.get_base_model())
    before = model(**batch)[0]
    optimizer = torch.optim.AdamW(ga.optimizer_groups(model, 1e-2))
    for _ in range(2):  # LoRA's second factor starts at zero
        gradients(model, batch)
        optimizer.step()
    after = model(**batch)[0]
    assert not torch.allclose(after, before, atol=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        assert torch.equal(ga.load_peft(patched(architecture), folder)(**batch)[0], after)
    with model.disable_adapter():
        assert torch.equal(model(**batch)[0], before)


def gradient_checkpointing(architecture: str) -> None:
    model = every_variant(architecture).train()
    batch = inputs(model)
    expected = gradients(model, batch)
    largest = max(float(each.abs().max()) for each in expected)
    for reentrant in (True, False):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        got = gradients(model, batch)
        for one, other in zip(got, expected, strict=True):
            assert (one - other).abs().max() <= 1e-5 * largest
        model.gradient_checkpointing_disable()


FEATURES = (
    Feature(
        "forward", forward, "logits and all hidden states equal those of the published GFSA to 1e-4"
    ),
    Feature(
        "backward",
        backward,
        "so do the gradients of every weight and scalar, with fused passes and with A kept",
    ),
    Feature(
        "padding",
        padding,
        "the same, with left and right padding",
        lambda row: len(row.padding) > 1,
    ),
    Feature("save and load", save_and_load, "the logits are equal bit for bit, with each variant"),
    Feature(
        "cached generation",
        cached_generation,
        "greedy and beam search, left-padded: the same tokens as without the cache. The model has "
        "a layer of each variant",
        lambda row: row.generates,
    ),
    Feature(
        "compile",
        compiled,
        f"`torch.compile(fullgraph=True, dynamic=True)` makes one graph for the lengths "
        f"{', '.join(map(str, LENGTHS))}, with a layer of each variant",
    ),
    Feature(
        "PEFT",
        peft,
        "LoRA with filters in the adapter: trains, saves, loads bit for bit, disables",
    ),
    Feature(
        "gradient checkpointing",
        gradient_checkpointing,
        "both kinds: the same gradients as without it, also with dropout, a layer of each variant",
        lambda row: row.checkpoints,
    ),
)


def cell(architecture: str, feature: Feature) -> str:
    """Run one cell: yes, or no with the error's first line, or - where it does not apply."""
    if not feature.applies(ROWS[architecture]):
        return "-"
    try:
        feature.check(architecture)
    except Exception as error:
        print(f"{architecture}, {feature.name}: {error}", file=sys.stderr)
        return "**no**"
    return "yes"


def page() -> str:
    """The Markdown of docs/compatibility.md, every cell run."""
    heading = " | ".join(["architecture", *(feature.name for feature in FEATURES)])
    lines = [
        "# What works where",
        "",
        "`python tests/features.py docs/compatibility.md` wrote this page. It runs every cell on a "
        "tiny random model. So does `make test-full`.",
        f"Last run: torch {torch.__version__}, transformers {transformers.__version__}, Python "
        f"{platform.python_version()}, on the CPU.",
        "",
        f"| {heading} |",
        "|" + "---|" * (len(FEATURES) + 1),
    ]
    for architecture in ROWS:
        cells = [cell(architecture, feature) for feature in FEATURES]
        print(architecture, *cells, file=sys.stderr)
        lines.append("| " + " | ".join([architecture, *cells]) + " |")
    lines += [
        "",
        "`-`: does not apply (images have no padding, an encoder does not generate).",
        "",
    ]
    lines += [f"- **{feature.name}**: {feature.says}." for feature in FEATURES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    text = page()
    Path(sys.argv[1]).write_text(text, "utf-8")
    sys.exit("**no**" in text)
