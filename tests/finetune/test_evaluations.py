"""Evaluations every so many updates: what is logged, selected, kept, and continued exactly."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from checkpoint_runs import KilledError, assert_same, kill_after, outcome, resumed, run
from safetensors.torch import load_file
from tiny_run import trainer
from torch import Tensor, nn

from finetune.engine import checkpoints
from finetune.engine.progress import LOG
from finetune.engine.run import summary


def test_evaluated_every_few_updates(tmp_path: Path) -> None:
    many = ("--per_device_train_batch_size", "2", "--max_train_steps", "7")
    run = trainer(tmp_path, *many, "--eval_strategy", "steps", "--eval_steps", "2")
    loss, modes = run.objective.loss, []

    def seen(model: nn.Module, batch: Any) -> Tensor:
        modes.append(model.training)
        return loss(model, batch)

    object.__setattr__(run.objective, "loss", seen)
    history = run.train().history
    assert modes == [True] * 7
    # Five updates an epoch: the evaluation after the fourth is in the first one.
    assert [(h["epoch"], h["step"]) for h in history] == [(1, 2), (1, 4), (2, 6), (2, 7)]
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    evaluated = {line["step"]: line for line in lines if "eval_loss" in line}
    assert [line["eval_loss"] for line in evaluated.values()] == [h["eval_loss"] for h in history]
    # The training loss is that since the evaluation before.
    for begin, end in ((0, 2), (2, 4), (4, 6), (6, 7)):
        assert evaluated[end]["train_loss"] == pytest.approx(fmean(losses[begin:end]))


def test_patience_and_the_best_weights_go_by_evaluations(tmp_path: Path) -> None:
    stopping = ("--early_stopping_patience", "2", "--metric_for_best_model", "loss")
    run = trainer(tmp_path, *stopping, "--eval_steps", "2", "--per_device_train_batch_size", "2")
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: math.nan}
    run.evaluate = lambda: {"eval_loss": losses[run.progress.step]}
    assert run.train().step == 8 < run.steps
    assert [path.name for path in checkpoints.listed(tmp_path)] == ["step_4"]
    best = load_file(tmp_path / "step_4" / "model.safetensors")
    weights = run.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in best.items())
    found = summary(run)
    assert found["best"] == {"metric": "eval_loss", "value": 1.0, "epoch": 1, "step": 4}
    assert (found["eval_loss"], found["weights_of_step"], found["epochs"]) == (1.0, 4, 2)


def test_killed_between_evaluations_of_every_few_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("--eval_steps", "3", "--checkpointing_steps", "2", "--load_best_model_at_end")
    never = run(tmp_path, *steps)
    never.train()
    expected, save = outcome(never), checkpoints.save
    assert [h["step"] for h in expected["progress"]["history"]] == [3, 6, 9, 12]

    def die(accelerator: Any, path: Path, *others: Any) -> None:
        if path.name == "step_6":
            raise KilledError
        save(accelerator, path, *others)

    for batches in (6, 12, None):
        for old in checkpoints.listed(tmp_path):
            shutil.rmtree(old)
        with monkeypatch.context() as patched:
            if batches is None:  # after an evaluation, before its checkpoint
                patched.setattr(checkpoints, "save", die)
            kill_after(run(tmp_path, *steps), batches)
        again = resumed(tmp_path, *steps)
        again.train()
        assert_same(outcome(again), expected)
