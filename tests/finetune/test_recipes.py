"""Recipe files: plain flags, the command line wins, unknown ones are refused; the shipped ones."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForCTC,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    get_scheduler,
)
from zoo.sizes import tiny

import hf_graphattn as ga
from finetune import code_classification, glue, image_classification, lm, speech_recognition
from finetune.errors import Refused
from finetune.experiments import arms
from finetune.experiments.arms import Script
from finetune.models import loading, tuning
from finetune.settings import recipes

ROOT = Path(glue.__file__).parent
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
SCRIPTS = {
    "glue-": glue,
    "ptb-|wikitext|shakespeare-|openwebtext": lm,
    "devign-|clone-": code_classification,
    "imagenet": image_classification,
    "librispeech|morse-": speech_recognition,
}
RECIPE = """
model_name_or_path: m
output_dir: o
variant: gfsa
order: 4
w_0: -1.0e-2      # a comment
layers: [0, -1]
learning_rate: 2e-5
do_predict: true
tokenizer_name:
"""


def recipe(folder: Path, text: str = RECIPE) -> str:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return str(path)


def test_a_recipe_is_read_as_flags(tmp_path: Path) -> None:
    found = glue.SCHEMA.parse(["--recipe", recipe(tmp_path)])
    assert found.variant == ga.GFSAConfig(order=4, w_0=-0.01, layers=(0, -1))
    assert found.train.learning_rate == 2e-5
    assert found.train.do_predict is True
    assert found.model.tokenizer_name is None


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_command_line_wins_wherever_the_recipe_stands(tmp_path: Path, place: str) -> None:
    named, flags = [f"--recipe={recipe(tmp_path)}"], ["--order", "6", "--do_predict", "false"]
    argv = [*flags, *named] if place == "after" else [*named, *flags]
    found = glue.SCHEMA.parse([*argv, "--layers", "1", "--output_dir", "p"])
    assert found.variant == ga.GFSAConfig(order=6, w_0=-0.01, layers=(1,))
    assert (found.train.do_predict, found.train.output_dir) == (False, "p")


def test_another_variant_leaves_the_recipes_own_settings(tmp_path: Path) -> None:
    named = ["--recipe", recipe(tmp_path)]
    assert glue.SCHEMA.parse([*named, "--variant", "none"]).variant is None
    assert glue.SCHEMA.parse([*named, "--variant", "plat"]).variant == ga.PLaTConfig(layers=(0, -1))
    with pytest.raises(ValueError, match=r"order is 5; allowed: with variant gfsa"):
        glue.SCHEMA.parse([*named, "--variant", "plat", "--order", "5"])


def test_another_variant_leaves_the_recipes_learning_rate_of_the_scalars(tmp_path: Path) -> None:
    named = ["--recipe", recipe(tmp_path, f"{RECIPE}filter_learning_rate: 0.5")]

    def rate(*flags: str) -> float | None:
        return glue.SCHEMA.parse([*named, *flags]).filter.filter_learning_rate

    assert rate("--variant", "gfsa") == 0.5
    assert rate("--variant", "none") is None
    assert rate("--variant", "plat", "--filter_learning_rate", "0.2") == 0.2
    recipe(tmp_path, "{model_name_or_path: m, output_dir: o, filter_learning_rate: 0.5}")
    assert rate("--variant", "gfsa") == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 1", r"flag learning_rat is .*'learning_rat': 1.*learning_rate.*Did you me"),
        ("a: 1\nseed: 2\nb: 3", r"flag a, b is "),
        ("recipe: other.yaml", "flag recipe is"),
        ("seed: {of: 1}", r"seed is \{'of': 1\}"),
        ("- seed", "a file of lines `flag: value`"),
        ("seed: [", "allowed: valid YAML"),
        ("order: none", "order is 'none'; allowed: a whole number"),
        ("metric: [null]", "metric is None; allowed: a text"),
        ("learning_rate: 2026-11-24", "learning_rate is .*; allowed: a number"),
    ],
)
def test_refusals(tmp_path: Path, text: str, message: str) -> None:
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--recipe", recipe(tmp_path, text)]
    with pytest.raises(Refused, match=message):
        glue.SCHEMA.parse(argv)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]", r"YAML without aliases \(\*name\)"),
        ("seed: &a [*a]", "YAML without aliases"),
        ("seed: " + "[" * 1500, "valid YAML"),
        (b"seed: \xff", "valid YAML"),
    ],
    ids=["aliases", "a circle", "depth", "no UTF-8"],
)
def test_yaml_that_means_too_much_is_refused_in_a_line(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    """A few more lines of lists that name the one before ten times would be 10^11 values."""
    path = tmp_path / "file.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    for read in (
        lambda: recipes.read(str(path)),
        lambda: arms.read(str(path)),
        lambda: arms.read_space(str(path), Script(ROOT / "glue.py"), "gfsa"),
    ):
        with pytest.raises(Refused, match=f"allowed: {message}") as caught:
            read()
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_shipped_recipes_are_of_their_scripts(path: Path) -> None:
    (script,) = [script for start, script in SCRIPTS.items() if re.match(start, path.name)]
    found = script.SCHEMA.parse(["--recipe", str(path)])
    flat = found.flat()
    for name, value in yaml.safe_load(path.read_text()).items():
        read = list(flat[name]) if isinstance(flat[name], tuple) else flat[name]
        assert read == (None if read is None else type(read)(value))
    # The papers have one learning rate for all; the scripts' own for the scalars is another.
    of_paper = found.train.learning_rate if found.learns_scalars() else None
    assert found.filter.filter_learning_rate == of_paper
    plain = script.SCHEMA.parse(["--recipe", str(path), "--variant", "none"])
    assert (plain.variant, plain.train) == (None, found.train)


OF_DEVIGN = {"task_name": "defect", "num_train_epochs": 10, "early_stopping_patience": 2}
OF_CODE = {"max_length": 512, "per_device_train_batch_size": 16}
# What the papers say, by the beginnings of the recipes' names.
PAPERS: dict[str, dict[str, Any]] = {
    "glue-bert-gfsa": {"order": 4, "w_0": -0.01, "weight_decay": 0.0},
    "glue-roberta-gfsa": {"order": 6, "w_0": -0.05, "weight_decay": 0.0},
    "glue-albert-gfsa": {"order": 10, "w_0": 0.05, "weight_decay": 0.0},
    "ptb-gpt2-gfsa": {"order": 7, "num_train_epochs": 15},
    "wikitext2-gpt2-gfsa": {"order": 9, "num_train_epochs": 10},
    "wikitext103-gpt2-gfsa": {"order": 3, "num_train_epochs": 4},
    "wikitext103-gpt2-plat": {
        "p": [1.5, 2.5],
        "block_size": 256,
        "stride": 1,
        "max_grad_norm": 0.25,
    },
    "shakespeare-char-laplacian": {
        **{"learning_rate": 1e-3, "schedule": {"min_lr": 1e-4}, "max_grad_norm": 1},
        **{"adam_beta1": 0.9, "adam_beta2": 0.99, "weight_decay": 0.1, "eval_steps": 250},
        **{"num_warmup_steps": 100, "max_train_steps": 5000, "metric_for_best_model": "loss"},
        "keeps_best": True,
    },
    "devign-codet5": {**OF_CODE, **OF_DEVIGN, "objective": "generate"},
    "clone-": {**OF_CODE, "task_name": "clone", "objective": "classify"},
}
for _name in ("codebert", "roberta", "plbart"):
    PAPERS[f"devign-{_name}"] = {**OF_CODE, **OF_DEVIGN, "objective": "classify"}
for _name in ("ptb", "wikitext2", "wikitext103"):
    PAPERS[f"{_name}-gpt2-gfsa"] |= {"learning_rate": 5e-5, "per_device_train_batch_size": 4}


@pytest.mark.parametrize("start", PAPERS)
def test_recipes_are_those_of_the_papers(start: str) -> None:
    paths = [path for path in RECIPES if path.stem.startswith(start)]
    assert paths
    for path in paths:
        (script,) = [script for begins, script in SCRIPTS.items() if re.match(begins, path.name)]
        run = script.SCHEMA.parse(["--recipe", str(path)])
        train = {"schedule": run.train.schedule_settings, "keeps_best": run.train.keeps_best}
        found = run.deciding() | train
        assert {name: found.get(name) for name in PAPERS[start]} == PAPERS[start]


# What the hub has under the names in the recipes, as far as a filter sees it.
HUB: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "bert-base-uncased": ("bert", {}),
    "albert-base-v2": ("albert", {"num_attention_heads": 12}),
    "roberta-base": ("roberta", {}),
    "microsoft/codebert-base": ("roberta", {}),
    "Salesforce/codet5-small": ("t5", {"num_heads": 8}),
    "Salesforce/codet5-base": ("t5", {"num_heads": 12}),
    "uclanlp/plbart-base": ("plbart", {}),
    "facebook/deit-tiny-patch16-224": ("vit", {"num_attention_heads": 3, "hidden_size": 192}),
    "facebook/deit-small-patch16-224": ("vit", {"num_attention_heads": 6, "hidden_size": 384}),
    "microsoft/swin-small-patch4-window7-224": ("swin", {}),
}
IDS = torch.tensor([[5, 6, 7, 8, 9, 2], [9, 8, 7, 6, 5, 2]])  # 2 ends a text


def small(config: Any) -> Any:
    """The zoo's configuration of this type, with as many heads, each of a width of 4."""
    found = tiny(config.model_type)
    found.eos_token_id, found.decoder_start_token_id = 2, 0
    if config.model_type != "swin":  # whose stages have heads of their own
        found.num_attention_heads = config.num_attention_heads
        found.hidden_size = 4 * config.num_attention_heads
    return found


def inputs(script: ModuleType, config: Any, is_written: bool) -> dict[str, torch.Tensor]:
    """A batch of two rows, with labels."""
    if script is speech_recognition:
        return {"input_values": torch.randn(2, 6400), "labels": IDS}
    if script is image_classification:
        size = config.image_size
        return {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([0, 1])}
    labels = IDS if script is lm or is_written else torch.tensor([0, 1])
    return {"input_ids": IDS, "labels": labels}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_model_of_a_shipped_recipe_takes_a_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In full as far as its shapes, without weights; then small, from nothing."""
    (script,) = [script for start, script in SCRIPTS.items() if re.match(start, path.name)]
    settings = script.SCHEMA.parse(["--recipe", str(path)])
    model_flags, train = settings.model, settings.train
    if model_flags.origin in HUB:
        kind, known = HUB[model_flags.origin]
        monkeypatch.setattr(loading, "pretrained", lambda *_: CONFIG_MAPPING[kind](**known))
    is_written = getattr(model_flags, "objective", None) == "generate"
    auto_class: Any = {
        lm: AutoModelForCausalLM,
        image_classification: AutoModelForImageClassification,
        speech_recognition: AutoModelForCTC,
    }.get(script, AutoModelForSeq2SeqLM if is_written else AutoModelForSequenceClassification)
    if model_flags.model_name_or_path is None:
        config = loading.untrained_config(model_flags)
        with torch.device("meta"):
            auto_class.from_config(config)
    else:
        config = loading.pretrained()
        model_flags.model_name_or_path = None
    model = loading.load_model(settings, small(config), auto_class).train()
    assert ga.is_patched(model) == (settings.variant is not None)
    optimizer = tuning.optimizer(model, settings)
    get_scheduler(train.lr_scheduler_type, optimizer, 0, 4, train.schedule_settings)
    watched = [scalar for _, scalar in ga.filter_parameters(model)]
    watched = watched or [next(each for each in model.parameters() if each.dim() > 1)]
    before = [each.detach().clone() for each in watched]
    loss = model(**inputs(script, model.config, is_written)).loss
    assert torch.isfinite(loss)
    loss.backward()
    optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, watched, strict=True))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_reads_the_shipped_configurations(path: Path) -> None:
    found = load_config_from_file(str(path))
    assert found.num_processes == (1 if path.stem == "one_gpu" else 2)
    assert found.mixed_precision == "bf16"


def test_there_is_a_configuration_for_each_way() -> None:
    assert {p.stem for p in CONFIGS} == {"one_gpu", "multi_gpu", "fsdp", "deepspeed_zero3"}
