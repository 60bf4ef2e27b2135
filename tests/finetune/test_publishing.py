"""`--push_to_hub` of a run, against the hub on the loopback."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cards
import image_runs
import pytest
import tiny_code
import tiny_task
import torch
from accelerate import PartialState
from glue_runs import flags, written
from hub_server import pushed
from huggingface_hub import ModelCard
from PIL import Image
from transformers import AutoImageProcessor, SwinConfig, ViTImageProcessorPil

import hf_graphattn as ga
import tasks
from finetune.engine import launch, publishing, run
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


@pytest.mark.full
def test_an_adapter_is_pushed_with_a_card_that_loads_it(tmp_path: Path) -> None:
    argv = flags(tmp_path, "cola", "--variant", "gfsa", "--peft", "lora", "--push_to_hub")
    argv += ["--hub_example"]
    files = pushed("glue", [*argv, "--hub_model_id", "user/lora"], "user/lora", tmp_path / "home")
    card = files["README.md"].decode()
    assert 'ga.load_peft(base, "user/lora")' in card
    assert "library_name: peft" in card
    assert "More Information Needed" not in card
    assert_a_row_is_shown(card)


@pytest.mark.full
def test_a_patched_swin_is_pushed_as_a_classifier_of_images(tmp_path: Path) -> None:
    """What is in the repository is the model that was trained, with what makes its inputs."""
    swin = {"depths": [1, 1], "num_heads": [2, 2], "embed_dim": 8, "window_size": 2}
    config = SwinConfig(image_size=16, patch_size=2, num_channels=3, **swin)
    config.save_pretrained(tmp_path / "swin")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "swin")
    argv = image_runs.replaced(
        image_runs.flags(tmp_path, "--config_name", str(tmp_path / "swin"), "--variant", "gfsa"),
        model_type=None,
        config_overrides=None,
    )
    argv += ["--push_to_hub", "--hub_model_id", "user/swin", "--hub_example"]
    files = pushed("image_classification", argv, "user/swin", tmp_path / "home")
    card = files["README.md"].decode()
    assert Image.open(io.BytesIO(files["example.png"])).size == (8, 8)
    assert 'hf_hub_download("user/swin", "example.png")' in card
    assert "pipeline_tag: image-classification" in card
    assert "type: image-classification" in card
    assert "type: top5_accuracy" in card
    for name, content in files.items():
        (tmp_path / "pulled").mkdir(exist_ok=True)
        (tmp_path / "pulled" / name).write_bytes(content)
    found = AutoImageProcessor.from_pretrained(tmp_path / "pulled")
    image = Image.fromarray(image_runs.pixels(1))
    inputs = found(image, return_tensors="pt")
    pulled, own = (ga.from_pretrained(tmp_path / name).eval() for name in ("pulled", "out"))
    assert type(pulled).__name__ == "SwinForImageClassification"
    assert ga.is_patched(pulled)
    with torch.no_grad():
        assert torch.equal(pulled(**inputs).logits, own(**inputs).logits)


def test_a_pushed_run_tells_no_path_of_the_machine(tmp_path: Path) -> None:
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
    said = json.loads(files["all_results.json"])
    assert said["settings"]["train_file"] == ".../text.txt"
    assert said["data"]["train"]["files"] == {".../text.txt": text.stat().st_size}
    assert said["settings"]["hub_model_id"] == "user/lm"
    kept = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert kept["settings"]["train_file"] == str(text)
    assert list((tmp_path / "out").rglob("hparams.yml"))


@pytest.mark.full
def test_a_pushed_adapter_tells_no_path_of_its_base(tmp_path: Path) -> None:
    """Without filters its card is PEFT's own."""
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


def test_files_of_one_name_are_all_told(tmp_path: Path) -> None:
    sizes = {str(tmp_path / "a" / "x.csv"): 1, str(tmp_path / "b" / "x.csv"): 2, "hf/repo": 3}
    (tmp_path / "all_results.json").write_text(json.dumps({"data": sizes}))
    (made,) = publishing.additions(tmp_path)
    with made.as_file() as file:
        said = json.load(file)["data"]
    assert said == {".../x.csv": 1, ".../x.csv (2)": 2, "hf/repo": 3}


def test_evaluations_are_the_numbers_of_the_run(tmp_path: Path) -> None:
    settings = SCHEMA.parse(flags(tmp_path, "mrpc"))
    results = {"eval_f1": 0.5, "eval_accuracy": 0.25, "train_loss": 1.0, "best": {"value": 2.0}}
    results |= {"eval_runtime": 3.0, "greater_is_better": {"eval_f1": True, "eval_accuracy": True}}
    found = publishing.evaluations(tasks.get("mrpc"), settings, results)
    assert [(each.metric_type, each.metric_value) for each in found] == [
        ("f1", 0.5),
        ("accuracy", 0.25),
    ]


def test_each_split_has_its_own_evaluations(tmp_path: Path) -> None:
    """MNLI's second validation set is not told as if it were the first."""
    settings = SCHEMA.parse(flags(tmp_path, "mnli"))
    results = {"eval_accuracy": 0.5, "eval_accuracy_mm": 0.25}
    results["greater_is_better"] = dict.fromkeys(results, True)
    found = publishing.evaluations(tasks.get("mnli"), settings, results)
    assert [(each.metric_type, each.dataset_split, each.metric_value) for each in found] == [
        ("accuracy", "validation_matched", 0.5),
        ("accuracy", "validation_mismatched", 0.25),
    ]


def test_a_local_folder_of_data_is_not_told(tmp_path: Path) -> None:
    settings = SCHEMA.parse(flags(tmp_path, "mrpc"))
    settings.data.dataset_name = str(tmp_path)
    results = {"eval_f1": 0.5, "greater_is_better": {"eval_f1": True}}
    (found,) = publishing.evaluations(tasks.get("mrpc"), settings, results)
    assert found.dataset_type == "mrpc"


def test_a_row_is_shown_unasked_only_if_anyone_may_read_the_data(
    tmp_path: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset of the hub that is open, or the project's own."""
    rows = tmp_path / "rows.csv"
    rows.write_text("sentence,label\na,b\n")
    base = ["--model_name_or_path", "m", "--output_dir", str(tmp_path / "o")]
    cola, files = (
        ["--task_name", "cola"],
        [
            *("--train_file", str(rows)),
            *("--validation_file", str(rows)),
        ],
    )
    own = SimpleNamespace(dataset_name=None, builder=lambda: None)  # as finetune makes it of files
    cases = {
        "own files": (own, files, False),
        "own folder": (tasks.get("cola"), [*cola, "--dataset_name", str(tmp_path)], False),
        "the task's": (tasks.get("cola"), cola, True),
        "another of the hub": (tasks.get("cola"), [*cola, "--dataset_name", "nyu-mll/glue"], True),
        "private": (tasks.get("cola"), [*cola, "--dataset_name", "company/mails"], False),
        "gated": (tasks.get("cola"), [*cola, "--dataset_name", "ILSVRC/imagenet-1k"], False),
        "the project's": (tasks.get("demo", "glue"), ["--task_name", "demo"], True),
        "of one's own code": (own, ["--task_name", "demo"], False),
    }
    for task, words, is_shown in cases.values():
        for said, expected in (((), is_shown), (("true",), True), (("false",), False)):
            settings = SCHEMA.parse([*base, *words, *(["--hub_example", *said] if said else [])])
            assert publishing.shows_row(settings, task) == expected
    monkeypatch.setattr(hub, "error", ConnectionError("no route"))
    assert not publishing.shows_row(SCHEMA.parse([*base, *cola]), tasks.get("cola"))


@pytest.mark.parametrize("is_main", [True, False])
def test_of_processes_that_share_a_model_one_asks_the_hub(
    tmp_path: Path, is_main: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others need no token; all make the card, and one pushes."""
    PartialState()  # what the log asks for
    asked, told = [], publishing.Target("user/out", "mit", True)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(is_main_process=is_main, unwrap_model=lambda model: model),
        task=tasks.get("cola"),
        settings=SCHEMA.parse(flags(tmp_path, "cola", "--variant", "gfsa")),
        model=None,
        folder=tmp_path,
        example=torch.tensor([1, 2]),
    )
    monkeypatch.setattr(publishing, "target", lambda *_: asked.append("hub") or told)
    monkeypatch.setattr(publishing, "push", lambda *_: asked.append("push"))
    monkeypatch.setattr(publishing, "card_of", lambda *of: asked.append(of[1:2] + of[-1:]))
    monkeypatch.setattr(run, "is_spread", lambda model: True)
    monkeypatch.setattr(run, "broadcast_object_list", lambda found: [told])
    monkeypatch.setattr(run.ga, "is_patched", lambda model: True)
    processor = SimpleNamespace(decode=lambda ids: f"{ids.tolist()}")
    run.push(trainer, processor, {})
    card = (told, "[1, 2]")
    assert asked == (["hub", card, "push"] if is_main else [card])


class Hub:
    """A hub's client that fails, or else remembers what it was asked for."""

    made: tuple[str, ...] = ()
    error: Exception | None = None

    def create_repo(self, name: str, **_: Any) -> Any:
        if self.error is not None:
            raise self.error
        Hub.made += (name,)
        return SimpleNamespace(repo_id=f"user/{name}")

    def dataset_info(self, name: str, token: object) -> Any:
        assert token is False  # as anyone sees it
        if self.error is not None or name == "company/mails":
            raise self.error or OSError("401")
        return SimpleNamespace(gated="auto" if name.startswith("ILSVRC") else False)

    def create_commit(self, *_: Any, **__: Any) -> None:
        raise OSError("the line\nwas cut")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    monkeypatch.setattr(publishing, "HfApi", Hub)
    monkeypatch.setattr(publishing, "get_token", lambda: "hf_x")
    monkeypatch.setattr(Hub, "made", ())
    return Hub


def asked(folder: Path, *more: str) -> Any:
    return SCHEMA.parse(flags(folder, "cola", "--push_to_hub", *more))


def test_what_cannot_be_pushed_is_refused_before_training(
    tmp_path: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publishing.repository(asked(tmp_path)) == "user/out"
    assert hub.made == ("out",)
    with pytest.raises(ValueError, match="hub_model_id is 'a/b/c'; allowed: the name of a hub"):
        publishing.repository(asked(tmp_path, "--hub_model_id", "a/b/c"))
    monkeypatch.setattr(hub, "error", ConnectionError("no route"))
    with pytest.raises(Refused, match="The repository 'out' cannot be pushed to: no route"):
        publishing.repository(asked(tmp_path))
    monkeypatch.setattr(publishing, "get_token", lambda: None)
    told = r"token of the hub; there is none here.*hf auth login"
    with pytest.raises(Refused, match=told), launch.start(asked(tmp_path)):
        pass
    with pytest.raises(Refused, match="push_to_hub is True; allowed: False with do_eval_only"):
        asked(tmp_path, "--do_eval_only")


def test_a_push_that_fails_says_that_the_folder_is_whole(tmp_path: Path, hub: type[Hub]) -> None:
    with pytest.raises(
        Refused, match=r"is whole, but could not be pushed \(`python .*upload\(.*'user/out'"
    ):
        publishing.push(tmp_path, publishing.repository(asked(tmp_path)), "cola: none")


def test_the_example_of_an_earlier_push_is_not_pushed_again(
    tmp_path: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "create_commit", lambda *_, **__: "address")
    image = Image.fromarray(image_runs.pixels(1))
    publishing.push(tmp_path, "user/out", "cola: gfsa", ModelCard("with"), image)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "example.png"]
    publishing.push(tmp_path, "user/out", "cola: gfsa", ModelCard("without"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md"]
