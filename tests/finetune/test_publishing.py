"""`--push_to_hub` of a run, against the hub on the loopback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cards
import pytest
import tiny_code
import tiny_task
import torch
from glue_runs import flags, written
from hub_server import pushed
from huggingface_hub import ModelCard

import tasks
from finetune.engine import launch, publishing
from finetune.errors import Refused
from finetune.glue import SCHEMA


def test_a_run_is_pushed_with_its_metrics(tmp_path: Path) -> None:
    argv = flags(tmp_path, "cola", "--variant", "gfsa", "--order", "4", "--push_to_hub")
    argv += ["--hub_model_id", "user/cola", "--checkpointing_steps", "epoch"]
    argv += ["--license", "mit", "--hub_example"]
    files = pushed("glue", argv, "user/cola", tmp_path / "home")
    assert {"README.md", "graph_attn.py", "model.safetensors", "all_results.json"} <= set(files)
    assert not any(name.startswith("step_") or name.endswith(".lock") for name in files)
    card = files["README.md"].decode()
    assert "type: matthews_correlation" in card
    assert f"value: {written(tmp_path)['eval_loss']}" in card
    assert 'ga.from_pretrained("user/cola")' in card
    assert "license: mit" in card
    assert "| num_train_epochs | 1 |" in card
    assert "output_dir" not in card
    assert_a_row_is_shown(card)


def assert_a_row_is_shown(card: str) -> None:
    (row,) = re.findall(r'inputs = tokenizer\("(.+)", return_tensors', cards.blocks(card)[0])
    assert set(row.split()) <= set(tiny_task.WORDS)


@pytest.mark.full
def test_plain_attention_is_pushed_with_a_card_of_its_own(tmp_path: Path) -> None:
    """With the same numbers and settings as a patched model's, and transformers' own class."""
    argv = flags(tmp_path, "cola", "--variant", "none", "--push_to_hub", "--license", "mit")
    files = pushed("glue", [*argv, "--hub_model_id", "user/plain"], "user/plain", tmp_path / "home")
    assert "graph_attn.py" not in files
    card = ModelCard(files["README.md"].decode())
    assert (card.data.license, card.data.tags) == ("mit", ["hf_graphattn"])
    assert card.data.pipeline_tag == "text-classification"
    values = {each.metric_type: each.metric_value for each in card.data.eval_results}
    assert values["matthews_correlation"] == written(tmp_path)["eval_matthews_correlation"]
    assert "with plain attention" in card.text
    assert "| num_train_epochs | 1 |" in card.text
    (code,) = cards.blocks(card.text)
    assert code.endswith('AutoModelForSequenceClassification.from_pretrained("user/plain")')


def test_a_pushed_run_has_no_path_of_the_machine(tmp_path: Path) -> None:
    """`pushed` looks for that of its folder in all files; here in a language model's, tracked."""
    text = tmp_path / "secret" / "text.txt"
    text.parent.mkdir()
    text.write_text("one two three four five\n" * 20)
    argv = [
        *("--model_type", "gpt2", "--config_overrides", "n_layer=1,n_embd=8,n_head=2"),
        *("--tokenizer_name", "char", "--train_file", str(text), "--block_size", "16"),
        *("--validation_file", str(text), "--output_dir", str(tmp_path / "out")),
        *("--max_train_steps", "1", "--report_to", "tensorboard", "--do_predict"),
        *("--test_file", str(text), "--push_to_hub", "--hub_model_id", "user/lm"),
    ]
    files = pushed("lm", argv, "user/lm", tmp_path / "home")
    results = json.loads(files["all_results.json"])
    assert results["settings"]["train_file"] == ".../text.txt"
    assert results["data"]["train"]["files"] == {".../text.txt": text.stat().st_size}
    assert results["settings"]["hub_model_id"] == "user/lm"
    kept = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert kept["settings"]["train_file"] == str(text)
    assert list((tmp_path / "out").rglob("hparams.yml"))


@pytest.mark.full
def test_a_pushed_adapter_has_no_path_of_its_base(tmp_path: Path) -> None:
    """Without filters its card is PEFT's own, and with filters one that loads them."""
    tiny_code.save_data(tmp_path / "data")
    argv = [
        *("--model_name_or_path", str(tiny_code.save_t5(tmp_path / "t5")), "--max_length", "32"),
        *("--task_name", "defect", "--dataset_name", str(tmp_path / "data"), "--do_predict"),
        *("--output_dir", str(tmp_path / "out"), "--max_train_steps", "1", "--peft", "lora"),
        *("--push_to_hub", "--hub_model_id", "user/code"),
    ]
    files = pushed("code_classification", argv, "user/code", tmp_path / "home")
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == ".../t5"
    assert b"base_model: .../t5" in files["README.md"]
    argv += ["--variant", "gfsa", "--overwrite_output_dir"]
    files = pushed("code_classification", argv, "user/code", tmp_path / "home")
    card = files["README.md"].decode()
    assert 'ga.load_peft(base, "user/code")' in card
    assert "library_name: peft" in card


def test_files_of_one_name_are_all_kept(tmp_path: Path) -> None:
    sizes = {str(tmp_path / "a" / "x.csv"): 1, str(tmp_path / "b" / "x.csv"): 2, "hf/repo": 3}
    (tmp_path / "all_results.json").write_text(json.dumps({"data": sizes}))
    (made,) = publishing.additions(tmp_path)
    with made.as_file() as file:
        pushed_sizes = json.load(file)["data"]
    assert pushed_sizes == {".../x.csv": 1, ".../x.csv (2)": 2, "hf/repo": 3}


def test_evaluations_are_the_numbers_of_the_run_and_of_its_splits(tmp_path: Path) -> None:
    """A local folder of data is not named."""
    settings = SCHEMA.parse(flags(tmp_path, "mnli"))
    results = {"eval_accuracy": 0.5, "eval_accuracy_mm": 0.25, "train_loss": 1.0}
    results["greater_is_better"] = dict.fromkeys(("eval_accuracy", "eval_accuracy_mm"), True)
    found = list(publishing.evaluations(tasks.get("mnli"), settings, results))
    assert [(each.metric_type, each.dataset_split, each.metric_value) for each in found] == [
        ("accuracy", "validation_matched", 0.5),
        ("accuracy", "validation_mismatched", 0.25),
    ]
    settings.data.dataset_name = str(tmp_path)
    found = list(publishing.evaluations(tasks.get("mnli"), settings, results))
    assert {each.dataset_type for each in found} == {"mnli"}


def stand_in(folder: Path, model: Any = None, *, is_main: bool = True, **flags_: Any) -> Any:
    """A trainer whose run has ended."""
    arguments = [*flags(folder, "cola", "--push_to_hub"), *flags_.get("arguments", ())]
    return SimpleNamespace(
        accelerator=SimpleNamespace(is_main_process=is_main, unwrap_model=lambda model: model),
        task=tasks.get("cola"),
        settings=SCHEMA.parse(arguments),
        model=model,
        folder=folder,
        example=torch.tensor([1, 2]),
    )


@pytest.mark.parametrize(("is_main", "shows_row"), [(True, False), (False, True)])
def test_of_processes_that_share_a_model_one_asks_the_hub(
    tmp_path: Path, hub: type[Hub], is_main: bool, shows_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others need no token; all make the card, and one pushes. A row is shown on demand."""
    calls: list[Any] = []
    arguments = ("--variant", "gfsa", *(["--hub_example"] * shows_row))
    trainer = stand_in(tmp_path, is_main=is_main, arguments=arguments)
    facts, card = {"repo_id": "u/o"}, SimpleNamespace(save=lambda path: None)
    for name, function in {
        "_facts": lambda *_: calls.append("hub") or facts,
        "upload": lambda *_: calls.append("upload"),
        "save_example": lambda *_: None,
        "broadcast_object_list": lambda _: [facts],
        "ga.model_card": lambda *_, **made: calls.append(made) or card,
        "ga.is_patched": lambda model: True,
    }.items():
        monkeypatch.setattr(f"finetune.engine.publishing.{name}", function)
    processor = SimpleNamespace(decode=lambda ids: f"{ids.tolist()}")
    publishing.push(trainer, processor, {})
    made = facts | {"tokenizer": processor, "example": "[1, 2]" if shows_row else None}
    assert calls == (["hub", made, "upload"] if is_main else [made])


class Hub:
    """A hub's client that fails, or else remembers the repositories that were made."""

    made: tuple[str, ...] = ()
    error: Exception | None = None

    def create_repo(self, name: str, **_: Any) -> Any:
        if self.error is not None:
            raise self.error
        Hub.made += (name,)
        return SimpleNamespace(repo_id=f"user/{name}")

    def create_commit(self, *_: Any, **__: Any) -> None:
        raise OSError("the line\nwas cut")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    monkeypatch.setattr(publishing, "HfApi", Hub)
    monkeypatch.setattr(Hub, "made", ())
    return Hub


def test_what_cannot_be_pushed_is_refused_before_training(
    tmp_path: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = stand_in(tmp_path).settings
    assert publishing.repository(settings) == "user/out"
    assert hub.made == ("out",)
    monkeypatch.setattr(hub, "error", ConnectionError("no route"))
    words = "The repository 'out' cannot be pushed to; .*hf auth login.*: no route"
    with pytest.raises(Refused, match=words), launch.start(settings):
        pass
    with pytest.raises(Refused, match="push_to_hub is True; allowed: False with do_eval_only"):
        SCHEMA.parse(flags(tmp_path, "cola", "--push_to_hub", "--do_eval_only"))


def test_a_push_that_fails_says_that_the_folder_is_whole(tmp_path: Path, hub: type[Hub]) -> None:
    with pytest.raises(
        Refused, match=r"is whole, but could not be pushed \(`python .*upload\(.*'user/out'"
    ):
        publishing.upload(tmp_path, "user/out")
