"""What a run writes of its evaluation, example by example, is what its metrics are made of."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import tiny_task
import torch
from glue_runs import flags
from transformers import AutoTokenizer, BertForSequenceClassification

import tasks
from finetune import glue
from finetune.engine.predictions import EVALUATED
from finetune.errors import Refused
from finetune.experiments import examples
from tasks.metrics import scores


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
