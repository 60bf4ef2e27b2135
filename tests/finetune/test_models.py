"""Loading: number format, labels, heads, padding, filters, and the optimizer's groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import tiny_task
import torch
from accelerate import PartialState
from transformers import AutoConfig, BertForSequenceClassification, PreTrainedModel, ViTConfig

import hf_graphattn as ga
import tasks
from finetune import glue
from finetune.models import loading
from finetune.settings.schema import Run
from hf_graphattn.shell import diagnose

MNLI = tasks.get("mnli")
TOKENIZER = SimpleNamespace(pad_token_id=7)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return tiny_task.save_bert(tmp_path / "bert")


def settings(path: Path, *flags: str) -> Run:
    return glue.SCHEMA.parse(["--model_name_or_path", str(path), "--output_dir", "o", *flags])


def load(path: Path, task: tasks.Task, *flags: str) -> tuple[PreTrainedModel, list[int]]:
    chosen = settings(path, *flags)
    config, order = loading.load_config(chosen.model, task, TOKENIZER)
    return loading.load_model(chosen, config), order


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_tokenizer_that_transformers_makes_up_is_refused(
    tmp_path: Path, bert: Path, kind: str
) -> None:
    """Some have special tokens alone, some a blank and an unknown one beside: no words in any."""
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    refused = r"with a tokenizer, instead of which .*save_pretrained.*--tokenizer_name"
    with pytest.raises(ValueError, match=refused):
        loading.load_tokenizer(settings(tmp_path).model)
    with pytest.raises(ga.GraphAttentionError, match=r"^--model is .*; allowed: a model beside"):
        diagnose.load_tokenizer(str(tmp_path))
    named = settings(tmp_path, "--tokenizer_name", str(bert))
    assert len(loading.load_tokenizer(named.model)) > 5


def test_a_tokenizer_of_characters_needs_no_file(tmp_path: Path) -> None:
    AutoConfig.for_model("canine").save_pretrained(tmp_path)
    assert len(loading.load_tokenizer(settings(tmp_path).model)) > 1e6


def test_weights_are_float32_whatever_the_checkpoint_has(bert: Path) -> None:
    BertForSequenceClassification.from_pretrained(bert).bfloat16().save_pretrained(bert)
    assert AutoConfig.from_pretrained(bert).dtype == torch.bfloat16
    model, _ = load(bert, tasks.get("cola"), "--variant", "gfsa")
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_labels_and_head_of_each_objective(bert: Path) -> None:
    cola, order = load(bert, tasks.get("cola"))
    assert cola.config.label2id == {"unacceptable": 0, "acceptable": 1}
    assert order == [0, 1]
    stsb, order = load(bert, tasks.get("stsb"), "--ignore_mismatched_sizes")
    assert (stsb.num_labels, stsb.config.problem_type, order) == (1, "regression", [])


def test_labels_that_differ_in_case_alone_keep_their_order() -> None:
    task = replace(MNLI, label_names=("a", "A", "b"))
    config = ViTConfig(
        id2label={0: "A", 1: "b", 2: "a"}, architectures=["ViTForImageClassification"]
    )
    found, order = loading.labelled(config, task, "letters")
    assert order == [2, 0, 1]
    assert found.id2label == {0: "A", 1: "b", 2: "a"}


def test_a_model_trained_on_mnli_keeps_its_own_label_order(tmp_path: Path) -> None:
    labels = ["CONTRADICTION", "ENTAILMENT", "NEUTRAL"]
    path = tiny_task.save_bert(
        tmp_path, id2label=dict(enumerate(labels)), label2id={n: i for i, n in enumerate(labels)}
    )
    model, order = load(path, MNLI)
    assert order == [1, 2, 0]
    assert model.config.id2label == {1: "entailment", 2: "neutral", 0: "contradiction"}


def test_other_label_names_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labels = {0: "red", 1: "green", 2: "blue"}
    path = tiny_task.save_bert(
        tmp_path, id2label=labels, label2id={n: i for i, n in labels.items()}
    )
    model = settings(path).model
    PartialState()  # accelerate's logger asks it which process this is
    _, order = loading.load_config(model, MNLI, TOKENIZER)
    assert order == [0, 1, 2]
    assert "labels are red, green, blue, those of task mnli entailment, neutral" in caplog.text


def test_a_head_of_another_size_is_refused_and_the_remedy_works(bert: Path) -> None:
    with pytest.raises(ValueError, match=r"with weights that fit.*`ignore_mismatched_sizes`"):
        load(bert, MNLI)
    with pytest.raises(ValueError, match=r"with weights that fit.*this kind of AutoModel"):
        load(Path("finetune/demo/wav2vec2"), MNLI)
    model, order = load(bert, MNLI, "--ignore_mismatched_sizes")
    assert (model.classifier.out_features, order) == (3, [0, 1, 2])


def test_a_patched_folder_keeps_its_filter(bert: Path, tmp_path: Path) -> None:
    model, _ = load(bert, tasks.get("cola"), "--variant", "gfsa", "--order", "4")
    with torch.no_grad():
        for _, parameter in ga.filter_parameters(model):
            parameter.fill_(0.25)
    model.save_pretrained(tmp_path / "patched")
    again, _ = load(tmp_path / "patched", tasks.get("cola"))
    assert {x for _, p in ga.filter_parameters(again) for x in p.tolist()} == {0.25}
    assert again.config.graph_attn["settings"]["order"] == 4
    with pytest.raises(ValueError, match=r"variant is 'plat'; allowed: none, since .* with gfsa"):
        load(tmp_path / "patched", tasks.get("cola"), "--variant", "plat")


def test_backend_is_honoured_with_and_without_a_filter(bert: Path) -> None:
    plain, _ = load(bert, tasks.get("cola"), "--backend", "eager")
    assert plain.config._attn_implementation == "eager"
    patched, _ = load(bert, tasks.get("cola"), "--backend", "eager", "--variant", "gfsa")
    assert {f.backend for f in ga.graph_filters(patched).values()} == {"eager"}
    with pytest.raises(ValueError, match="backend is 'fast'"):
        load(bert, tasks.get("cola"), "--backend", "fast", "--variant", "gfsa")


def test_gpt2_gets_a_padding_token(tmp_path: Path) -> None:
    tiny.build("GPT-2", "ForSequenceClassification", pad_token_id=None).save_pretrained(tmp_path)
    config, _ = loading.load_config(settings(tmp_path).model, tasks.get("cola"), TOKENIZER)
    assert config.pad_token_id == 7


def test_filter_statistics(bert: Path) -> None:
    model, _ = load(bert, tasks.get("cola"), "--variant", "laplacian", "--trainable", "step")
    with torch.no_grad():
        next(ga.filter_parameters(model))[1][2] = -3.0
    unknown = {"filter_min_moved": None, "filter_max_moved": None}
    found = {"filter_scalars": 8, "filter_max_abs": 3.0, **unknown}
    assert loading.filter_statistics(model) == found
    start = loading.trained_scalars(model)
    with torch.no_grad():
        for (_, scalar), step in zip(ga.filter_parameters(model), (0.25, 0.125), strict=True):
            scalar.sub_(step)
    moved = loading.filter_statistics(model, start)
    assert moved["filter_max_moved"] == pytest.approx(0.25)
    assert moved["filter_min_moved"] == pytest.approx(0.125)
    plain, _ = load(bert, tasks.get("cola"))
    nothing = {"filter_scalars": 0, "filter_max_abs": None, **unknown}
    assert loading.filter_statistics(plain) == nothing
