"""Checkpoints: exact resume from any step, whole or not at all, the newest and the best kept."""

from __future__ import annotations

import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoint_runs import (
    SAVING,
    KilledError,
    assert_same,
    kill_after,
    outcome,
    resumed,
    run,
    saved,
)

from finetune.engine import checkpoints, storage
from finetune.engine.results import EVALUATED

BATCHES, FIRST_SAVED = 21, 4
PREDICTED = EVALUATED.format("")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the outcome of a run that was never killed."""
    folder = tmp_path_factory.mktemp("whole")
    finished = run(folder, *SAVING)
    finished.train()
    return folder, outcome(finished)


def test_killed_anywhere_and_resumed_is_the_run_that_never_stopped(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    folder, expected = whole
    assert len(expected["progress"]["history"]) == 3
    assert any(name.endswith("w_K") for name in expected["weights"])
    shutil.copytree(folder / "bert", tmp_path / "bert")
    last_half = set()
    for batches in random.Random(0).sample(range(FIRST_SAVED, BATCHES), 4):
        for old in checkpoints.listed(tmp_path):
            shutil.rmtree(old)
        started = run(tmp_path, *SAVING)
        kill_after(started, batches)
        last_half.add(started.progress.batches % 4)
        again = resumed(tmp_path, *SAVING)
        assert again.progress.step >= started.progress.step - 1
        if batches < 10:  # and killed a second time
            kill_after(again, 6)
            again = resumed(tmp_path, *SAVING)
        again.train()
        assert_same(outcome(again), expected)
    # Some were killed at another point of the epoch than where they were saved.
    assert len(last_half) > 1


def test_an_order_by_length_is_resumed_too(tmp_path: Path) -> None:
    flags = (*SAVING, "--group_by_length")
    finished = run(tmp_path, *flags)
    finished.train()
    expected = outcome(finished)
    for path in checkpoints.listed(tmp_path):
        shutil.rmtree(path)
    kill_after(run(tmp_path, *flags), random.randrange(FIRST_SAVED, BATCHES))
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
    assert (tmp_path / PREDICTED).read_bytes() == (whole[0] / PREDICTED).read_bytes()


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
    kept = [path.name for path in checkpoints.listed(tmp_path)]
    assert kept == ["step_4", "step_11", "step_12"]
    # At the end the model has the best epoch's weights again.
    after = {name: x.clone() for name, x in finished.model.state_dict().items()}
    rate, best = ("--learning_rate", "0.001"), str(tmp_path / "step_4")
    best = resumed(tmp_path, *flags, *best_first, *worse, *rate, asked=best)
    assert_same(after, dict(best.model.state_dict()))


def test_the_best_weights_must_be_there_to_go_on(killed: Path, tmp_path: Path) -> None:
    other = ("--output_dir", str(tmp_path / "other"))
    with pytest.raises(checkpoints.CheckpointError, match=r"other/step_4'; it is not there"):
        resumed(killed, *SAVING, *other, asked=str(killed / "step_6"))
    (killed / "step_4" / "model.safetensors").unlink()
    with pytest.raises(checkpoints.CheckpointError, match=r"step_4'; model.safetensors is not as"):
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
    assert [path.name for path in checkpoints.listed(tmp_path)] == [progress.best_name]


@pytest.fixture
def killed(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> Path:
    """The folder of a run with the checkpoints step_2 and step_4 and step_6."""
    return saved(whole[0], tmp_path)


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
    assert [path.name for path in checkpoints.listed(killed)] == ["step_2", "step_4", "step_6"]
    assert resumed(killed, *SAVING).train().step == 12
