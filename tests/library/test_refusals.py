"""Bad input: the error's class, what it names, and a model that is as it was."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from refusals import (
    ARGUMENTS,
    FILTER,
    FOLDERS,
    edit_entry,
    edit_json,
    edit_tensors,
    refused,
    untouched,
)
from safetensors.torch import load_file, save_file
from saved import CONFIGS, patched
from tiny import LAYERS, MODELS, inputs
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification, BertConfig, GPT2LMHeadModel

import hf_graphattn as ga

CONFIG = ga.GFSAConfig(w_K=0.2)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_arguments_are_refused_and_the_model_is_untouched(name: str) -> None:
    model, (call, words) = MODELS["BERT"](), ARGUMENTS[name]
    with untouched(model), refused(*words):
        call(model)
    assert not ga.is_patched(model)
    ga.patch_model(model, ga.GFSAConfig())


@pytest.mark.parametrize("name", FOLDERS)
def test_bad_folders_are_refused(name: str, tmp_path: Path) -> None:
    patched("BERT").save_pretrained(tmp_path)
    assert FILTER in ga.from_pretrained(tmp_path).state_dict()
    edit, words = FOLDERS[name]
    edit(tmp_path)
    with refused(*words, str(tmp_path)):
        ga.from_pretrained(tmp_path)


def test_a_damaged_shard_of_the_base_is_refused(tmp_path: Path) -> None:
    model = patched("BERT")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    batch = inputs(model)
    assert torch.equal(ga.from_pretrained(tmp_path)(**batch)[0], model(**batch)[0])
    index = (tmp_path / "model.safetensors.index.json").read_text()
    edit_json("model.safetensors.index.json", lambda x: x.pop("weight_map"))(tmp_path)
    with refused("cannot be loaded", "weight_map"):
        ga.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    file = max(tmp_path.glob("model-*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])
    with refused("cannot be loaded", "damaged"):
        ga.from_pretrained(tmp_path)


BAD = {"NaN": lambda x: x * float("nan"), "int64": lambda x: x.long()}


@pytest.mark.parametrize("kind", BAD)
def test_filter_tensors_are_finite_floating_point_numbers(kind: str, tmp_path: Path) -> None:
    """Even where no checksum is saved."""
    model, plain = patched("BERT"), MODELS["BERT"]()
    model.save_pretrained(tmp_path / "model")
    edit_entry(lambda entry: entry.pop("digest"))(tmp_path / "model")
    path = ga.save_filters(model, tmp_path / "filters")
    about = {"graph_attn": json.dumps(model.config.graph_attn)}
    about["shape"] = json.dumps(_shape(path))
    save_file(load_file(path), path, metadata=about)
    settings = LoraConfig(r=2, target_modules=["query"], modules_to_save=ga.peft_modules(model))
    get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    loads: dict[str, Callable[[Path], Any]] = {
        "model/model": ga.from_pretrained,
        "filters/graph_filters": lambda folder: ga.load_filters(plain, folder),
        "adapter/adapter_model": lambda folder: ga.load_peft(
            ga.patch_model(MODELS["BERT"](), CONFIGS["gfsa"]), folder
        ),
    }
    for name, load in loads.items():
        file = tmp_path / f"{name}.safetensors"
        load(file.parent)
        if "filters" in name:
            ga.unpatch_model(plain)
        key = min(
            key for key in load_file(file) if key.endswith("0.attention.self." + FILTER[-16:])
        )
        edit_tensors(file, lambda tensors, key=key: tensors.update({key: BAD[kind](tensors[key])}))
        with refused("graph_filter.w_K", "finite", "save it again"):
            load(file.parent)
    assert not ga.is_patched(plain)


def _shape(file: Path) -> Any:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return json.loads(opened.metadata()["shape"])


@pytest.mark.parametrize("kind", ["model", "filters"])
def test_a_flipped_bit_of_a_filter_is_noticed(kind: str, tmp_path: Path) -> None:
    model, source, whole = patched("BERT"), random.Random(0), tmp_path / "whole"
    ga.save_filters(model, whole) if kind == "filters" else model.save_pretrained(whole)
    plain, (path,) = MODELS["BERT"](), whole.glob("*.safetensors")
    for trial in range(12):
        folder = shutil.copytree(whole, tmp_path / str(trial))
        data = bytearray(path.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        places = json.loads(data[8:start])
        name = source.choice([name for name in places if "graph_filter" in name])
        begin, end = places[name]["data_offsets"]
        data[start + source.randrange(begin, end)] ^= 1 << source.randrange(8)
        (folder / path.name).write_bytes(data)
        with pytest.raises(ga.GraphAttentionError, match=r"finite|checksum"):
            ga.load_filters(plain, folder) if kind == "filters" else ga.from_pretrained(folder)
        assert not ga.is_patched(plain)


def test_a_checksum_is_of_what_is_saved(tmp_path: Path) -> None:
    """Also of a gathered state, in another dtype; and for a model with another head."""
    model = patched("BERT")
    half = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path / "half", state_dict=half)
    assert ga.is_patched(ga.from_pretrained(tmp_path / "half", auto_class=AutoModel))
    ga.load_filters(MODELS["BERT"](head="Model"), ga.save_filters(model, tmp_path).parent)


def test_a_setting_from_after_a_release_is_not_guessed(tmp_path: Path) -> None:
    """A checkpoint of 0.2.0 has no `bounded`; in one that is bounded it must stay."""
    model = ga.patch_model(MODELS["BERT"](), ga.XSAConfig(exclusion=0.5, bounded=True))
    model.save_pretrained(tmp_path)
    edit_entry(lambda entry: entry["settings"].pop("bounded"))(tmp_path)
    with refused("settings"):
        ga.from_pretrained(tmp_path)


ARCHITECTURES = (None, "", [3], [[]], {"a": 1}, ["Nothing"], ["pipeline"], ["GPT2LMHeadModel"])


def test_a_config_that_names_no_model(patched_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(patched_folder, tmp_path, dirs_exist_ok=True)
    for names in ARCHITECTURES:
        edit_json("config.json", lambda config, n=names: config.update(architectures=n))(tmp_path)
        with refused("'architectures'", str(tmp_path), "BertConfig", "Pass auto_class="):
            ga.from_pretrained(tmp_path)
    assert ga.is_patched(ga.from_pretrained(tmp_path, auto_class=AutoModel))
    for cls in (3, "BertModel", BertConfig, GPT2LMHeadModel, nn.Linear):
        with refused("auto_class is", "BertConfig", "Leave it out"):
            ga.from_pretrained(patched_folder, auto_class=cls)


def test_what_transformers_refuses_keeps_its_message(patched_folder: Path) -> None:
    """Its own attention implementation is the loader's."""
    with refused("attn_implementation", "'sdpa'", "backend"):
        ga.from_pretrained(patched_folder, attn_implementation="sdpa")
    for settings, says in (
        ({"num_labels": 7}, "ignore_mismatched_sizes"),
        ({"use_kernels": True}, "Kernels are not available"),
    ):
        with pytest.raises(ga.GraphAttentionError, match=says) as error:
            ga.from_pretrained(patched_folder, **settings)
        assert str(patched_folder) in str(error.value)
        assert "damaged" not in str(error.value)


DOORS = [
    name
    for name in ga.__all__
    if inspect.isfunction(getattr(ga, name))
    and "model" in inspect.signature(getattr(ga, name)).parameters
]


@pytest.mark.parametrize("name", DOORS)
def test_what_is_not_a_model(name: str) -> None:
    door = getattr(ga, name)
    known = [*inspect.signature(door).parameters.values()][1:]
    needed = [p.name for p in known if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD]
    for model in ("bert-base-uncased", None)[: 1 if name == "peft_modules" else 2]:
        with refused("model is", "a transformers model", "from_pretrained"):
            list(door(model, *(CONFIG if each == "config" else "never" for each in needed)))
    assert not Path("never").exists()


@pytest.mark.parametrize(
    "call",
    [
        lambda model: ga.save_filters(model, "never"),
        lambda model: ga.model_card(model, "user/name"),
        ga.freeze_base,
        ga.peft_modules,
        lambda model: ga.load_peft(model, "never"),
    ],
)
def test_a_wrapped_model(call: Callable[[nn.Module], Any]) -> None:
    model = nn.Sequential(ga.patch_model(MODELS["BERT"](), ga.GFSAConfig()))
    with refused("'Sequential'", "a transformers model", "without what wraps it"):
        call(model)


def test_rates() -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    for name in ("learning_rate", "weight_decay", "filter_learning_rate"):
        for rate in (float("nan"), -1e-3, "1e-3", True):
            with refused(f"{name} is", "finite number"):
                ga.optimizer_groups(model, **{"learning_rate": 1e-3, name: rate})


def test_bad_names_of_a_repository(tmp_path: Path) -> None:
    """Nothing is written, and the hub is not asked."""
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    right = {"folder": tmp_path / "never", "repo_id": "user/name"}
    names = {"repo_id": [None, "", "a/b/c", "../x", "a\nb"], "base_model": [3, "a\nb: c", "/a"]}
    for name, values in names.items():
        for value in values:
            with refused(f"{name} is"):
                ga.save_repository(model, **{**right, name: value})
            with refused(f"{name} is"):
                ga.push_to_hub(model, **{"repo_id": "user/name", name: value})
    ga.patch_model(ga.unpatch_model(model).base_model, ga.GFSAConfig())
    with refused("only a part of BertForSequenceClassification", "the whole model"):
        ga.save_repository(model, **right)
    assert not any(tmp_path.iterdir())


def test_patching_twice() -> None:
    model = ga.patch_model(MODELS["BERT"](), CONFIG)
    with untouched(model), refused("patched already", "unpatch_model"):
        ga.patch_model(model, ga.LaplacianConfig())
    ga.patch_model(ga.unpatch_model(model).bert, CONFIG)
    with untouched(model), refused("patched already"):  # a part counts
        ga.patch_model(model, ga.GFSAConfig())
    assert not ga.is_patched(ga.unpatch_model(model))


@pytest.mark.parametrize("architecture", ["BART", "T5"])
def test_a_part_is_neither_unpatched_nor_saved_alone(architecture: str, tmp_path: Path) -> None:
    """Nothing would load its folder."""
    model = ga.patch_model(MODELS[architecture](), CONFIG)
    with untouched(model), refused("a part of a model", "the whole model"):
        ga.unpatch_model(model.get_encoder())
    for part in (model.get_encoder(), copy.deepcopy(model.get_encoder())):
        with refused("a part of a patched model", "Save the whole"):
            part.save_pretrained(tmp_path)
    assert not any(tmp_path.iterdir())
    model.save_pretrained(tmp_path)
    ids = {"input_ids": inputs(model)["input_ids"]}
    loaded = ga.from_pretrained(tmp_path).get_encoder()(**ids)[0]
    assert loaded.equal(model.eval().get_encoder()(**ids)[0])
    ga.unpatch_model(model).get_encoder().save_pretrained(tmp_path / "plain")


def test_a_traced_model_is_refused() -> None:
    model = MODELS["BERT"]()
    ids = inputs(model)["input_ids"]
    traced = torch.jit.trace(model, ids, strict=False, check_trace=False)
    for call in (ga.is_patched, ga.unpatch_model, lambda each: ga.patch_model(each, CONFIG)):
        with refused("model is 'TopLevelTracedModule'", "Trace it after"):
            call(traced)


def test_a_class_that_would_lose_its_fields_is_not_registered() -> None:
    own = type("OwnConfig", (ga.VariantConfig,), {"scalars": ("w",)})
    with refused("'scalars' of variant 'own_scalars'", "('w',)", "trainable, layers"):
        ga.register("own_scalars")(dataclasses.dataclass(frozen=True)(own))
    with refused("'heat'", "frozen dataclass", "@dataclass(frozen=True)"):

        @ga.register("heat")
        class HeatConfig(ga.VariantConfig):
            time: float = 1.0

    assert not {"own_scalars", "heat"} & ga.variant_configs().keys()


def test_what_says_eager_for_attentions_is_answered() -> None:
    model = ga.patch_model(MODELS["BERT"](), CONFIG)
    batch = inputs(model)
    with pytest.raises(ValueError, match="set it to 'eager'"):  # transformers' own
        model.config.output_attentions = True
    model.set_attn_implementation("eager")
    with refused("set it to 'hf_graphattn' again", "output_attentions=True"):
        model(**batch)
    model.set_attn_implementation("hf_graphattn")
    assert len(model(**batch, output_attentions=True).attentions) == LAYERS


@pytest.mark.parametrize(
    ("p", "eps"), [(-10, 1e-2), (-8, 1e-3), (1.5, 1.2e-38), (2.5, 1.2e-38), (10, 1.0)]
)
@pytest.mark.parametrize("backend", ["eager", "blockwise"])
def test_every_exponent_that_is_allowed_gives_finite_logits(
    p: float, eps: float, backend: str
) -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.PLaTConfig(p=p, eps=eps), backend=backend)
    out = model(**inputs(model)).logits
    out.sum().backward()
    assert out.isfinite().all()
    assert all(w.grad is None or w.grad.isfinite().all() for w in model.parameters())


@pytest.mark.parametrize("architecture", ["BERT", "T5"])
def test_another_attention_implementation_never_drops_the_filter(architecture: str) -> None:
    """The next forward raises; both remedies that it names work."""
    model = MODELS[architecture]()
    batch = inputs(model)
    plain = model(**batch).logits
    filtered = ga.patch_model(model, ga.GFSAConfig(w_K=0.3))(**batch).logits
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        with refused(f"'{implementation}'", "unpatch_model", "backend="):
            model(**batch)
        ga.unpatch_model(model)
        torch.testing.assert_close(model(**batch).logits, plain)
        ga.patch_model(model, ga.GFSAConfig(w_K=0.3), backend=implementation)
        torch.testing.assert_close(model(**batch).logits, filtered, atol=1e-4, rtol=1e-4)


def test_a_model_built_from_a_patched_config_raises_at_its_first_forward() -> None:
    config = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig()).config
    model = AutoModelForSequenceClassification.from_config(config)
    with refused("without its filters", "hf_graphattn.from_pretrained"):
        model(**inputs(model))
