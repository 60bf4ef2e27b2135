"""What people pass to the public functions, by the parameter's name, and what nobody should."""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import EvalResult
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from saved import CONFIGS, patched
from tiny import MODELS, inputs
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

import hf_graphattn as ga

Make = Callable[[], Any]
PARENT = tempfile.TemporaryDirectory()  # is removed at the end of the process


CONSTANTS = (
    None, True, False, -1, 0, 10**30, 0.5, -0.0, 1e39, 1e300, 5e-324,
    float("nan"), float("inf"), -float("inf"), 1j, Decimal("NaN"), Fraction(1, 3),
    "", " ", "x", "gfsa", "auto", "\0", "\ud800", "a\nb: c", "x" * 5000, "../..", "a/b/c",
    b"", b"1", b"\xff", (), (1,), (0, 0), {1, 2}, range(3), slice(3), Ellipsis,
    np.float32(0.3), np.float64("nan"), np.int64(3), np.bool_(True), np.str_("auto"),
    torch.float16, Path("x"), Path("x\0"), int, len, ga, ga.GFSAConfig, nn.Linear,
)  # fmt: skip
MADE: tuple[Make, ...] = (
    lambda: [],
    lambda: [[]],
    lambda: {},
    lambda: {"a": 1},
    lambda: {"input_ids": None},
    lambda: bytearray(b"1"),
    lambda: (each for each in (1, 2)),
    lambda: np.zeros(0),
    lambda: np.arange(3),
    lambda: np.array(["auto"]),
    lambda: np.array([None, 1], dtype=object),
    lambda: torch.tensor(1.0),
    lambda: torch.tensor([1, 2]),
    lambda: torch.tensor([float("nan")]),
    lambda: torch.zeros(2, 2, dtype=torch.complex64),
    lambda: torch.zeros(1, device="meta"),
    lambda: nn.Linear(2, 2),
    lambda: nn.Module(),
    lambda: MODELS["BERT"](),
    lambda: ga.VariantConfig(),
    object,
)
alone = st.sampled_from(CONSTANTS) | st.sampled_from(MADE).map(lambda make: make())
wrong = alone | st.lists(alone, min_size=1, max_size=3) | st.tuples(alone)


def _meta() -> nn.Module:
    with torch.device("meta"):
        return MODELS["BERT"](head="Model")


def _adapted() -> nn.Module:
    model = patched("BERT")
    settings = LoraConfig(r=2, target_modules=["query"], modules_to_save=ga.peft_modules(model))
    return get_peft_model(model, settings)


def _quantised() -> nn.Module:
    model = MODELS["BERT"](head="Model")
    with warnings.catch_warnings(action="ignore"):  # torch moves it into a package of its own
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


# The first are whole models with logits, which `refusals.untouched` can compare.
WHOLE: tuple[Make, ...] = (
    MODELS["BERT"],
    MODELS["BERT"],
    MODELS["T5"],
    lambda: MODELS["GPT-2"]().bfloat16(),
    *(lambda name=name: patched("BERT", name) for name in CONFIGS),
)
ODD: tuple[Make, ...] = (
    lambda: MODELS["BERT"](head="Model"),
    lambda: MODELS["BERT"]().train(),
    lambda: MODELS["BERT"]().bert.encoder,
    lambda: nn.Sequential(patched("BERT")),
    lambda: ga.unpatch_model(patched("BERT", head="Model")),
    _meta,
    _adapted,
    _quantised,
)


@cache
def folder(kind: str) -> str:
    """A folder with a patched model, the plain one, or an adapter, beside its filters; or empty."""
    path = Path(PARENT.name) / kind
    path.mkdir()
    torch.manual_seed(0)
    saved: dict[str, Make] = {"patched": lambda: patched("BERT"), "adapter": _adapted}
    if kind == "plain":
        MODELS["BERT"]().save_pretrained(path)
    elif kind in saved:
        model = saved[kind]()
        model.save_pretrained(path)
        ga.save_filters(model, path)
    return str(path)


def _batch(**changes: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return inputs(MODELS["BERT"](), "right", length=5) | changes


def a(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def made(*makers: Make) -> st.SearchStrategy[Any]:
    return st.sampled_from(makers).map(lambda make: make())


rates = a(0, 1e-3, 2, np.float32(0.1), Fraction(1, 7)) | st.floats(0, 1)
paths = a("patched", "patched", "patched", "adapter", "plain", "empty").map(folder)
paths |= paths.map(Path) | a("nothing/here", "user/nothing")
adapters = a("adapter", "adapter", "adapter", "patched").map(folder)
names = a("user/name", "name", "user/na-me.1", "a.b/c_d", "us er/name")
texts = a("x", ["a", "b"], ("a",), "a: b", "user/data", [])
text = a(None, "en", "x: y", "mit")
flags = a(True, False, None)

# These are handed to huggingface_hub as they are, which judges them.
OF_THE_HUB: dict[str, st.SearchStrategy[Any]] = {
    "private": flags,
    "create_pr": flags,
    "token": a(None, True, "hf_x"),
    "revision": a(None, "main", "refs/pr/1"),
    "commit_message": text,
    "commit_description": text,
}
# Other packages judge these, and a bad one raises by itself.
LOUD = {"tokenizer", "max_shard_size", "max_sequences", "max_tokens", "powers", "orders", "data"}
# What is right for a parameter of this name, or might be taken for right.
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "model": made(*WHOLE) | made(*WHOLE) | made(*ODD),
    "config": a(*CONFIGS.values(), ga.GFSAConfig(layers=(-1,)), ga.GFSAConfig(layers=(2,))),
    "backend": a(
        "auto", "eager", "sdpa", "shared", "blockwise", "flash_attention_2", "flex_attention"
    ),
    "folder": a("new", "new/deep", Path("new"), Path(".")),
    "path_or_repo": paths,
    "adapter": adapters | adapters.map(Path),
    "graph_attn": a(None, *CONFIGS.values()),
    "auto_class": a(None, AutoModel, AutoModelForSequenceClassification, AutoModelForCausalLM)
    | made(lambda: type(MODELS["BERT"]()), lambda: type(MODELS["GPT-2"]())),
    "repo_id": names,
    "base_model": a(None) | names,
    "datasets": texts,
    "tags": texts,
    "language": text,
    "license": text,
    "results": a((), [EvalResult("t", "d", "D", "m", 0.5)], EvalResult("t", "d", "D", "m", 1)),
    "tokenizer": a(None),
    "example": a(None, "a text", ("a", "text")),
    "training": a(None, {}, {"learning_rate": 0.1}),
    "max_shard_size": a("50GB", "20KB", 10_000),
    **OF_THE_HUB,
    "learning_rate": rates,
    "weight_decay": rates,
    "filter_learning_rate": a(None) | rates,
    "check": flags | made(lambda: dict(_batch()), lambda: {"input_ids": torch.ones(1, 3).long()}),
    "input_ids": made(lambda: _batch()["input_ids"], lambda: torch.ones(1, 3).long()),
    "data": made(
        _batch,
        lambda: [_batch(), _batch()],
        lambda: iter([_batch()]),
        lambda: _batch(attention_mask=torch.full((3, 5), float("nan"))),
        lambda: _batch(attention_mask=torch.zeros(3, 5)),
        lambda: _batch(attention_mask=None),
    ),
    "max_sequences": a(1, 2, np.int64(3), 10**30),
    "max_tokens": a(4, 5, 300, np.int64(5), 10**30),
    "powers": a((2.0,), [1.5, 2], (1e300,), (5e-324,), np.array([2.0]), range(1, 3)),
    "orders": a((2, 3), [1], (4, 2, 4), (10**9,), np.arange(2, 4), range(2, 5)),
    "name": a("heat", "gfsa", "Heat", "none", "1x", "heat_2"),
    "default": a(1.0, (), None),
    "help": a("what it does"),
    "kw_only": flags,
}
# Of the settings of any variant.
settings = a(
    0, 1, 2, 3, 4, 0.3, -0.7, 1.5, 1e-3, 1e30, 10**6, None, (), (0,), (-1,), (0, 1), (1.5, 2.5),
    (0.2, 0.9, -0.3), [0.1, 0.2], range(2), np.float32(0.3), np.int64(3), Fraction(1, 3),
    *((name,) for config in CONFIGS.values() for name in config.scalars),
)  # fmt: skip


@st.composite
def arguments(draw: Any, door: Callable[..., Any]) -> dict[str, Any]:
    """Arguments for a public function, by name: plausible ones, but perhaps for one."""
    torch.manual_seed(draw(st.integers(0, 2**32 - 1)))  # of the models' weights
    right = _settings(door) if isinstance(door, type) else _parameters(door)
    known = inspect.signature(door).parameters
    given = [
        name
        for name in right
        if (name in known and known[name].default is inspect.Parameter.empty) or draw(st.booleans())
    ]
    ours = [name for name in given if name not in {*OF_THE_HUB, *LOUD}]
    bad = draw(st.sampled_from([None, None, *ours]))
    return {name: draw(wrong if name == bad else right[name]) for name in given}


def _settings(config: type) -> dict[str, st.SearchStrategy[Any]]:
    return dict.fromkeys(inspect.signature(config).parameters, settings)


def _parameters(door: Callable[..., Any]) -> dict[str, st.SearchStrategy[Any]]:
    """A function that is new needs a row of `PLAUSIBLE` for each parameter of a new name."""
    names = [
        *(p.name for p in inspect.signature(door).parameters.values() if p.kind != p.VAR_KEYWORD),
        *(OTHERS.get(door.__name__, ())),
    ]
    return {name: PLAUSIBLE[name] for name in names}


_ABOUT = [
    p.name for p in inspect.signature(ga.model_card).parameters.values() if p.kind == p.KEYWORD_ONLY
]
# The names that a function takes as **keywords, where they are the library's own.
OTHERS = {"save_repository": _ABOUT, "push_to_hub": _ABOUT, "check": ["input_ids"]}
