"""transformers' own names of flags: read as ours where they mean the same, else refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_task
from transformers import AutoConfig, AutoModelForSequenceClassification

import hf_graphattn as ga
import tasks
from finetune import glue, lm
from finetune.errors import Refused
from finetune.experiments.arms import Script
from finetune.experiments.plan import common_flags
from finetune.models import loading
from finetune.settings.groups import ModelArguments

BASE = ("--model_name_or_path", "m", "--output_dir", "o")


def flat(*words: str) -> dict[str, Any]:
    return glue.SCHEMA.parse([*BASE, *words]).flat()


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--max_seq_length 64", "max_length", 64),
        ("--max-length=64", "max_length", 64),
        ("--fp16", "mixed_precision", "fp16"),
        ("--bf16", "mixed_precision", "bf16"),
        ("--save_strategy epoch", "checkpointing_steps", "epoch"),
        ("--save_steps 50", "checkpointing_steps", "50"),
        ("--save_total_limit 2", "checkpoints_total_limit", 2),
        ("--do_train --do_eval", "do_eval_only", False),
        ("--do_train", "do_eval_only", False),
        ("--do_eval", "do_eval_only", True),
        ("--max_steps 9", "max_train_steps", 9),
        ("--warmup_steps 9", "num_warmup_steps", 9),
        ("--model_revision v2", "revision", "v2"),
        ("--revision v2 --cache_dir /tmp/models", "cache_dir", "/tmp/models"),
        ("--trust_remote_code", "trust_remote_code", True),
    ],
)
def test_another_name_says_what_our_flag_says(words: str, name: str, value: object) -> None:
    found = flat(*words.split())
    assert found[name] == value
    assert found.keys() == flat().keys()  # results are told under our names alone


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--save_strategy steps", "^checkpointing_steps is 'steps'; allowed: a whole number"),
        ("--save_steps 0.1", "^checkpointing_steps is '0.1'; allowed: a whole number"),
        ("--trust_remote_code --variant gfsa", "^trust_remote_code with variant gfsa is True; all"),
        ("--epochs 3", r"Did you mean --num_train_epochs\?"),
        ("--per_device_batch_size 8", "Did you mean .*--per_device_train_batch_size"),
        ("--variant gfas", "variant is 'gfas'; .* Did you mean gfsa?"),
    ],
)
def test_refusals(words: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        flat(*words.split())


def test_a_revision_is_of_a_repository(tmp_path: Path) -> None:
    base = ["--output_dir", "o", "--revision", "v2"]
    with pytest.raises(Refused, match=f"revision is 'v2'; allowed: None with {tmp_path}, a f"):
        glue.SCHEMA.parse([*base, "--model_name_or_path", str(tmp_path)])
    with pytest.raises(Refused, match="revision is 'v2'; allowed: None with model_type"):
        lm.SCHEMA.parse([*base, "--model_type", "gpt2", "--tokenizer_name", "char"])


def test_a_recipe_has_our_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("checkpointing_steps: 5\ndo_eval_only: true\nmax_length: 64\n")
    found = flat("--recipe", str(path), "--save_strategy", "epoch", "--max_seq_length", "32")
    assert [found[n] for n in ("checkpointing_steps", "do_eval_only", "max_length")] == [
        "epoch",
        True,
        32,
    ]
    path.write_text("max_seq_length: 64\n")
    with pytest.raises(Refused, match="flag max_seq_length is"):
        flat("--recipe", str(path))


def test_comparisons_take_them_too() -> None:
    words = ["--do_train", "--do_eval", "--max_seq_length", "64", "--save_strategy", "epoch"]
    found = common_flags(Script(Path(glue.__file__)), words)
    assert found == {"max_length": 64, "checkpointing_steps": "epoch"}


class Recorder:
    """Stands for an Auto class: gives what `from_pretrained` was called with."""

    @staticmethod
    def from_pretrained(name: str, **options: Any) -> dict[str, Any]:
        return {"name": name, **options}


def test_where_a_model_is_on_the_hub_reaches_all_that_is_loaded() -> None:
    arguments = ModelArguments("me/model", revision="v2", cache_dir="c", tokenizer_name="me/other")
    where = {"cache_dir": "c", "trust_remote_code": False}
    found = loading.pretrained(Recorder, "me/model", arguments, backend="pil")
    assert found == {"name": "me/model", "revision": "v2", "backend": "pil", **where}
    # A tokenizer of another repository has other revisions.
    assert loading.pretrained(Recorder, "me/other", arguments) == {"name": "me/other", **where}
    # Nor is its code that of the model's repository, which was allowed.
    trusting = ModelArguments("me/model", trust_remote_code=True, tokenizer_name="me/other")
    for name, is_own in (("me/model", True), ("me/other", False)):
        assert loading.pretrained(Recorder, name, trusting)["trust_remote_code"] is is_own


def test_what_cannot_be_loaded_is_told_in_a_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for name, arguments in (
        ("model_name_or_path", ModelArguments(str(empty))),
        ("tokenizer_name", ModelArguments("m", tokenizer_name=str(empty))),
    ):
        with pytest.raises(Refused, match=rf"^{name} is '.*empty'; allowed: .* AutoConfig can"):
            loading.pretrained(AutoConfig, str(empty), arguments)


CODE = """
from transformers import BertConfig, BertForSequenceClassification


class OwnConfig(BertConfig):
    model_type = "own-bert"


class Own(BertForSequenceClassification):
    config_class = OwnConfig
"""
OWN = {
    "model_type": "own-bert",
    "architectures": ["Own"],
    "auto_map": {
        "AutoConfig": "own.OwnConfig",
        "AutoModelForSequenceClassification": "own.Own",
    },
}


def test_a_repositorys_own_code_runs_where_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    monkeypatch.syspath_prepend(str(tmp_path / "m"))
    folder = tiny_task.save_bert(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | OWN))
    (folder / "own.py").write_text(CODE)

    def load(*words: str) -> Any:
        argv = ["--model_name_or_path", str(folder), "--output_dir", "o", *words]
        settings = glue.SCHEMA.parse(argv)
        config, _ = loading.load_config(
            settings.model, tasks.get("cola"), SimpleNamespace(pad_token_id=0)
        )
        return loading.load_model(settings, config)

    with pytest.raises(Refused, match=r"^model_name_or_path is .*trust_remote_code"):
        load()
    model = load("--trust_remote_code")
    assert type(model).__name__ == "Own"
    assert model.config.id2label[1] == "acceptable"
    untrained = loading.load_model(
        SimpleNamespace(
            model=ModelArguments(None, trust_remote_code=True),  # type: ignore[arg-type]
            filter=SimpleNamespace(backend="auto"),
            variant=None,
        ),
        model.config,
    )
    assert type(untrained).__name__ == "Own"


def test_a_patched_folder_needs_no_trust(tmp_path: Path) -> None:
    folder = tiny_task.save_bert(tmp_path / "bert")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    ga.patch_model(model, ga.GFSAConfig()).save_pretrained(folder)
    words = ["--model_name_or_path", str(folder), "--output_dir", "o", "--trust_remote_code"]
    settings = glue.SCHEMA.parse(words)
    config, _ = loading.load_config(
        settings.model, tasks.get("cola"), SimpleNamespace(pad_token_id=0)
    )
    assert ga.is_patched(loading.load_model(settings, config))
