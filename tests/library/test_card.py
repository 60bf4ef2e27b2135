"""The model card: what it says is so, and the hub's own client reads it as it was meant."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from cards import CONFIG, KINDS, blocks, made
from huggingface_hub import EvalResult, ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results
from peft import LoraConfig, get_peft_model
from tiny import MODELS, build
from transformers import PreTrainedModel

import hf_graphattn as ga
from hf_graphattn.sharing import license_of, plain_card

RESULTS = [
    EvalResult("text-classification", "glue", "CoLA", name, value, dataset_split="validation")
    for name, value in (("matthews_correlation", 0.25), ("accuracy", 0.5))
]


def patched(config: ga.VariantConfig | None = None, **how: Any) -> PreTrainedModel:
    return ga.patch_model(build("BERT", **how), config or ga.GFSAConfig())


def test_the_hubs_client_reads_every_field_back(tmp_path: Path) -> None:
    given = {
        "base_model": "google-bert/bert-base-uncased",
        "datasets": ["nyu-mll/glue"],
        "language": "en",
        "license": "apache-2.0",
    }
    card = ga.model_card(patched(), "user/name", results=RESULTS, tags=["own"], **given)
    card.save(tmp_path / "README.md")
    found = ModelCard.load(tmp_path / "README.md").data
    assert {name: getattr(found, name) for name in given} == given
    assert (found.library_name, found.pipeline_tag) == ("transformers", "text-classification")
    assert (found.model_name, found.base_model_relation) == ("name", "finetune")
    assert found.tags == ["hf_graphattn", "graph-filter-attention", "gfsa", "own"]
    assert [(each.metric_type, each.metric_value) for each in found.eval_results] == [
        (each.metric_type, each.metric_value) for each in RESULTS
    ]
    read: Any = metadata_load(tmp_path / "README.md")
    assert read == card.data.to_dict() == yaml.safe_load(card.data.to_yaml())
    name, results = model_index_to_eval_results(read["model-index"])
    assert (name, {each.dataset_split for each in results}) == ("name", {"validation"})
    assert "| CoLA | validation | accuracy | 0.5000 |" in f"{card}"


def test_learned_scalars_are_as_they_are_now_and_not_as_they_began() -> None:
    model = patched(ga.GFSAConfig(w_0=0.125, w_K=0.75, trainable=("w_K",)))
    values = [torch.randn(p.numel()) for _, p in ga.filter_parameters(model)]
    for (_, parameter), value in zip(ga.filter_parameters(model), values, strict=True):
        parameter.data.copy_(value)
    text = f"{ga.model_card(model, 'user/name')}"
    for layer, value in enumerate(values):
        least, most = float(value.min()), float(value.max())
        row = f"| {layer} | `w_K` | {least:.4g} | {median(value.tolist()):.4g} | {most:.4g} |"
        assert row in text
    assert "| `w_0` | 0.125 |" in text  # not learned
    assert "0.75" not in text
    several = patched(ga.PolynomialConfig(coefficients=(0, 1, 0.5)))
    text = f"{ga.model_card(several, 'user/name', training={'seed': 7})}"
    assert "| 1 | `coefficients[2]` | 0.5 | 0.5 | 0.5 |" in text
    assert "| seed | 7 |" in text
    fixed = f"{ga.model_card(patched(ga.LaplacianConfig(step=0.3)), 'user/name')}"
    assert "What was learned" not in fixed
    assert "## Training" not in fixed


def test_the_license_is_the_one_given_or_the_base_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "README.md"
    base.write_text("---\nlicense: mit\n---\n")
    assert license_of(str(tmp_path)) == "mit"
    monkeypatch.setattr("hf_graphattn.sharing.hf_hub_download", lambda *_, **__: str(base))
    told = {"base_model": "user/base"}
    assert ga.model_card(patched(), "user/name", **told).data.license == "mit"
    assert ga.model_card(patched(), "user/name", license="bsd", **told).data.license == "bsd"
    for text in ("no metadata\n", "---\nlicense: [a, b]\n---\n", "---\nlicense: [a\n---\n"):
        base.write_text(text)
        card = ga.model_card(patched(), "user/name", **told)
        assert card.data.license is None
        assert "Whoever publishes this adds one, as `license:`" in card.text
    base.unlink()
    assert license_of(str(tmp_path)) is None
    assert "No license is stated" not in ga.model_card(patched(), "user/x", license="mit").text


def test_a_push_passes_its_settings_on_and_fetches_the_license(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, base, cards = Mock(), tmp_path / "README.md", []
    base.write_text("---\nlicense: mit\n---\n")

    def download(*_: str, local_files_only: bool) -> str:
        return str(tmp_path / "none" if local_files_only else base)

    monkeypatch.setattr("hf_graphattn.sharing.hf_hub_download", download)
    monkeypatch.setattr("hf_graphattn.sharing.HfApi", api)
    hub = api.return_value
    hub.create_repo.return_value.repo_id = "user/name"
    hub.upload_folder.side_effect = lambda folder_path, **_: cards.append(
        ModelCard.load(Path(folder_path) / "README.md").data.license
    )
    how = {"revision": "draft", "create_pr": True, "commit_message": "one"}
    ga.push_to_hub(patched(), "name", private=True, token="t", base_model="user/base", **how)
    api.assert_called_once_with(token="t")
    hub.create_repo.assert_called_once_with("name", private=True, exist_ok=True)
    hub.create_branch.assert_called_once_with("user/name", branch="draft", exist_ok=True)
    assert hub.upload_folder.call_args.kwargs.items() >= {"repo_id": "user/name", **how}.items()
    assert cards == ["mit"]


def test_the_code_for_a_plain_model_is_that_which_can_load_it() -> None:
    """With its own code where it brings some; none where no class of transformers has its name."""
    model = build("BERT")
    about: dict[str, Any] = {
        "base_model": None,
        "datasets": (),
        "results": (),
        "license": "mit",
        "training": {},
    }
    whole = str(plain_card(model, "user/name", **about))
    assert 'AutoModelForSequenceClassification.from_pretrained("user/name")' in whole
    model.config.auto_map = {"AutoModel": "modeling.Own"}
    own = str(plain_card(model, "user/name", **about))
    assert '"user/name", trust_remote_code=True)' in own
    model.__class__ = type("Own", (type(model),), {})
    assert "## Usage" not in str(plain_card(model, "user/name", **about))


@pytest.mark.parametrize(
    ("kind", "example"),
    [("label", 3), ("label", ("a", "b", "c")), ("label", ""), ("image", "file.png"), ("sound", 3)],
)
def test_another_kind_of_input_is_refused(kind: str, example: Any) -> None:
    model, processor, _ = made(kind)
    with pytest.raises(ga.GraphAttentionError, match=f"allowed: for {KINDS[kind][0]} a"):
        ga.model_card(model, "user/name", tokenizer=processor, example=example)


def test_without_a_tokenizer_the_base_models_makes_the_inputs() -> None:
    of_base = f"{ga.model_card(patched(), 'user/name', base_model='user/base')}"
    assert 'AutoTokenizer.from_pretrained("user/base")' in of_base
    assert "AutoTokenizer" not in f"{ga.model_card(patched(), 'user/name')}"
    model = ga.patch_model(MODELS["BERT"](head="Model"), ga.GFSAConfig())
    card = ga.model_card(
        model, "user/name", base_model="user/base", example="A model with no task."
    )
    assert card.data.pipeline_tag is None
    assert "AutoModel.from_pretrained" in f"{card}"
    assert "inputs" not in f"{card}"
    for name, task in (
        ("BART", "text2text-generation"),
        ("Whisper", "automatic-speech-recognition"),
    ):
        writer = ga.patch_model(MODELS[name](), ga.GFSAConfig())
        card = ga.model_card(writer, "user/name", base_model="user/base")
        assert card.data.pipeline_tag == task
        assert "model.generate(" in card.text
    short = ga.patch_model(MODELS["GPT-2"](n_positions=16), ga.GFSAConfig())
    assert "max_new_tokens=8" in f"{ga.model_card(short, 'user/name', base_model='user/base')}"


# What the code of each kind prints for the example of `cards`.
PRINTED = {
    "label": r"(disturbed|real) 0\.\d{3}",
    "score": r"-?\d+\.\d{3}",
    "labels": r"\[('LABEL_[01]'(, )?)+\]",
    "mask": r"\S+",
    "text": r"Return the .+",
    "answer": "true",
    "image": r"LABEL_[012] 0\.\d{3}",
    "sound": r"\w+",
}
WITHOUT_EXAMPLE = ("label", "mask", "image", "sound")  # where the code differs


def run_code(code: str, folders: dict[str, Path], patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The variables of a card's code, run with folders in the place of repositories of the hub."""
    patch.setattr("huggingface_hub.hf_hub_download", lambda folder, name: str(Path(folder, name)))
    for repo_id, folder in folders.items():
        code = code.replace(f'"{repo_id}"', f'"{folder}"')
    variables: dict[str, Any] = {}
    exec(code, variables)
    return variables


def label_of(model: Any, tokenizer: Any, text: str) -> str:
    """What the code for the classification of text prints."""
    with torch.no_grad():
        shares = model.eval()(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
    best = int(shares.argmax())
    return f"{model.config.id2label[best]} {shares[best]:.3f}\n"


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_runs_as_shown(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, processor, example = made(kind)
    ga.save_repository(model, tmp_path, "user/name", tokenizer=processor, example=example)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.pipeline_tag == KINDS[kind][0]
    code, with_transformers = blocks(card.text)
    capsys.readouterr()
    run_code(code, {"user/name": tmp_path}, monkeypatch)
    printed = capsys.readouterr().out
    assert re.fullmatch(rf"(?s){PRINTED[kind]}\n", printed)
    if kind == "label":
        assert printed == label_of(model, processor, example)
    assert ga.is_patched(run_code(with_transformers, {"user/name": tmp_path}, monkeypatch)["model"])
    if kind in WITHOUT_EXAMPLE:
        code = blocks(ga.model_card(model, "user/name", tokenizer=processor))[0]
        assert "inputs" in run_code(code, {"user/name": tmp_path}, monkeypatch)


def test_the_code_of_a_filter_of_tokens_generates_without_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer, example = KINDS["text"][1]()
    ga.patch_model(model, ga.ContraNormConfig())
    ga.save_repository(model, tmp_path, "user/name", tokenizer=tokenizer, example=example)
    code = blocks((tmp_path / "README.md").read_text("utf-8"))[0]
    assert len(run_code(code, {"user/name": tmp_path}, monkeypatch)["tokens"][0]) > 2


def test_the_code_of_an_adapter_runs_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """LoRA with filters of its own."""
    folders = {"user/base": tmp_path / "base", "user/adapter": tmp_path / "adapter"}
    plain, tokenizer, example = KINDS["label"][1]()
    plain.save_pretrained(folders["user/base"])
    model = ga.patch_model(plain, CONFIG)
    saved = [*ga.peft_modules(model), "classifier"]
    adapted = get_peft_model(
        model, LoraConfig(target_modules=["query"], modules_to_save=saved, init_lora_weights=False)
    )
    adapted.save_pretrained(folders["user/adapter"])
    ga.save_filters(adapted, folders["user/adapter"])
    tokenizer.save_pretrained(folders["user/adapter"])
    about = {"base_model": "user/base", "tokenizer": tokenizer, "example": example}
    card = ga.model_card(adapted, "user/adapter", **about)
    assert (card.data.library_name, card.data.base_model_relation) == ("peft", "adapter")
    unknown = f"{ga.model_card(adapted, 'user/adapter')}"
    model.config.id2label, labels = dict(enumerate("abcdefghijk")), model.config.id2label
    many = blocks(ga.model_card(adapted, "user/adapter", base_model="user/base"))[0]
    assert '("user/base", num_labels=11)' in many
    model.config.id2label = labels
    assert "# FOLDER is the base model's: no hub is known to have it.\nbase = Auto" in unknown
    (code,) = blocks(card)
    capsys.readouterr()
    run_code(code, folders, monkeypatch)
    assert capsys.readouterr().out == label_of(adapted, tokenizer, example)
