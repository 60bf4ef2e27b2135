"""Folders, filter files and adapters that were damaged or edited are refused, never loaded."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from refusals import refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from saved import CONFIGS, patched
from tiny import MODELS, inputs
from transformers import AutoModel, PreTrainedModel

import hf_graphattn as ga

FLIPS = int(os.environ.get("HF_GRAPHATTN_FLIPS", "40"))  # of each kind of file


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the entry "graph_attn" of a folder's config.json."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config["graph_attn"])
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("missing", ["settings", *CONFIGS["gfsa"].to_dict()])
def test_settings_that_are_missing_are_not_guessed(missing: str, tmp_path: Path) -> None:
    patched("BERT").save_pretrained(tmp_path)
    edited(tmp_path, lambda e: e.pop("settings", None) if missing == "settings" else None)
    if missing != "settings":
        edited(tmp_path, lambda entry: entry["settings"].pop(missing))
    with refused("settings", missing, "missing" if missing != "settings" else "order", "save"):
        ga.from_pretrained(tmp_path)


BAD = {
    "NaN": lambda x: x.fill_(float("nan")),
    "infinite": lambda x: torch.full_like(x, float("inf")),
    "too large": lambda x: torch.full_like(x, 1e39, dtype=torch.float64),
    "int64": lambda x: x.long(),
    "bool": lambda x: x.bool(),
    "complex": lambda x: x.to(torch.complex64),
}


@pytest.mark.parametrize("kind", BAD)
def test_filter_tensors_are_finite_floating_point_numbers(kind: str, tmp_path: Path) -> None:
    """Even where no checksum is saved."""
    model = patched("BERT")
    model.save_pretrained(tmp_path / "model")
    edited(tmp_path / "model", lambda entry: entry.pop("digest"))
    ga.save_filters(model, tmp_path / "filters")
    settings = LoraConfig(r=2, target_modules=["query"], modules_to_save=ga.peft_modules(model))
    get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    plain = MODELS["BERT"]()
    loads: dict[str, Callable[[Path], Any]] = {
        "model/model": ga.from_pretrained,
        "filters/graph_filters": lambda folder: ga.load_filters(plain, folder),
        "adapter/adapter_model": lambda folder: ga.load_peft(
            ga.patch_model(MODELS["BERT"](), CONFIGS["gfsa"]), folder
        ),
    }
    for name, load in loads.items():
        file = tmp_path / f"{name}.safetensors"
        tensors = load_file(file)
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
        if "filters" in name:
            metadata = metadata | {
                "graph_attn": json.dumps(
                    {k: v for k, v in json.loads(metadata["graph_attn"]).items() if k != "digest"}
                )
            }
        key = min(key for key in tensors if key.endswith("0.attention.self.graph_filter.w_K"))
        load(file.parent)
        if "filters" in name:
            ga.unpatch_model(plain)
        save_file(tensors | {key: BAD[kind](tensors[key])}, file, metadata=metadata)
        with refused("graph_filter.w_K", "finite", "save it again"):
            load(file.parent)
    assert not ga.is_patched(plain)


def flip(file: Path, name: str, source: random.Random) -> None:
    """Flip one bit of a tensor in a safetensors file."""
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:start])[name]["data_offsets"]
    data[start + source.randrange(begin, end)] ^= 1 << source.randrange(8)
    file.write_bytes(data)


def names(file: Path) -> list[str]:
    return sorted(name for name in load_file(file) if "graph_filter" in name)


@pytest.mark.parametrize("kind", ["model", "sharded", "filters"])
def test_every_flipped_bit_of_a_filter_is_noticed(kind: str, tmp_path: Path) -> None:
    model, source = patched("BERT", "gfsa"), random.Random(0)
    whole = tmp_path / "whole"
    if kind == "filters":
        ga.save_filters(model, whole)
    else:
        model.save_pretrained(whole, max_shard_size="20KB" if kind == "sharded" else "50GB")
    files = [file for file in sorted(whole.glob("*.safetensors")) if names(file)]
    plain = MODELS["BERT"]()
    for trial in range(FLIPS if kind != "sharded" else 10):
        folder = shutil.copytree(whole, tmp_path / str(trial))
        file = folder / source.choice(files).name
        flip(file, source.choice(names(file)), source)
        with pytest.raises(ga.GraphAttentionError, match=r"finite|checksum"):
            ga.load_filters(plain, folder) if kind == "filters" else ga.from_pretrained(folder)
        assert not ga.is_patched(plain)


def test_a_checksum_is_of_what_is_saved(tmp_path: Path) -> None:
    """After training, of a gathered state, in another dtype; and for a model with another head."""
    model = patched("BERT")
    with torch.no_grad():
        for _, scalar in ga.filter_parameters(model):
            scalar.mul_(3.0)
    half = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path / "own")
    model.save_pretrained(tmp_path / "half", state_dict=half)
    batch = inputs(model)
    assert torch.equal(ga.from_pretrained(tmp_path / "own")(**batch)[0], model(**batch)[0])
    assert ga.is_patched(ga.from_pretrained(tmp_path / "half"))
    ga.load_filters(MODELS["BERT"](head="Model"), ga.save_filters(model, tmp_path).parent)
    ga.from_pretrained(tmp_path / "own", auto_class=AutoModel)


def test_a_setting_from_after_a_release_is_not_guessed(tmp_path: Path) -> None:
    """A checkpoint of 0.2.0 has no `bounded`; in one that is bounded it must stay."""
    model = ga.patch_model(MODELS["BERT"](), ga.XSAConfig(exclusion=0.5, bounded=True))
    model.save_pretrained(tmp_path)
    edited(tmp_path, lambda entry: entry["settings"].pop("bounded"))
    with refused("settings"):
        ga.from_pretrained(tmp_path)


def adapter(folder: Path, model: PreTrainedModel, *about: PreTrainedModel) -> Path:
    settings = LoraConfig(r=2, target_modules=["query"], modules_to_save=ga.peft_modules(*about))
    get_peft_model(model, settings).save_pretrained(folder)
    return folder


def test_an_adapter_tells_what_its_base_was_patched_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Order and w_0 are in no tensor."""

    def base(**settings: Any) -> PreTrainedModel:
        return ga.patch_model(MODELS["BERT"](), ga.GFSAConfig(**settings))

    model = base(order=3)
    noted = adapter(tmp_path / "noted", model, model)
    unnoted = adapter(tmp_path / "unnoted", base(order=3))
    saved = json.loads((unnoted / "adapter_config.json").read_text())
    saved["modules_to_save"] = ga.peft_modules()  # as before every adapter had a note
    (unnoted / "adapter_config.json").write_text(json.dumps(saved))
    for other in ({"order": 9}, {"order": 3, "w_0": 0.5}):
        with refused("order=3", "Pass the plain base"):
            ga.load_peft(base(**other), noted)
    ga.load_peft(base(order=3), noted)
    assert not caplog.records
    ga.load_peft(base(order=9), unnoted)  # nobody can know
    assert "does not tell" in caplog.text
    assert "order=9" in caplog.text
    with refused("not patched"):
        ga.peft_modules(MODELS["BERT"]())
