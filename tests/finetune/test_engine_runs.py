"""Whole runs through the script: early stopping, the best weights, logs, what is predicted."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import tiny_task
import torch
from glue_runs import flags
from transformers import AutoTokenizer, BertForSequenceClassification

import hf_graphattn as ga
import tasks
from finetune import glue
from finetune.engine import checkpoints, results, storage
from finetune.engine.progress import LOG, Selection
from finetune.engine.results import EVALUATED, write_json
from finetune.errors import Refused
from finetune.experiments import examples
from finetune.settings.training import TrainArguments
from tasks.metrics import scores

RATE = ("--learning_rate", "0.02")


def test_the_best_epoch_is_tested_saved_and_logged(tmp_path: Path) -> None:
    # The highest loss counts as the best, so that learning ends the run early.
    stopping = ("--early_stopping_patience", "2", "--metric_for_best_model", "loss")
    stopping += ("--greater_is_better",)
    long = ("--num_train_epochs", "12", "--do_predict", "--report_to", "tensorboard")
    argv = flags(tmp_path, "cola", *RATE, "--variant", "gfsa", "--layers", "0", *stopping, *long)
    results = glue.main(argv)
    losses = [epoch["eval_loss"] for epoch in results["history"]]
    best = losses.index(max(losses))
    # Two epochs without a better one, then the end, and it was before the last.
    assert len(losses) == best + 3 < 12
    when = {"epoch": best + 1, "step": 2 * (best + 1)}
    assert results["best"] == {"metric": "eval_loss", "value": losses[best], **when}
    assert (results["eval_loss"], results["weights_of_epoch"]) == (losses[best], best + 1)
    out = tmp_path / "out"
    assert [p.name for p in checkpoints.listed(out)] == [f"step_{2 * (best + 1)}"]
    assert (out / "CoLA.tsv").is_file()
    assert list(out.rglob("events.out.tfevents*"))
    lines = [json.loads(line) for line in (out / LOG).read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, results["steps"] + 1))
    assert all(line["tokens_per_s"] > 0 and line["tokens"] > 4 for line in steps)
    assert [line["eval_loss"] for line in lines if "eval_loss" in line] == losses
    # The saved model is the best epoch's: measured again without training it gives its loss.
    again = flags(tmp_path, "cola", "--do_eval_only", "--output_dir", str(tmp_path / "measured"))
    again[again.index(str(tmp_path / "bert"))] = str(out)
    measured = glue.main(again)
    assert measured["eval_loss"] == pytest.approx(losses[best], abs=1e-6)
    assert "train_loss" not in measured
    assert ga.is_patched(ga.from_pretrained(out))
    assert not (tmp_path / "measured" / "model.safetensors").exists()


def test_a_failed_final_save_keeps_the_model_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = flags(tmp_path, "cola")
    glue.main(argv)
    (tmp_path / "out" / "model.safetensors").write_bytes(b"the former")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "commit_files", full)
    with pytest.raises(storage.SaveError, match=r"No space left.*room on its disk.*are unchanged"):
        glue.main(argv)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"the former"


DIRECTIONS = {
    **{"eval_accuracy": True, "eval_loss": False, "eval_loss_mm": False, "eval_own": None},
    **{"eval_perplexity": False, "eval_unknown": False},
}


def test_direction_of_the_metric() -> None:
    def selection(name: str | None, greater: bool | None) -> Selection:
        flags = {"metric_for_best_model": name, "greater_is_better": greater}
        return Selection.of(TrainArguments(output_dir="o", **flags), "accuracy", DIRECTIONS)

    for name, greater, metric, expected in (
        (None, None, "eval_accuracy", True),
        ("eval_perplexity", None, "eval_perplexity", False),
        ("loss_mm", None, "eval_loss_mm", False),
        ("loss", True, "eval_loss", True),
        ("own", False, "eval_own", False),
    ):
        found = selection(name, greater)
        assert (found.metric, found.greater_is_better) == (metric, expected)
    with pytest.raises(ValueError, match=r"metric_for_best_model is 'own'; .*greater_is_better"):
        selection("own", None)
    with pytest.raises(ValueError, match=r"metric_for_best_model is 'f1'; allowed: accuracy, loss"):
        selection("f1", None)


def test_results_have_null_for_what_is_no_number(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": math.nan, "b": [(math.inf, 1.5)]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": None, "b": [[None, 1.5]]}


def test_a_file_that_no_commit_has_makes_the_commit_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "__file__", str(tmp_path / "results.py"))
    assert results._commit() is None
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    commit = results._commit()
    assert len(commit["commit"]) == 40
    assert not commit["dirty"]
    (tmp_path / "own_task.py").touch()
    assert results._commit() == commit | {"dirty": True}


def test_ties_and_nan_are_no_better() -> None:
    selection = Selection("eval_x", True, 2)
    values = [math.nan, -math.inf, 1.0, 1.0, math.nan, 2.0, 1.5, 1.0]
    history = [{"step": step, "eval_x": value} for step, value in enumerate(values, start=1)]
    known = [history[:count] for count in range(1, len(history) + 1)]
    assert [selection.best(found)["step"] for found in known] == [1, 2, 3, 3, 3, 6, 6, 6]
    ends = [selection.ends(found) for found in known]
    assert ends == [False, False, False, False, True, False, False, True]
    less = Selection("eval_x", False, None)
    assert less.best(history[2:])["step"] == 3
    assert not less.ends(history)
    assert not selection.ends([])


def read(folder: Path, suffix: str = "") -> pd.DataFrame:
    return examples.read(folder / EVALUATED.format(suffix))


def test_predictions_are_of_the_weights_that_are_kept(tmp_path: Path) -> None:
    """The last epoch of a run that keeps an earlier one predicts something else."""
    # The highest loss counts as the best: the first epoch's.
    stopping = ("--early_stopping_patience", "2", "--metric_for_best_model", "loss")
    argv = flags(tmp_path, "stsb", *stopping, "--greater_is_better", "--num_train_epochs", "9")
    results = glue.main([*argv, "--learning_rate", "0.002"])
    assert results["weights_of_epoch"] < results["epochs"]
    found = read(tmp_path / "out")
    loss = ((found.prediction - found.label) ** 2).mean()
    assert results["eval_loss"] == pytest.approx(loss, rel=1e-5)
    assert results["history"][-1]["eval_loss"] != pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("name", ["mnli", "stsb"])
def test_every_split_and_scores_are_written(tmp_path: Path, name: str) -> None:
    task = tasks.get(name, "glue")
    results = glue.main(flags(tmp_path, name, "--max_train_steps", "1"))
    for split in task.validation_splits:
        found = read(tmp_path / "out", split.key_suffix)
        for metric, value in scores(task.metrics, found.prediction, found.label).items():
            assert results[f"eval_{metric}{split.key_suffix}"] == pytest.approx(value, abs=1e-6)
    assert results["peak_memory_bytes"] > 1e8
    if not task.label_names:
        return
    lines = (tmp_path / "out" / "eval_predictions.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction\tlabel\tprediction_name\tlabel_name"
    for line in lines[1:]:
        _, prediction, label, *names = line.split("\t")
        assert names == [task.label_names[int(prediction)], task.label_names[int(label)]]


def test_a_length_without_room_for_text_is_refused(tmp_path: Path) -> None:
    message = r"^max_length is 3; allowed: 4 or more: this tokenizer puts 3 own tokens"
    with pytest.raises(Refused, match=message):
        glue.main(flags(tmp_path, "mrpc", "--max_length", "3"))


def test_row_by_row_whatever_was_read_first(tmp_path: Path) -> None:
    """Evaluation reads the longest rows first; what it writes is in the order of the data."""
    argv = flags(tmp_path, "stsb", "--do_predict", "--per_device_eval_batch_size", "2")
    results = glue.main([*argv, "--max_train_steps", "1"])
    rows = tiny_task.rows(tasks.get("stsb"), 5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = [tokenizer(row["sentence1"], row["sentence2"], return_tensors="pt") for row in rows]
    assert sorted(lengths := [len(row["input_ids"][0]) for row in inputs]) != lengths
    model = BertForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        expected = [float(model(**row).logits) for row in inputs]
    found = read(tmp_path / "out")
    assert found.prediction.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.label.tolist() == rows["label"][:]
    assert results["eval_loss"] == pytest.approx(((found.prediction - found.label) ** 2).mean())
    lines = (tmp_path / "out" / "STS-B.tsv").read_text().splitlines()[1:]
    handed_in = [float(line.split("\t")[1]) for line in lines]
    assert handed_in == pytest.approx([min(max(score, 0), 5) for score in expected], abs=1e-3)
