"""What the library refuses: rows of a call, or of a damaged folder, and words of the message."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import MODELS, inputs
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedModel,
    ResNetConfig,
    ResNetModel,
    XGLMConfig,
    XGLMModel,
)

import hf_graphattn as ga

FILTER = "bert.encoder.layer.0.attention.self.graph_filter.w_K"
Words = tuple[str, ...]


def _patch(make: Callable[[], Any], **kwargs: Any) -> Callable[[PreTrainedModel], Any]:
    return lambda model: ga.patch_model(model, make(), **kwargs)


def _other(model: Callable[[], Any], **settings: Any) -> Callable[[PreTrainedModel], Any]:
    return lambda _: ga.patch_model(model(), ga.GFSAConfig(**settings))


def _bert() -> PreTrainedModel:
    return BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2))


def _xglm() -> PreTrainedModel:
    sizes = {"vocab_size": 9, "d_model": 8, "ffn_dim": 8, "num_layers": 1, "attention_heads": 2}
    return XGLMModel(XGLMConfig(**sizes))


def _resnet() -> PreTrainedModel:
    return ResNetModel(ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1]))


def _meta() -> PreTrainedModel:
    with torch.device("meta"):
        return MODELS["BERT"]()


# Calls on a plain tiny BERT (2 layers, 4 heads) that must raise.
ARGUMENTS: dict[str, tuple[Callable[[PreTrainedModel], Any], Words]] = {
    "order 0": (_patch(lambda: ga.GFSAConfig(order=0)), ("order", "0", "at least 1")),
    "order True": (_patch(lambda: ga.GFSAConfig(order=True)), ("order", "True", "integer")),
    "order too high": (_patch(lambda: ga.GFSAConfig(order=10**30)), ("order", "at most 1000000")),
    "w_0 NaN": (_patch(lambda: ga.GFSAConfig(w_0=math.nan)), ("w_0", "nan", "finite")),
    "w_0 beyond float32": (_patch(lambda: ga.GFSAConfig(w_0=1e39)), ("w_0", "1e+39", "float32")),
    "w_K text": (_patch(lambda: ga.GFSAConfig(w_K="1")), ("w_K", "'1'", "number")),
    "p empty": (_patch(lambda: ga.PLaTConfig(p=())), ("p is ()", "several")),
    "p not dividing": (_patch(lambda: ga.PLaTConfig(p=(1.1, 1.2, 1.3))), ("p is", "4 heads")),
    "p 100": (_patch(lambda: ga.PLaTConfig(p=100)), ("p is 100", "-10 to 10", "float32")),
    "eps 0": (_patch(lambda: ga.PLaTConfig(eps=0)), ("eps", "0", "above 0")),
    "eps below float32": (_patch(lambda: ga.PLaTConfig(eps=1e-320)), ("eps", "1e-320", "float32")),
    "eps too small for p": (
        _patch(lambda: ga.PLaTConfig(p=(1.5, -6.0), eps=1e-8)),
        ("eps is 1e-08", "1e15", "-6.0"),
    ),
    "trainable unknown": (_patch(lambda: ga.GFSAConfig(trainable=("w_2",))), ("trainable", "w_2")),
    "trainable text": (_patch(lambda: ga.GFSAConfig(trainable="w_K")), ("trainable", "('w_K',)")),
    "layer too high": (_patch(lambda: ga.GFSAConfig(layers=(0, 2))), ("layers", "-2 to 1")),
    "layers fraction": (_patch(lambda: ga.GFSAConfig(layers=(0.5,))), ("layers", "integers")),
    "layers that share a module": (
        _other(MODELS["ALBERT"], layers=(1,)),
        ("layers", "(1,)", "-1 to 0", "ALBERT"),
    ),
    "backend unknown": (_patch(ga.GFSAConfig, backend="flash"), ("backend", "'flash'", "eager")),
    "backend of another variant": (_patch(ga.PLaTConfig, backend="sdpa"), ("'sdpa'", "blockwise")),
    "config a name": (_patch(lambda: "gfsa"), ("config", "'gfsa'", "GFSAConfig", "PLaTConfig")),
    "config of a class that is not registered": (
        _patch(type("OwnConfig", (ga.GFSAConfig,), {})),
        ("config", "@register(name)"),
    ),
    "model without attention": (_other(lambda: nn.Linear(2, 2)), ("Linear", "no attention")),
    "transformers model without attention": (_other(_resnet), ("no attention", "BERT, ", "T5, ")),
    "dropout by a function": (_other(_xglm), ("XGLMAttention", "computes attention by itself")),
    "part of a model": (_other(lambda: MODELS["T5"]().encoder), ("T5Stack", "whole model")),
    "layer of transformers": (
        lambda model: ga.patch_model(model.bert.encoder.layer[0], ga.GFSAConfig()),
        ("model is 'BertLayer'", "as a part", "the whole model"),
    ),
    "wrapped model": (_other(lambda: nn.Sequential(_bert())), ("before it is wrapped",)),
    "torch attention": (_other(lambda: nn.MultiheadAttention(4, 2)), ("graph_attn=config",)),
    "weights that are not loaded": (_other(_meta), ("meta", "Load the weights")),
    "unpatching a plain model": (ga.unpatch_model, ("not patched", "is_patched")),
    "report of a plain model": (ga.report, ("not patched", "patch_model")),
    "a variant's name": (lambda _: ga.register("Heat")(ga.GFSAConfig), ("'Heat'", "lower-case")),
    "a class of another kind": (lambda _: ga.register("heat")(dict), ("frozen dataclass",)),
}


def edit_json(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A function that changes a JSON file of a folder."""

    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return edit


def _config(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return edit_json("config.json", change)


def edit_entry(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A function that changes what a folder's config.json says of the filters."""
    return _config(lambda config: change(config["graph_attn"]))


def edit_tensors(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the tensors of a safetensors file; its metadata stay."""
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata=metadata)


def _tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    return lambda folder: edit_tensors(folder / "model.safetensors", change)


def _plain(config: dict[str, Any]) -> None:
    del config["graph_attn"], config["attn_implementation"]


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


# A patched tiny BERT's folder, damaged, that from_pretrained must refuse.
FOLDERS: dict[str, tuple[Callable[[Path], Any], Words]] = {
    "config of a plain model": (_config(_plain), ("holds filters", "graph_attn", "whole model")),
    "not an object": (_config(lambda c: c.update(graph_attn="gfsa")), ("graph_attn", "'gfsa'")),
    "format true": (edit_entry(lambda e: e.update(format=True)), ("graph_attn", "'format': 1")),
    "format 0": (edit_entry(lambda e: e.update(format=0)), ("graph_attn", "'format': 1")),
    "newer format": (edit_entry(lambda e: e.update(format=2)), ("format", "at most 1", "upgrade")),
    "unknown variant": (edit_entry(lambda e: e.update(variant="heat")), ("'heat'", "gfsa")),
    "unknown setting": (edit_entry(lambda e: e["settings"].update(power=3)), ("'power'", "order")),
    "missing setting": (edit_entry(lambda e: e["settings"].pop("order")), ("order", "missing")),
    "edited setting": (
        edit_entry(lambda e: e["settings"].update(order=7)),
        ("not those that were saved", "checksum", "save the model again"),
    ),
    "settings not an object": (edit_entry(lambda e: e.update(settings=[1])), ("settings", "[1]")),
    "fewer layers": (edit_entry(lambda e: e["settings"].update(layers=[1])), ("left over", FILTER)),
    "no type of model": (_config(lambda c: c.pop("model_type")), ("cannot be loaded",)),
    "another width": (_config(lambda c: c.update(hidden_size=64)), ("mismatch",)),
    "missing tensor": (_tensors(lambda t: t.pop(FILTER)), ("Missing", FILTER, "save")),
    "misshapen tensor": (_tensors(lambda t: t.update({FILTER: torch.zeros(3)})), ("misshapen",)),
    "left-over tensor": (
        _tensors(lambda t: t.update({FILTER[:-3] + "w_9": torch.zeros(4)})),
        ("left over", "w_9"),
    ),
    "truncated weights": (_truncate, ("cannot be loaded", "damaged")),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ("safetensors",)),
    "an adapter beside the model": (
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        ("holds a PEFT adapter", "load_peft"),
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
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        return modules, list(model.state_dict()), config, trained

    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    # transformers' own hooks for hidden states come with the first call, and stay.
    outputs, before = model(**batch, output_hidden_states=True)[0], snapshot()
    yield
    assert snapshot() == before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model(**batch)[0], outputs)
