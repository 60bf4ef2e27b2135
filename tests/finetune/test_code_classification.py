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
from finetune.engine.progress import LOG
from finetune.engine.results import EVALUATED
from finetune.experiments import examples


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


def test_a_decoder_learns_to_write_labels(tmp_path: Path) -> None:
    """The loss halves, for which it is enough to learn that labels are written at all."""
    flags = ("--objective", "generate", "--variant", "gfsa", "--filter_learning_rate", "0.01")
    flags += ("--num_train_epochs", "12", "--learning_rate", "0.02")
    results = run(tmp_path, "t5", *flags, "--lr_scheduler_type", "constant")
    lines = (tmp_path / "out" / LOG).read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]
    assert len(losses) == 24
    assert max(losses[-4:]) < losses[0] / 2
    assert results["filter_max_abs"] > 0


@pytest.mark.parametrize(("kind", "text"), [("t5", "true"), ("bart", "true"), ("t5", "a")])
def test_what_a_decoder_writes_is_scored_and_written_down(
    tmp_path: Path, kind: str, text: str
) -> None:
    """Another text than a label's word is -1 in the predictions, and a wrong answer."""
    results = run_writer(tmp_path, kind, text)
    is_known = text == "true"
    assert results["label_words"] == ["false", "true"]
    assert results["eval_unknown"] == (not is_known)
    accuracy = 2 / 5 if is_known else 0.0  # every second row
    assert results["eval_accuracy"] == results["test_accuracy"] == accuracy
    evaluated = examples.read(tmp_path / "out" / EVALUATED.format(""))
    assert (evaluated.label == evaluated.prediction).mean() == accuracy
    assert predictions(tmp_path) == [1 if is_known else -1] * 5
    if not is_known:
        return
    # What was saved writes the same word.
    model = ga.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = dict(tokenizer("int f() { return a + 1; }", return_tensors="pt"))
    text = tokenizer.decode(model.generate(**inputs, max_new_tokens=3)[0], skip_special_tokens=True)
    assert text.strip() == "true"


def test_a_head_of_an_encoder_decoder_needs_its_end_token(tmp_path: Path) -> None:
    tiny_task.save_tokenizer(tmp_path / "other")
    with pytest.raises(ValueError, match=r"tokenizer_name is '.*other'; allowed: .* token 1"):
        run(tmp_path, "t5", "--tokenizer_name", str(tmp_path / "other"))
