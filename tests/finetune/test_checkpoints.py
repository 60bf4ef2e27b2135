"""Checkpoints and evaluations: exact resume from any step, whole or not at all, what is refused."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from accelerate.utils import load as load_states
from safetensors.torch import load_file
from tiny_run import trainer
from torch import Tensor, nn

from finetune.engine import checkpoints, storage
from finetune.engine.checkpoints import CheckpointError
from finetune.engine.fingerprint import differences
from finetune.engine.progress import LOG
from finetune.engine.results import EVALUATED
from finetune.engine.run import summary
from finetune.engine.trainer import Trainer

# 13 rows in batches of 2 are 7 batches and, two an update, 4 updates an epoch.
RUN = (
    *("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"),
    *("--num_train_epochs", "3", "--learning_rate", "0.01", "--lr_scheduler_type", "cosine"),
    *("--variant", "gfsa", "--filter_learning_rate", "0.05"),
)
SAVING = ("--checkpointing_steps", "2", "--early_stopping_patience", "2")


def run(folder: Path, *flags: str, **options: Any) -> Trainer:
    return trainer(folder, *RUN, *flags, count=13, dropout=0.3, **options)


def resumed(folder: Path, *flags: str, asked: str = "last", **options: Any) -> Trainer:
    """A run that continues, whatever the random states of its process are."""
    again = run(folder, *flags, "--resume_from_checkpoint", asked, **options)
    torch.manual_seed(random.randrange(1000))
    again.resume(asked)
    return again


def steps_of(folder: Path) -> list[str]:
    return [path.name for path in checkpoints.listed(folder)]


def sealed(path: Path) -> None:
    """Have a checkpoint's manifest fit its files."""
    (path / storage.MANIFEST).unlink()
    path.rename(storage.aside_of(path))
    storage.commit_folder(path)


class KilledError(BaseException):
    """Stands for the process's end."""


def kill_after(started: Trainer, batches: int | None) -> None:
    """End the run before it has learned from one more batch; None: what else ends it does."""
    loss, numbers = started.objective.loss, itertools.count()

    def counted(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if next(numbers) == batches:
            raise KilledError
        return loss(model, batch)

    object.__setattr__(started.objective, "loss", counted)
    with pytest.raises(KilledError):
        started.train()


def outcome(finished: Trainer) -> dict[str, Any]:
    """All that must not differ."""
    progress = vars(finished.progress) | {"step_seconds": len(finished.progress.step_seconds)}
    progress["train_seconds"] = None  # as little the same as those
    optimizer = finished.optimizer.state_dict()["state"]
    lines = (finished.folder / LOG).read_text().splitlines()
    logged = [json.loads(line) | {"tokens_per_s": None} for line in lines]
    weights = {name: x.clone() for name, x in finished.model.state_dict().items()}
    return {"progress": progress, "weights": weights, "optimizer": optimizer, "log": logged}


def assert_same(found: Any, expected: Any) -> None:
    """Equal bit for bit, in whatever containers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the outcome of a run that was never killed."""
    folder = tmp_path_factory.mktemp("whole")
    finished = run(folder, *SAVING)
    finished.train()
    return folder, outcome(finished)


@pytest.fixture
def killed(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> Path:
    """The folder of a run with the checkpoints step_2 and step_4 and step_6."""
    (tmp_path / "bert").symlink_to(whole[0] / "bert")
    for name in ("step_2", "step_4", "step_6"):
        shutil.copytree(whole[0] / name, tmp_path / name)
    return tmp_path


STEPS = ("--eval_steps", "3", "--checkpointing_steps", "2", "--load_best_model_at_end")


@pytest.mark.parametrize(
    ("flags", "kills"),
    [
        (SAVING, (5, 10, 15)),  # in the midst of an update, after one, in another epoch
        ((*SAVING, "--group_by_length"), (9,)),
        (STEPS, (6, 12, None)),  # None: after an evaluation, before its checkpoint
    ],
)
def test_killed_anywhere_and_resumed_is_the_run_that_never_stopped(
    tmp_path: Path,
    flags: tuple[str, ...],
    kills: tuple[int | None, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = run(tmp_path, *flags)
    never.train()
    expected, save = outcome(never), checkpoints.save
    assert len(expected["progress"]["history"]) == (4 if flags is STEPS else 3)
    assert any(name.endswith("w_K") for name in expected["weights"])

    def die(accelerator: Any, path: Path, *others: Any) -> None:
        if path.name == "step_6":
            raise KilledError
        save(accelerator, path, *others)

    for batches in kills:
        for old in checkpoints.listed(tmp_path):
            shutil.rmtree(old)
        started = run(tmp_path, *flags)
        with monkeypatch.context() as patched:
            if batches is None:
                patched.setattr(checkpoints, "save", die)
            kill_after(started, batches)
        again = resumed(tmp_path, *flags)
        assert again.progress.step >= started.progress.step - 2
        if batches == 5:  # and killed a second time
            kill_after(again, 6)
            again = resumed(tmp_path, *flags)
        again.train()
        assert_same(outcome(again), expected)


def test_a_run_that_had_ended_predicts_by_its_best_weights(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    """Killed after its last checkpoint: the predictions that are there may be another epoch's."""
    (tmp_path / "bert").symlink_to(whole[0] / "bert")
    last, best = (f"step_{step}" for step in (whole[1]["progress"]["step"], 4))
    assert whole[1]["progress"]["best_name"] == best != last
    for name in (last, best):
        shutil.copytree(whole[0] / name, tmp_path / name)
    resumed(tmp_path, *SAVING).train()
    predicted = [folder / EVALUATED.format("") for folder in (tmp_path, whole[0])]
    assert predicted[0].read_bytes() == predicted[1].read_bytes()


def test_the_newest_are_kept_and_the_best(tmp_path: Path) -> None:
    flags = ("--checkpointing_steps", "1", "--checkpoints_total_limit", "2")
    best_first = ("--load_best_model_at_end", "--metric_for_best_model", "loss")
    worse = ("--greater_is_better", "true")
    finished = run(tmp_path, *flags, *best_first, *worse, "--learning_rate", "0.001")
    losses = iter([3.0, 1.0, 2.0, 0.5])
    metrics = finished.evaluate()
    finished.evaluate = lambda: metrics  # of the check before training
    object.__setattr__(
        finished.objective, "evaluate", lambda _: metrics | {"eval_loss": next(losses)}
    )
    assert finished.train().best_name == "step_4"
    kept = steps_of(tmp_path)
    assert kept == ["step_4", "step_11", "step_12"]
    # At the end the model has the best epoch's weights again.
    after = {name: x.clone() for name, x in finished.model.state_dict().items()}
    rate, best = ("--learning_rate", "0.001"), str(tmp_path / "step_4")
    best = resumed(tmp_path, *flags, *best_first, *worse, *rate, asked=best)
    assert_same(after, dict(best.model.state_dict()))


def test_the_best_weights_must_be_there_to_go_on(killed: Path, tmp_path: Path) -> None:
    other = ("--output_dir", str(tmp_path / "other"))
    with pytest.raises(CheckpointError, match=r"other/step_4'; it is not there"):
        resumed(killed, *SAVING, *other, asked=str(killed / "step_6"))
    (killed / "step_4" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"step_4'; model.safetensors is not as"):
        resumed(killed, *SAVING, asked=str(killed / "step_6"))


def test_a_kill_while_removing_leaves_no_half_checkpoint(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = (*SAVING, "--checkpoints_total_limit", "1")
    again = resumed(killed, *one)

    def die(path: Path, **_: Any) -> None:
        if path.exists():
            (path / storage.MANIFEST).unlink()
            raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", die)
        with pytest.raises(KilledError):
            again.train()
    there = [path.name for path in killed.glob("step_*") if storage.fault(path) is None]
    assert sorted(there) == sorted(path.name for path in killed.glob("step_*")) != []
    resumed(killed, *one).train()
    assert not list(killed.glob(".step_*"))


def test_only_the_best_is_kept_where_no_checkpoints_are_asked_for(tmp_path: Path) -> None:
    progress = run(tmp_path, "--early_stopping_patience", "1").train()
    assert steps_of(tmp_path) == [progress.best_name]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files may not grow beyond so many bytes: writing fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# The first breaks the weights, the second the larger optimizer state, after the weights.
@pytest.mark.parametrize("size", [2_000, 20_000])
def test_a_full_disk_is_an_error_and_loses_nothing(
    killed: Path, whole: tuple[Path, dict[str, Any]], size: int
) -> None:
    files = {p: storage.digest(p) for p in killed.glob("step_*/*")}
    again = resumed(killed, *SAVING)
    with (
        room_for(size),
        pytest.raises(
            storage.SaveError,
            match=r"step_8 could not be saved.*room.*earlier checkpoints are whole",
        ),
    ):
        again.train()
    assert {p: storage.digest(p) for p in killed.glob("step_*/*")} == files
    assert not list(killed.glob(".*"))
    finished = resumed(killed, *SAVING)
    finished.train()
    assert_same(outcome(finished)["weights"], whole[1]["weights"])


def test_a_kill_while_saving_leaves_no_half_checkpoint(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = resumed(killed, *SAVING)

    def die(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", die)  # the last step
        with pytest.raises(KilledError):
            again.train()
    assert steps_of(killed) == ["step_2", "step_4", "step_6"]
    assert resumed(killed, *SAVING).train().step == 12


def test_a_damaged_checkpoint_is_refused_and_the_one_before_offered(killed: Path) -> None:
    """A file cut short, one bit flipped, a file gone, the manifest without one of its files."""
    last, manifest = killed / "step_6", killed / "step_6" / storage.MANIFEST
    listed = json.loads(manifest.read_text())
    weights, optimizer = last / "model.safetensors", last / "optimizer.bin"
    flipped = bytearray(optimizer.read_bytes())
    flipped[-1] ^= 1
    for file, content in (
        (weights, weights.read_bytes()[:-9]),
        (optimizer, bytes(flipped)),
        (last / "state.json", None),
        (manifest, json.dumps({n: listed[n] for n in listed if n != weights.name}).encode()),
        *((manifest, text) for text in (b"{}", b"{", b"null", b'{"state.json": 1}')),
    ):
        former = file.read_bytes()
        file.unlink() if content is None else file.write_bytes(content)
        name = "" if file == manifest else f"{file.name} is not as "
        message = rf"step_6'; {name}.*manifest\.json.*; allowed: .*step_4\. Continue"
        with pytest.raises(CheckpointError, match=message):
            checkpoints.find("last", killed)
        file.write_bytes(former)
    (last / ".DS_Store").touch()
    assert checkpoints.find("last", killed) == last
    for name in ("step_2", "step_4"):
        (killed / name / storage.MANIFEST).unlink()
    manifest.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"manifest.json is missing or broken.*there is none"):
        checkpoints.find("last", killed)


def test_an_unfinished_checkpoint_is_passed_over(killed: Path) -> None:
    (killed / "step_999").mkdir()
    (killed / "step_7").touch()
    assert checkpoints.find("last", killed) == killed / "step_6"
    with pytest.raises(CheckpointError, match=r"step_999'; manifest.json is missing.*step_6\. "):
        checkpoints.find(str(killed / "step_999"), killed)


def test_a_checkpoint_that_is_not_there(killed: Path) -> None:
    with pytest.raises(CheckpointError, match=r"step_9'; it is not there.*step_2, .*step_6\. "):
        checkpoints.find(str(killed / "step_9"), killed)
    with pytest.raises(CheckpointError, match=r"'last'; it is not there.*there is none"):
        checkpoints.find("last", killed / "bert")


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (("--seed", "7"), "seed: 42 -> 7"),
        (("--order", "5"), "order: 3 -> 5"),
        (("--eval_steps", "3"), "eval_steps: None -> 3"),
        (("--max_train_samples", "9"), "training data: '13 rows, .*' -> '9 rows"),
    ],
)
def test_another_run_is_refused_with_what_differs(
    killed: Path, flags: tuple[str, ...], difference: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"of another run.*{difference}"):
        trainer(killed, *RUN, *SAVING, *flags, count=13).resume("last")


def test_another_model_is_refused(killed: Path) -> None:
    original = (killed / "bert").resolve()
    (killed / "bert").unlink()
    shutil.copytree(original, killed / "bert")
    config = json.loads((original / "config.json").read_text()) | {"layer_norm_eps": 0.01}
    (killed / "bert" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="model configuration"):
        resumed(killed, *SAVING)


@pytest.mark.parametrize("damage", ["no pickle", "another state"])
def test_random_states_that_cannot_be_restored_are_refused(killed: Path, damage: str) -> None:
    """Accelerate only logs it, and the run would end with other weights."""
    file = killed / "step_6" / "random_states_0.pkl"
    if damage == "no pickle":
        file.write_bytes(b"nothing")
    else:  # numpy's is restored before torch's
        torch.save(load_states(file) | {"numpy_random_seed": None}, file)
    sealed(killed / "step_6")
    with pytest.raises(CheckpointError, match=r"random states in random_states_0\.pkl"):
        resumed(killed, *SAVING)


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.folder),)


def test_states_that_would_run_code_are_refused(killed: Path) -> None:
    torch.save(Evil(killed / "was-here"), killed / "step_6" / "optimizer.bin")
    sealed(killed / "step_6")
    with pytest.raises(CheckpointError, match=r"cannot be loaded \(UnpicklingError"):
        resumed(killed, *SAVING)
    assert not (killed / "was-here").exists()


def test_other_conditions_warn(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    resumed(killed, *SAVING)
    assert "under other conditions" not in caplog.text
    file = killed / "step_6" / "state.json"
    state = json.loads(file.read_text())
    state["conditions"] |= {"torch": "1.0", "threads": 99}
    file.write_text(json.dumps(state))
    sealed(killed / "step_6")
    resumed(killed, *SAVING)
    assert "threads: 99 -> " in caplog.text
    assert "torch: '1.0' -> '2" in caplog.text


def test_versions_and_new_flags_are_no_difference(killed: Path) -> None:
    """A checkpoint outlives an upgrade of transformers, and a flag that it does not know."""
    started = run(killed, *SAVING)
    now = started.fingerprint
    config = started.accelerator.unwrap_model(started.model).config
    config.transformers_version = "9.0"
    assert run(killed, *SAVING).fingerprint == now
    before = {name: value for name, value in now.items() if name != "warmup_ratio"}
    assert differences(before, now, started.settings.defaults()) == []
    other = now | {"warmup_ratio": 0.5}
    assert differences(before, other, started.settings.defaults()) == ["warmup_ratio: 0.0 -> 0.5"]


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
    assert steps_of(tmp_path) == ["step_4"]
    best = load_file(tmp_path / "step_4" / "model.safetensors")
    weights = run.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in best.items())
    found = summary(run)
    assert found["best"] == {"metric": "eval_loss", "value": 1.0, "epoch": 1, "step": 4}
    assert (found["eval_loss"], found["weights_of_step"], found["epochs"]) == (1.0, 4, 2)
