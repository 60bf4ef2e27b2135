"""The script for code tasks from flags to files: both objectives, patched, on tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_code
import tiny_task
from code_runs import MAKERS, run, run_writer
from transformers import AutoTokenizer

import hf_graphattn as ga
from finetune import code_classification, glue
from finetune.engine.progress import LOG

RECIPES = Path(code_classification.__file__).parent / "recipes"


def predictions(folder: Path) -> list[int]:
    header, *lines = (folder / "out" / "defect.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    return [int(line.split("\t")[1]) for line in lines]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_head_classifies_code_that_spells_end_tokens(tmp_path: Path, kind: str) -> None:
    results = run(tmp_path, kind, "--variant", "gfsa", "--filter_learning_rate", "0.01")
    assert (
        json.loads((tmp_path / "out" / "all_results.json").read_text())["eval_accuracy"]
        == (results["eval_accuracy"])
    )
    assert results["filter_max_abs"] > 0
    found = predictions(tmp_path)
    right = sum(x == i % 2 for i, x in enumerate(found))
    assert results["test_accuracy"] == pytest.approx(right / tiny_code.SIZES["test"])
    model = ga.from_pretrained(tmp_path / "out")
    assert type(model).__name__.endswith("ForSequenceClassification")
    assert model.config.id2label == {0: "false", 1: "true"}


@pytest.mark.parametrize(("kind", "rate"), [("t5", "0.02"), ("bart", "0.01")])
def test_a_decoder_learns_to_write_labels(tmp_path: Path, kind: str, rate: str) -> None:
    """The loss halves, for which it is enough to learn that labels are written at all."""
    results = run(
        tmp_path,
        kind,
        *("--objective", "generate", "--variant", "gfsa", "--filter_learning_rate", "0.01"),
        *("--num_train_epochs", "12", "--learning_rate", rate, "--lr_scheduler_type", "constant"),
    )
    lines = (tmp_path / "out" / LOG).read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]
    assert len(losses) == 24
    assert max(losses[-4:]) < losses[0] / 2
    assert results["filter_max_abs"] > 0


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_what_a_decoder_writes_is_scored_and_written_down(tmp_path: Path, kind: str) -> None:
    results = run_writer(tmp_path, kind, "true")
    assert results["label_words"] == ["false", "true"]
    assert results["eval_unknown"] == 0.0
    assert results["eval_accuracy"] == results["test_accuracy"] == 2 / 5  # every second row
    assert predictions(tmp_path) == [1] * 5
    # What was saved writes the same word.
    model = ga.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = dict(tokenizer("int f() { return a + 1; }", return_tensors="pt"))
    text = tokenizer.decode(model.generate(**inputs, max_new_tokens=3)[0], skip_special_tokens=True)
    assert text.strip() == "true"


def test_unknown_text_is_minus_one_in_the_predictions(tmp_path: Path) -> None:
    results = run_writer(tmp_path, "t5", "a")
    assert results["eval_unknown"] == 1.0
    assert results["eval_accuracy"] == results["test_accuracy"] == 0.0
    assert predictions(tmp_path) == [-1] * 5


def test_an_encoder_cannot_generate(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"BertConfig.*for this kind of AutoModel"):
        run(tmp_path, "bert", "--objective", "generate")


def test_a_head_of_an_encoder_decoder_needs_its_end_token(tmp_path: Path) -> None:
    tiny_task.save_tokenizer(tmp_path / "other")
    with pytest.raises(ValueError, match=r"tokenizer_name is '.*other'; allowed: .* token 1"):
        run(tmp_path, "t5", "--tokenizer_name", str(tmp_path / "other"))


@pytest.mark.parametrize(
    "path",
    sorted(path for kind in ("glue", "devign", "clone") for path in RECIPES.glob(f"{kind}-*.yaml")),
    ids=lambda path: path.stem,
)
def test_recipes_of_the_papers_parse(path: Path, tmp_path: Path) -> None:
    if path.name.startswith(("devign", "clone")):
        settings = code_classification.SCHEMA.parse(["--recipe", str(path), "--seed", "7"])
        assert (
            settings.data.task_name
            == {"devign": "defect", "clone": "clone"}[path.stem.split("-")[0]]
        )
        generates = path.stem.startswith("devign-codet5")
        assert (settings.model.objective == "generate") == generates
        assert settings.data.max_length == 512
        train = settings.train
        assert train.per_device_train_batch_size == 16
        if path.stem.startswith("devign"):
            assert (train.num_train_epochs, train.early_stopping_patience) == (10, 2)
    else:
        settings = glue.SCHEMA.parse(["--recipe", str(path), "--seed", "7"])
        orders = {"bert": (4, -0.01), "roberta": (6, -0.05), "albert": (10, 0.05)}
        assert (settings.variant.order, settings.variant.w_0) == orders[path.stem.split("-")[1]]
        assert settings.train.weight_decay == 0.0
    assert settings.train.seed == 7
    assert settings.filter.variant == "gfsa"
