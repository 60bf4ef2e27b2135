"""What the library refuses: rows of a call and the words that its message must contain.

Each message says what was given, what is allowed (from the registry, so the words here are built
from it too), and what to do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import inputs
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedModel,
    ResNetConfig,
    ResNetModel,
    T5Config,
    T5Model,
    XGLMConfig,
    XGLMModel,
)

import hf_graphattn as ga
from hf_graphattn.architectures import ARCHITECTURES

VARIANTS = tuple(ga.variant_configs())
CONFIGS = tuple(config.__name__ for config in ga.variant_configs().values())
SUPPORTED = tuple(row.name for row in ARCHITECTURES)
FILTER = "bert.encoder.layer.0.attention.self.graph_filter.w_K"


@dataclass(frozen=True)
class Refusal:
    """A call on a plain tiny BERT (2 layers, 4 heads) that must raise, naming `words`."""

    call: Callable[[PreTrainedModel], Any]
    words: tuple[str, ...]


def _patch(make: Callable[[], Any], **kwargs: Any) -> Callable[[PreTrainedModel], Any]:
    return lambda model: ga.patch_model(model, make(), **kwargs)


def _other(model: Callable[[], Any]) -> Callable[[PreTrainedModel], Any]:
    return lambda _: ga.patch_model(model(), ga.GFSAConfig())


def _wrapped() -> nn.Module:
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    return nn.Sequential(BertModel(config))


def _xglm() -> PreTrainedModel:
    return XGLMModel(
        XGLMConfig(vocab_size=9, d_model=8, ffn_dim=8, num_layers=1, attention_heads=2)
    )


def _resnet() -> PreTrainedModel:
    return ResNetModel(ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1]))


ARGUMENTS: dict[str, Refusal] = {
    "order 0": Refusal(_patch(lambda: ga.GFSAConfig(order=0)), ("order", "0", "at least 1")),
    "order 2.5": Refusal(_patch(lambda: ga.GFSAConfig(order=2.5)), ("order", "2.5", "integer")),
    "order True": Refusal(_patch(lambda: ga.GFSAConfig(order=True)), ("order", "True", "integer")),
    "w_0 NaN": Refusal(_patch(lambda: ga.GFSAConfig(w_0=math.nan)), ("w_0", "nan", "finite")),
    "w_K text": Refusal(_patch(lambda: ga.GFSAConfig(w_K="1")), ("w_K", "'1'", "number")),
    "w_K several": Refusal(_patch(lambda: ga.GFSAConfig(w_K=(0.1, 0.2))), ("w_K", "0.1", "one")),
    "p NaN": Refusal(_patch(lambda: ga.PLaTConfig(p=(1.5, math.nan))), ("p is", "nan", "finite")),
    "p empty": Refusal(_patch(lambda: ga.PLaTConfig(p=())), ("p is ()", "several")),
    "p not dividing": Refusal(
        _patch(lambda: ga.PLaTConfig(p=(1.1, 1.2, 1.3))), ("p is", "1.3", "4 heads", "evenly")
    ),
    "eps 0": Refusal(_patch(lambda: ga.PLaTConfig(eps=0)), ("eps", "0", "above 0")),
    "eps below float32": Refusal(
        _patch(lambda: ga.PLaTConfig(eps=1e-320)), ("eps", "1e-320", "1.2e-38", "float32")
    ),
    "eps too small for p": Refusal(
        _patch(lambda: ga.PLaTConfig(p=(1.5, -6.0), eps=1e-8)), ("eps is 1e-08", "1e15", "-6.0")
    ),
    "p 100": Refusal(_patch(lambda: ga.PLaTConfig(p=100)), ("p is 100", "-10 to 10", "float32")),
    "trainable unknown": Refusal(
        _patch(lambda: ga.GFSAConfig(trainable=("w_2",))),
        ("trainable", "w_2", "w_0", "w_1", "w_K"),
    ),
    "trainable text": Refusal(
        _patch(lambda: ga.GFSAConfig(trainable="w_K")), ("trainable", "'w_K'", "('w_K',)")
    ),
    "trainable not a scalar": Refusal(
        _patch(lambda: ga.PLaTConfig(trainable=("eps",))), ("trainable", "eps", "out of p")
    ),
    "layer too high": Refusal(
        _patch(lambda: ga.GFSAConfig(layers=(0, 2))), ("layers", "(0, 2)", "-2 to 1")
    ),
    "layers fraction": Refusal(
        _patch(lambda: ga.GFSAConfig(layers=(0.5,))), ("layers", "0.5", "integers")
    ),
    "layers text": Refusal(_patch(lambda: ga.GFSAConfig(layers="01")), ("layers", "'01'")),
    "backend unknown": Refusal(
        _patch(ga.GFSAConfig, backend="flash"), ("backend", "'flash'", "auto", "eager", "sdpa")
    ),
    "backend of another variant": Refusal(
        _patch(ga.PLaTConfig, backend="sdpa"), ("backend", "'sdpa'", "blockwise", "eager")
    ),
    "config a name": Refusal(_patch(lambda: "gfsa"), ("config", "'gfsa'", *CONFIGS)),
    "config of no variant": Refusal(
        _patch(ga.VariantConfig), ("config", "VariantConfig", *CONFIGS, "@register(name)")
    ),
    "config of a class that is not registered": Refusal(
        _patch(type("OwnConfig", (ga.GFSAConfig,), {})), ("config", "@register(name)")
    ),
    "config a model": Refusal(_patch(lambda: _xglm()), ("config", "...; allowed")),
    "model a name": Refusal(
        _other(lambda: "bert-base-uncased"), ("model", "bert-base", "transformers")
    ),
    "model without attention": Refusal(_other(lambda: nn.Linear(2, 2)), ("Linear", "no attention")),
    "transformers model without attention": Refusal(
        _other(_resnet), ("ResNetModel", "no attention", *SUPPORTED)
    ),
    "dropout by a function": Refusal(
        _other(_xglm), ("XGLMModel", "XGLMAttention", "computes attention by itself", *SUPPORTED)
    ),
    "part of a model": Refusal(
        _other(lambda: T5Model(T5Config(vocab_size=9, d_model=8, num_layers=1)).encoder),
        ("T5Stack", "whole model", "layers="),
    ),
    "wrapped model": Refusal(_other(_wrapped), ("Sequential", "before it is wrapped")),
    "torch attention": Refusal(
        _other(lambda: nn.MultiheadAttention(4, 2)), ("MultiheadAttention", "graph_attn=config")
    ),
    "unpatching a plain model": Refusal(ga.unpatch_model, ("not patched", "is_patched")),
}


@dataclass(frozen=True)
class BadFolder:
    """A patched tiny BERT's folder, damaged by `edit`, that from_pretrained must refuse."""

    edit: Callable[[Path], None]
    words: tuple[str, ...]


def _config(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def _saved(**changes: Any) -> Callable[[Path], None]:
    return _config(lambda config: config["graph_attn"].update(changes))


def _settings(**changes: Any) -> Callable[[Path], None]:
    return _config(lambda config: config["graph_attn"]["settings"].update(changes))


def _tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def _plain(config: dict[str, Any]) -> None:
    del config["graph_attn"], config["attn_implementation"]


FOLDERS: dict[str, BadFolder] = {
    "config of a plain model": BadFolder(
        _config(_plain), ("holds filters", "graph_attn", "whole model")
    ),
    "not an object": BadFolder(
        _config(lambda config: config.update(graph_attn="gfsa")), ("graph_attn", "'gfsa'", "format")
    ),
    "no format": BadFolder(
        _config(lambda config: config["graph_attn"].pop("format")), ("graph_attn", "format")
    ),
    "newer format": BadFolder(
        _saved(format=2, hf_graphattn="9.1"), ("format", "2", "at most 1", "9.1", "upgrade")
    ),
    "unknown variant": BadFolder(_saved(variant="heat"), ("variant", "'heat'", *VARIANTS)),
    "no variant": BadFolder(_saved(variant=None), ("variant", "None", *VARIANTS)),
    "unknown setting": BadFolder(_settings(power=3), ("setting", "'power'", "gfsa", "order")),
    "bad setting": BadFolder(_settings(order=0), ("order", "0", "at least 1")),
    "settings not an object": BadFolder(_saved(settings=[1]), ("settings", "[1]")),
    "layers beyond the model": BadFolder(_settings(layers=[5]), ("layers", "5", "-2 to 1")),
    "missing tensor": BadFolder(
        _tensors(lambda tensors: tensors.pop(FILTER)), ("Missing", FILTER, "save")
    ),
    "misshapen tensor": BadFolder(
        _tensors(lambda tensors: tensors.update({FILTER: torch.zeros(3)})),
        ("misshapen", FILTER),
    ),
    "left-over tensor": BadFolder(
        _tensors(lambda tensors: tensors.update({FILTER[:-3] + "w_9": torch.zeros(4)})),
        ("left over", "w_9"),
    ),
    "fewer layers than tensors": BadFolder(_settings(layers=[1]), ("left over", FILTER)),
    "no weights": BadFolder(
        lambda folder: (folder / "model.safetensors").unlink(), ("safetensors",)
    ),
}


@contextmanager
def refused(*words: str) -> Iterator[None]:
    with pytest.raises(ga.GraphAttentionError) as caught:
        yield
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message


@contextmanager
def untouched(
    model: PreTrainedModel, batch: Mapping[str, torch.Tensor] | None = None
) -> Iterator[None]:
    """Weights, names, hooks, config and outputs are the same afterwards, bit for bit."""
    batch = inputs(model, "right") if batch is None else batch

    def snapshot() -> tuple[object, ...]:
        modules = [
            (name, type(m), len(m._forward_pre_hooks), sorted(m.__dict__), sorted(m._modules))
            for name, m in model.named_modules()
        ]
        config = (model.config.to_dict(), model.config._attn_implementation)
        return modules, list(model.state_dict()), config

    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    # transformers' own hooks for hidden states come with the first call, and stay.
    outputs, before = model(**batch, output_hidden_states=True)[0], snapshot()
    yield
    assert snapshot() == before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model(**batch)[0], outputs)
