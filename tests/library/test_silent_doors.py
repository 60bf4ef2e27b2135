"""Bad values are refused where they enter, with what was given, what is allowed and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from safetensors.torch import load_file, save_file
from tiny import MODELS

import hf_graphattn as ga

HUGE = 10**400

SETTINGS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "beyond float32": (lambda: ga.GFSAConfig(w_0=1e39), ("w_0", "1e+39", "finite", "float32")),
    "hundreds of digits": (lambda: ga.GFSAConfig(w_0=HUGE), ("w_0", "1000", "finite")),
    "thousands of digits": (lambda: ga.GFSAConfig(w_0=10**5000), ("w_0", "digits", "finite")),
    "p of hundreds of digits": (lambda: ga.PLaTConfig(p=(1, HUGE)), ("p is", "finite")),
    "p bytes": (lambda: ga.PLaTConfig(p=b"1"), ("p is b'1'", "finite number")),
    "coefficients bytes": (lambda: ga.PolynomialConfig(coefficients=b"123"), ("b'123'", "two")),
    "layers bytes": (lambda: ga.GFSAConfig(layers=b"01"), ("layers", "b'01'")),
    "trainable bytes": (lambda: ga.GFSAConfig(trainable=b"p"), ("trainable", "b'p'")),
    "order too high": (lambda: ga.GFSAConfig(order=10**30), ("order", "at most 1000000")),
    "order of many digits": (lambda: ga.GFSAConfig(order=10**5000), ("order", "at most")),
    "a variant's name": (lambda: ga.register(3)(ga.GFSAConfig), ("name is 3", "lower-case")),
    "not a class": (lambda: ga.register("heat")(lambda: 0), ("heat", "frozen dataclass")),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    call, words = SETTINGS[name]
    with refused(*words):
        call()


def test_a_config_class_without_its_decorator_would_lose_its_fields() -> None:
    with refused("'heat'", "frozen dataclass", "@dataclass(frozen=True)"):

        @ga.register("heat")
        class HeatConfig(ga.VariantConfig):
            time: float = 1.0

    assert "heat" not in ga.variant_configs()


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1e-3, "1e-3", None, True, HUGE])
@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "filter_learning_rate"])
def test_rates(name: str, rate: Any) -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    settings = {"learning_rate": 1e-3, name: rate}
    if name == "filter_learning_rate" and rate is None:
        assert ga.optimizer_groups(model, **settings)
        return
    with refused(f"{name} is", "finite number"):
        ga.optimizer_groups(model, **settings)


CALLS: dict[str, Callable[[Any], Any]] = {
    "patch_model": lambda model: ga.patch_model(model, ga.GFSAConfig()),
    "unpatch_model": ga.unpatch_model,
    "is_patched": ga.is_patched,
    "graph_filters": ga.graph_filters,
    "filter_parameters": lambda model: list(ga.filter_parameters(model)),
    "report": ga.report,
    "save_filters": lambda model: ga.save_filters(model, "never"),
    "load_filters": lambda model: ga.load_filters(model, "never"),
    "save_repository": lambda model: ga.save_repository(model, "never", "user/name"),
    "push_to_hub": lambda model: ga.push_to_hub(model, "user/name"),
    "model_card": lambda model: ga.model_card(model, "user/name"),
    "optimizer_groups": lambda model: ga.optimizer_groups(model, 1e-3),
    "freeze_base": ga.freeze_base,
    "peft_modules": lambda model: ga.peft_modules(model) if model else ga.is_patched(model),
}


@pytest.mark.parametrize("model", [None, "bert-base-uncased", 3])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_a_model(name: str, model: Any) -> None:
    with refused("model is", "a transformers model", "from_pretrained"):
        CALLS[name](model)
    assert not Path("never").exists()


def _json(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return edit


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _entry(**changes: Any) -> Callable[[Path], None]:
    return _json("config.json", lambda config: config["graph_attn"].update(changes))


@dataclass(frozen=True)
class Folder:
    edit: Callable[[Path], None]
    words: tuple[str, ...]
    shards: bool = False


INDEX = "model.safetensors.index.json"
FOLDERS = {
    "format true": Folder(_entry(format=True), ("graph_attn", "'format': 1")),
    "format 0": Folder(_entry(format=0), ("graph_attn", "'format': 1")),
    "format -5": Folder(_entry(format=-5), ("graph_attn", "'format': 1")),
    "variant a list": Folder(_entry(variant=[]), ("variant is []", "gfsa")),
    "settings null": Folder(_entry(settings=None), ("settings", "None")),
    "no heads": Folder(
        _json("config.json", lambda config: config.update(num_attention_heads=0)),
        ("num_attention_heads", "0", "at least 1"),
    ),
    "no weight map": Folder(
        _json(INDEX, lambda index: index.pop("weight_map")), (INDEX, "weight_map", "save"), True
    ),
    "a weight map of nothing": Folder(
        _json(INDEX, lambda index: index.update(weight_map=None)), (INDEX, "weight_map"), True
    ),
    "truncated weights": Folder(_truncate, ("model.safetensors", "cannot be read", "again")),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name: str, tmp_path: Path) -> None:
    row = FOLDERS[name]
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    model.save_pretrained(tmp_path, max_shard_size="20KB" if row.shards else "50GB")
    row.edit(tmp_path)
    with refused(*row.words):
        ga.from_pretrained(tmp_path)


@pytest.mark.parametrize("shape", [None, [], "BERT", 3])
def test_a_filter_file_without_a_shape(shape: Any, tmp_path: Path) -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    file = ga.save_filters(model, tmp_path)
    entry = json.dumps(model.config.graph_attn)
    save_file(load_file(file), file, metadata={"graph_attn": entry, "shape": json.dumps(shape)})
    plain = ga.unpatch_model(model)
    with refused("shape", "damaged", "save_filters"):
        ga.load_filters(plain, tmp_path)
