"""Bad values are refused where they enter, with what was given, what is allowed and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from safetensors.torch import load_file, save_file
from tiny import MODELS
from torch import nn
from transformers import AutoModel, BertConfig, GPT2LMHeadModel

import hf_graphattn as ga

SETTINGS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "beyond float32": (lambda: ga.GFSAConfig(w_0=1e39), ("w_0", "1e+39", "finite", "float32")),
    "order too high": (lambda: ga.GFSAConfig(order=10**30), ("order", "at most 1000000")),
    "a variant's name": (lambda: ga.register(3)(ga.GFSAConfig), ("name is 3", "lower-case")),
    "a class of another kind": (lambda: ga.register("heat")(dict), ("heat", "frozen dataclass")),
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


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1e-3, "1e-3", None, True])
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
    "load_peft": lambda model: ga.load_peft(model, "never"),
    "diagnose": lambda model: ga.diagnose(model, {}),
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


TEXTS = {
    "repo_id": [None, 3, b"x", "", "a/b/c", "../x", "a\nb", "user/na me", "x" * 97],
    "base_model": [3, [], "", "a\nb: c", "/a/folder"],
    "datasets": [3, None, [3], "", "a\nb", ["a", "\ud800"]],
    "tags": [3, None, {"a"}, ["a\nb"]],
    "results": [3, None, ["x"]],
    "language": [3, "", ("en",)],
    "license": [3, "a\nb", ["mit"]],
    "folder": [None, 3, b"x", "", "\0", "\ud800"],
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_repository_is_told(name: str, tmp_path: Path) -> None:
    """Nothing is written, and the hub is not asked."""
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    right = {"folder": tmp_path / "never", "repo_id": "user/name"}
    for value in TEXTS[name]:
        with refused(f"{name} is"):
            ga.save_repository(model, **{**right, name: value})
        if name != "folder":
            with refused(f"{name} is"):
                ga.push_to_hub(model, **{"repo_id": "user/name", name: value})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("path", [None, 3, b"x", "", "\0", "\ud800"])
def test_what_is_not_a_path(path: Any) -> None:
    model = MODELS["BERT"]()
    for call in (
        lambda: ga.from_pretrained(path),
        lambda: ga.load_filters(model, path),
        lambda: ga.load_peft(model, path),
        lambda: ga.save_filters(ga.patch_model(MODELS["BERT"](), ga.GFSAConfig()), path),
    ):
        with refused("the path of a folder", "text or Path"):
            call()


WHOLE_MODELS: dict[str, Callable[[nn.Module], Any]] = {
    "save_filters": lambda model: ga.save_filters(model, "never"),
    "model_card": lambda model: ga.model_card(model, "user/name"),
    "freeze_base": ga.freeze_base,
    "peft_modules": ga.peft_modules,
    "diagnose": lambda model: ga.diagnose(model, {}),
    "load_peft": lambda model: ga.load_peft(model, "never"),
}


@pytest.mark.parametrize("name", WHOLE_MODELS)
def test_a_wrapped_model(name: str) -> None:
    model = nn.Sequential(ga.patch_model(MODELS["BERT"](), ga.GFSAConfig()))
    with refused("'Sequential'", "a transformers model", "without what wraps it"):
        WHOLE_MODELS[name](model)


def test_a_repository_of_a_model_of_which_a_part_is_patched(tmp_path: Path) -> None:
    """Its config.json would not say so, and the card would."""
    model = MODELS["BERT"]()
    ga.patch_model(model.base_model, ga.GFSAConfig())
    with refused("only a part of BertForSequenceClassification", "the whole model"):
        ga.save_repository(model, tmp_path / "never", "user/name")
    assert not any(tmp_path.iterdir())


def _json(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return edit


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _truncate_last(folder: Path) -> None:
    file = max(folder.glob("model-*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])


def _as_folder(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return edit


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
    "format -5": Folder(_entry(format=-5), ("graph_attn", "'format': 1")),
    "variant a list": Folder(_entry(variant=[]), ("variant is []", "gfsa")),
    "settings null": Folder(_entry(settings=None), ("settings", "None")),
    "no heads": Folder(
        _json("config.json", lambda config: config.update(num_attention_heads=0)),
        ("num_attention_heads", "0", "at least 1"),
    ),
    "no weight map": Folder(
        _json(INDEX, lambda index: index.pop("weight_map")),
        ("cannot be loaded", "weight_map"),
        True,
    ),
    "truncated weights": Folder(_truncate, ("cannot be loaded", "damaged")),
    "a truncated shard of the base": Folder(_truncate_last, ("cannot be loaded", "damaged"), True),
    "weights that are a folder": Folder(_as_folder("model.safetensors"), ("no model.safetensors",)),
    "edited settings": Folder(
        _json("config.json", lambda config: config["graph_attn"]["settings"].update(order=7)),
        ("not those that were saved", "settings", "checksum", "save the model again"),
    ),
    "no type of model": Folder(
        _json("config.json", lambda config: config.pop("model_type")), ("cannot be loaded",)
    ),
    "another width": Folder(
        _json("config.json", lambda config: config.update(hidden_size=64)),
        ("cannot be loaded", "mismatch"),
    ),
    "an adapter beside the model": Folder(
        lambda folder: (folder / "adapter_config.json").write_text("{}") and None,
        ("holds a PEFT adapter", "load_peft"),
    ),
}
ARCHITECTURES = (
    None, "", 3, [], [3], [None], [[]], {}, {"a": 1}, ["Nothing"], ["pipeline"], ["BertConfig"],
    ["GPT2LMHeadModel"], "BertModel",
)  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name: str, tmp_path: Path) -> None:
    row = FOLDERS[name]
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    model.save_pretrained(tmp_path, max_shard_size="20KB" if row.shards else "50GB")
    row.edit(tmp_path)
    with refused(*row.words, str(tmp_path)):
        ga.from_pretrained(tmp_path)


def test_a_config_that_names_no_model(patched_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(patched_folder, tmp_path, dirs_exist_ok=True)
    for names in ARCHITECTURES:
        _json("config.json", lambda config, n=names: config.update(architectures=n))(tmp_path)
        with refused("'architectures'", str(tmp_path), "BertConfig", "Pass auto_class="):
            ga.from_pretrained(tmp_path)
    assert ga.is_patched(ga.from_pretrained(tmp_path, auto_class=AutoModel))


@pytest.mark.parametrize("cls", [3, "BertModel", [], BertConfig, GPT2LMHeadModel, nn.Linear])
def test_a_class_that_is_not_for_the_model(cls: Any, patched_folder: Path) -> None:
    with refused("auto_class is", "BertConfig", "Leave it out"):
        ga.from_pretrained(patched_folder, auto_class=cls)


@pytest.mark.parametrize("shape", [None, [], "BERT", 3])
def test_a_filter_file_without_a_shape(shape: Any, tmp_path: Path) -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    file = ga.save_filters(model, tmp_path)
    entry = json.dumps(model.config.graph_attn)
    save_file(load_file(file), file, metadata={"graph_attn": entry, "shape": json.dumps(shape)})
    plain = ga.unpatch_model(model)
    with refused("cannot be loaded", "damaged"):
        ga.load_filters(plain, tmp_path)
