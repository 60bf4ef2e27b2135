"""The engine by numbers: plan, schedule, accumulation, evaluation, clipping, divergence."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from tiny_run import COLA, trainer
from torch.nn import functional

from finetune import glue
from finetune.engine import progress
from finetune.engine.trainer import Trainer, plan
from finetune.errors import DivergedError
from finetune.objectives import labels

STEPS = ("--per_device_train_batch_size", "2", "--num_train_epochs", "1")


@pytest.mark.parametrize(
    ("batches", "flags", "expected"),
    [
        (10, "--num_train_epochs 3 --gradient_accumulation_steps 4", (3, 9, 0)),
        (10, "--max_train_steps 25", (3, 25, 0)),
        (10, "--max_train_steps 7 --gradient_accumulation_steps 3", (2, 7, 0)),
        (10, "--num_train_epochs 3 --num_warmup_steps 5", (3, 30, 5)),
        (10, "--num_train_epochs 3 --warmup_ratio 0.11", (3, 30, 4)),
    ],
)
def test_plan(batches: int, flags: str, expected: tuple[int, int, int]) -> None:
    base = ["--model_name_or_path", "m", "--output_dir", "o"]
    assert plan(batches, glue.SCHEMA.parse([*base, *flags.split()]).train) == expected


def test_a_schedule_with_a_lowest_rate_and_the_optimizers_settings(tmp_path: Path) -> None:
    schedule = ("--lr_scheduler_type", "cosine_with_min_lr")
    schedule += ("--lr_scheduler_kwargs", '{"min_lr": 0.002}')
    flags = "--learning_rate 0.008 --adam_beta1 0.8 --adam_beta2 0.99 --adam_epsilon 1e-6"
    run = trainer(tmp_path, *flags.split(), *schedule, "--max_train_steps", "4", count=8)
    found = {(*group["betas"], group["eps"]) for group in run.optimizer.param_groups}
    assert found == {(0.8, 0.99, 1e-6)}
    shares = [(1 + math.cos(math.pi * step / 4)) / 2 for step in (1, 2, 3, 4)]
    expected = [0.002 + 0.006 * share for share in shares]
    assert run.train().learning_rates == pytest.approx(expected)


def test_schedule_counts_updates_under_accumulation(tmp_path: Path) -> None:
    flags = "--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --num_train_epochs 2"
    flags += " --learning_rate 0.008 --num_warmup_steps 2"
    run = trainer(tmp_path, *flags.split())
    # Five batches an epoch are three updates, of two, two and one: the third one's have two rows.
    counts = [run.updates.samples(steps) for steps in (0, 1, 2, 3, 4, 6, 7)]
    assert counts == [0, 4, 8, 10, 14, 20, 24]
    expected = [0.004, 0.008, 0.006, 0.004, 0.002, 0.0]
    assert run.train().learning_rates == pytest.approx(expected)


@pytest.mark.parametrize(
    ("flags", "rate"),
    [
        ("--variant gfsa", 0.01),
        ("--variant gfsa --filter_learning_rate 0", 0.0),
        ("--variant plat --trainable p --peft filters", 0.01),
        ("--variant laplacian --step 0.1", None),
        ("--variant none", None),
    ],
)
def test_the_filters_learning_rate(tmp_path: Path, flags: str, rate: float | None) -> None:
    run = trainer(tmp_path, *flags.split(), "--learning_rate", "2e-5")
    assert run.filter_learning_rate == rate
    found = [group["initial_lr"] for group in run.optimizer.param_groups]
    assert found == [2e-5, 2e-5, *([] if rate is None else [rate])]


def test_the_filters_learning_rate_of_a_patched_folder(tmp_path: Path) -> None:
    trainer(tmp_path, "--variant", "gfsa").model.save_pretrained(tmp_path / "bert")
    assert trainer(tmp_path).filter_learning_rate == 0.01


def test_steps_stop_in_mid_epoch_and_are_evaluated(tmp_path: Path) -> None:
    flags = "--per_device_train_batch_size 2 --max_train_steps 7"
    found = trainer(tmp_path, *flags.split()).train()
    assert found.step == 7
    assert [(h["epoch"], h["step"]) for h in found.history] == [(1, 5), (2, 7)]
    assert all("eval_matthews_correlation" in h for h in found.history)
    found.step_seconds = [9.0, 9.0, 9.0, 1.0, 3.0, 2.0]  # the first three are warm-up
    assert found.seconds_per_step() == 2.0
    found.step_seconds = [4.0]
    assert found.seconds_per_step() == 4.0


def test_accumulated_batches_are_one_large_batch(tmp_path: Path) -> None:
    """In float64: Adam magnifies the rounding of gradients that nearly vanish."""

    def train(flags: str) -> Trainer:
        fixed = ("--num_train_epochs", "1", "--max_grad_norm", "0", "--learning_rate", "0.01")
        run = trainer(tmp_path, *fixed, *flags.split(), count=7)  # the last batch has one row
        run.model.double()
        assert run.train().step == 2
        return run

    whole = train("--per_device_train_batch_size 4")
    parts = train("--per_device_train_batch_size 2 --gradient_accumulation_steps 2")
    for left, right in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-9, rtol=1e-7)
    assert whole.progress.train_loss == pytest.approx(parts.progress.train_loss, rel=1e-9)


def outputs(run: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
    loader = run.validation["validation"]
    return run.objective.outputs(run.model, loader, run.accelerator, "Evaluating")


def test_evaluation_weighs_examples_not_batches(tmp_path: Path) -> None:
    run = trainer(tmp_path, "--per_device_eval_batch_size", "4", held_out=7)
    logits, labels = outputs(run)
    assert logits.shape == (7, 2)
    assert labels.tolist() == [0, 1, 0, 1, 0, 1, 0]
    one_by_one = trainer(tmp_path, "--per_device_eval_batch_size", "1", held_out=7)
    single, _ = outputs(one_by_one)
    torch.testing.assert_close(logits, single, atol=1e-6, rtol=1e-5)
    expected = sum(
        float(functional.cross_entropy(logits[i : i + 1], labels[i : i + 1])) for i in range(7)
    )
    assert run.evaluate()["eval_loss"] == pytest.approx(expected / 7)


def test_another_label_order_changes_no_number(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    expected = run.evaluate()
    swapped = copy.deepcopy(run.model)
    with torch.no_grad():
        swapped.classifier.weight.copy_(run.model.classifier.weight.flip(0))
        swapped.classifier.bias.copy_(run.model.classifier.bias.flip(0))
    swapped.config.id2label = {0: "acceptable", 1: "unacceptable"}
    swapped.config.label2id = {"acceptable": 0, "unacceptable": 1}
    swapped.save_pretrained(tmp_path / "bert")
    again = trainer(tmp_path)
    assert again.objective.label_order == [1, 0]
    assert again.evaluate() == pytest.approx(expected)


def test_gradients_are_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tmp_path, "--max_train_steps", "1", "--max_grad_norm", "1e-3")
    norms = []
    step = run.optimizer.step

    def record() -> None:
        grads = [p.grad.norm() for p in run.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack(grads).norm()))
        step()

    monkeypatch.setattr(run.optimizer, "step", record)
    run.train()
    assert norms == [pytest.approx(1e-3, rel=1e-2)]


def test_divergence_stops_and_names_the_step(tmp_path: Path) -> None:
    run = trainer(tmp_path, "--per_device_train_batch_size", "2")
    run.updates.loader = Poisoned(run.updates.loader, run.model, after=3)
    with pytest.raises(DivergedError, match=r"training loss is nan at step 4\. Lower lear"):
        run.train()
    assert run.progress.step == 3
    with pytest.raises(DivergedError, match="logits are NaN"):
        labels.predictions(COLA, torch.tensor([[0.0, torch.nan]]))


class Poisoned:
    """The same batches, but the model's head turns NaN after some of them."""

    def __init__(self, loader: object, model: torch.nn.Module, after: int) -> None:
        self.loader, self.model, self.after = loader, model, after
        self.set_epoch = loader.set_epoch

    def __iter__(self) -> object:
        for i, batch in enumerate(self.loader):
            if i == self.after:
                torch.nn.init.constant_(self.model.classifier.bias, torch.nan)
            yield batch


def test_epochs_have_their_own_order_and_seeds_fix_it(tmp_path: Path) -> None:
    def orders(seed: str) -> list[list[int]]:
        run = trainer(tmp_path, "--seed", seed, "--per_device_train_batch_size", "32")
        found = []
        for epoch in range(2):
            found += [
                part.batch["input_ids"].flatten().tolist()
                for parts in run.updates.read(epoch, done=0)
                for part in parts
            ]
        return found

    first, second = orders("1")
    assert first != second
    assert orders("1") == [first, second]
    assert orders("2") != [first, second]


def test_the_time_of_earlier_parts_counts(tmp_path: Path) -> None:
    run = trainer(tmp_path, *STEPS, "--checkpointing_steps", "2")
    run.progress = progress.Progress(train_seconds=1000.0)
    found = run.train().train_seconds
    assert 1000.0 < found < 2000.0
    first, last = (
        json.loads((tmp_path / name / "state.json").read_text())["progress"]["train_seconds"]
        for name in ("step_2", "step_4")
    )
    assert 1000.0 < first < last < found
