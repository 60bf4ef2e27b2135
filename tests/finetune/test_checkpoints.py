"""Checkpoints: exact resume from any step, whole or not at all, refused where they do not fit."""

from __future__ import annotations

import json
import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import load as load_states
from tiny_run import trainer

from finetune.engine import checkpoints, storage
from finetune.engine.fingerprint import differences
from finetune.engine.predictions import EVALUATED
from finetune.engine.progress import LOG
from finetune.engine.trainer import Trainer

# 13 rows in batches of 2 are 7 batches and, two an update, 4 updates an epoch.
RUN = (
    *("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"),
    *("--num_train_epochs", "3", "--learning_rate", "0.01", "--lr_scheduler_type", "cosine"),
    *("--variant", "gfsa", "--filter_learning_rate", "0.05"),
)
SAVING = ("--checkpointing_steps", "2", "--early_stopping_patience", "2")
BATCHES, FIRST_SAVED = 21, 4
PREDICTED = EVALUATED.format("")


class KilledError(BaseException):
    """Stands for the process's end."""


def run(folder: Path, *flags: str, **options: Any) -> Trainer:
    return trainer(folder, *RUN, *flags, count=13, dropout=0.3, **options)


def kill_after(started: Trainer, batches: int) -> None:
    """End the run before it has learned from one more batch."""
    loss, left = started.objective.loss, iter(range(batches))

    def counted(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if next(left, None) is None:
            raise KilledError
        return loss(model, batch)

    object.__setattr__(started.objective, "loss", counted)
    with pytest.raises(KilledError):
        started.train()


def resumed(folder: Path, *flags: str, asked: str = "last", **options: Any) -> Trainer:
    """A run that continues, whatever the random states of its process are."""
    again = run(folder, *flags, "--resume_from_checkpoint", asked, **options)
    torch.manual_seed(random.randrange(1000))
    again.resume(asked)
    return again


def outcome(finished: Trainer) -> dict[str, Any]:
    """All that must not differ."""
    progress = vars(finished.progress) | {"step_seconds": len(finished.progress.step_seconds)}
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


def test_killed_anywhere_and_resumed_is_the_run_that_never_stopped(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    folder, expected = whole
    assert len(expected["progress"]["history"]) == 3
    assert any(name.endswith("w_K") for name in expected["weights"])
    shutil.copytree(folder / "bert", tmp_path / "bert")
    last_half = set()
    for batches in random.Random(0).sample(range(FIRST_SAVED, BATCHES), 10):
        for old in checkpoints.listed(tmp_path):
            shutil.rmtree(old)
        started = run(tmp_path, *SAVING)
        kill_after(started, batches)
        last_half.add(started.progress.batches % 4)
        again = resumed(tmp_path, *SAVING)
        assert again.progress.step >= started.progress.step - 1
        again.train()
        assert_same(outcome(again), expected)
    # Some were killed at another place of the epoch than where they were saved.
    assert len(last_half) > 1


def test_two_kills_and_a_path_with_a_slash(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    shutil.copytree(whole[0] / "bert", tmp_path / "bert")
    kill_after(run(tmp_path, *SAVING), 6)
    again = resumed(tmp_path, *SAVING, asked=f"{tmp_path}/step_2/")
    kill_after(again, 6)
    finished = resumed(tmp_path, *SAVING)
    finished.train()
    assert_same(outcome(finished), whole[1])
    over = resumed(tmp_path, *SAVING)
    over.train()
    assert over.progress.step == finished.progress.step


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
    progress = finished.train()
    assert progress.best_epoch == 1
    assert progress.best_name == "step_4"
    kept = [path.name for path in checkpoints.listed(tmp_path)]
    assert kept == ["step_4", "step_11", "step_12"]
    # At the end the model has the best epoch's weights again.
    after = {name: x.clone() for name, x in finished.model.state_dict().items()}
    best = resumed(
        tmp_path,
        *flags,
        *best_first,
        *worse,
        "--learning_rate",
        "0.001",
        asked=str(tmp_path / "step_4"),
    )
    assert_same(after, dict(best.model.state_dict()))


def test_the_best_weights_come_along_to_another_folder(killed: Path, tmp_path: Path) -> None:
    other = ("--output_dir", str(tmp_path / "other"))
    again = resumed(killed, *SAVING, *other, asked=str(killed / "step_6"))
    assert again.progress.best_name == "step_4"
    again.train()
    assert storage.fault(tmp_path / "other" / "step_4") is None
    (killed / "step_4" / "model.safetensors").unlink()
    with pytest.raises(checkpoints.CheckpointError, match=r"best weights so far are in .*missing"):
        resumed(killed, *SAVING, *other, asked=str(killed / "step_6")).train()


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
    (tmp_path / "bert").symlink_to(whole[0] / "bert")
    for name in ("step_2", "step_4", "step_6"):
        shutil.copytree(whole[0] / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.bin", "state.json"])
def test_a_truncated_checkpoint_is_refused_and_the_one_before_offered(
    killed: Path, name: str
) -> None:
    content = (killed / "step_6" / name).read_bytes()
    (killed / "step_6" / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(
        checkpoints.CheckpointError,
        match=rf"step_6 is damaged: {name} has \d+ bytes of \d+.*resume_from_checkpoint .*step_4$",
    ):
        resumed(killed, *SAVING)
    assert resumed(killed, *SAVING, asked=str(killed / "step_4")).progress.step == 4


def test_damage_of_other_kinds(killed: Path) -> None:
    (killed / "step_6" / "model.safetensors").unlink()
    broken = bytearray((killed / "step_4" / "optimizer.bin").read_bytes())
    broken[-1] ^= 1
    (killed / "step_4" / "optimizer.bin").write_bytes(broken)
    (killed / "step_2" / storage.MANIFEST).unlink()
    for name, fault in (
        ("step_6", "model.safetensors is missing"),
        ("step_4", "optimizer.bin was changed"),
        ("step_2", "manifest.json is missing or broken"),
    ):
        with pytest.raises(checkpoints.CheckpointError, match=f"{fault}.*start anew"):
            checkpoints.find(str(killed / name), killed)


def sealed(path: Path) -> None:
    """Have a checkpoint's manifest fit its files."""
    (path / storage.MANIFEST).unlink()
    path.rename(storage.aside_of(path))
    storage.commit_folder(path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", '"a"', "7", '{"state.json": 1}', '{"state.json": []}'],
)
def test_a_manifest_that_is_none_is_refused(killed: Path, text: str) -> None:
    (killed / "step_6" / storage.MANIFEST).write_text(text)
    with pytest.raises(
        checkpoints.CheckpointError, match=r"manifest.json is missing or broken.*step_4$"
    ):
        checkpoints.find("last", killed)


def test_a_manifest_names_every_file(killed: Path) -> None:
    manifest = killed / "step_6" / storage.MANIFEST
    (killed / "step_6" / ".DS_Store").touch()
    assert checkpoints.find("last", killed) == killed / "step_6"
    listed = json.loads(manifest.read_text())
    for left in ({}, {name: listed[name] for name in listed if name != "model.safetensors"}):
        manifest.write_text(json.dumps(left))
        with pytest.raises(
            checkpoints.CheckpointError, match=r"model.safetensors is not in manifest.json"
        ):
            checkpoints.find("last", killed)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 2, "progress": []}'])
def test_a_state_that_is_none_is_refused(killed: Path, text: str) -> None:
    (killed / "step_6" / "state.json").write_text(text)
    sealed(killed / "step_6")
    with pytest.raises(
        checkpoints.CheckpointError, match=r"state.json is missing or broken.*step_4$"
    ):
        checkpoints.find("last", killed)


def test_an_unfinished_checkpoint_is_passed_over(
    killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (killed / "step_999").mkdir()
    (killed / "step_7").touch()
    assert checkpoints.find("last", killed) == killed / "step_6"
    for name in ("step_7", "step_999"):
        assert f"{killed / name} is passed over: it is unfinished" in caplog.text
    with pytest.raises(checkpoints.CheckpointError, match=r"step_999 is damaged.*step_6$"):
        checkpoints.find(str(killed / "step_999"), killed)


def test_best_weights_take_the_place_of_an_unfinished_checkpoint(
    killed: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (other / "step_4").mkdir(parents=True)
    resumed(killed, *SAVING, "--output_dir", str(other), asked=str(killed / "step_6")).train()
    assert storage.fault(other / "step_4") is None


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (("--seed", "7"), "seed: 42 -> 7"),
        (("--variant", "plat"), "variant: 'gfsa' -> 'plat'"),
        (("--order", "5"), "order: 3 -> 5"),
        (("--learning_rate", "0.02"), r"learning_rate: 0\.01 -> 0\.02"),
        (("--max_train_samples", "9"), "training data: '13 rows, .*' -> '9 rows"),
    ],
)
def test_another_run_is_refused_and_says_what_differs(
    killed: Path, flags: tuple[str, ...], difference: str
) -> None:
    others = [*RUN]
    if flags[0] == "--variant":
        others = others[: others.index("--variant")]
    with pytest.raises(checkpoints.CheckpointError, match=rf"of another run.*{difference}"):
        trainer(killed, *others, *SAVING, *flags, count=13).resume("last")


def test_another_model_and_other_data_are_refused(killed: Path) -> None:
    with pytest.raises(checkpoints.CheckpointError, match=r"data: '13 rows.*' -> '12 rows"):
        trainer(killed, *RUN, *SAVING, count=12).resume("last")
    original = (killed / "bert").resolve()
    (killed / "bert").unlink()
    shutil.copytree(original, killed / "bert")
    config = json.loads((original / "config.json").read_text()) | {"layer_norm_eps": 0.01}
    (killed / "bert" / "config.json").write_text(json.dumps(config))
    with pytest.raises(checkpoints.CheckpointError, match="model configuration"):
        resumed(killed, *SAVING)


@pytest.mark.parametrize("damage", ["no pickle", "without torch's state", "another state"])
def test_random_states_that_cannot_be_restored_are_refused(killed: Path, damage: str) -> None:
    """Accelerate itself only logs it, and the run would end with other weights."""
    path = killed / "step_6"
    file = path / "random_states_0.pkl"
    states = load_states(file)
    if damage == "no pickle":
        file.write_bytes(b"nothing")
    elif damage == "without torch's state":
        del states["torch_manual_seed"]
        torch.save(states, file)
    else:
        states["numpy_random_seed"] = None  # restored before torch's
        torch.save(states, file)
    sealed(path)
    with pytest.raises(checkpoints.CheckpointError, match=r"random states in random_states_0\.pkl"):
        resumed(killed, *SAVING)


def test_other_conditions_are_told(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    resumed(killed, *SAVING)
    assert "under other conditions" not in caplog.text
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        resumed(killed, *SAVING)
    finally:
        torch.set_num_threads(threads)
    assert f"threads: {threads} -> {threads + 1}" in caplog.text


def test_other_versions_and_unknown_conditions_are_told(
    killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = killed / "step_6" / "state.json"
    state = json.loads(file.read_text())
    for conditions, expected in (
        (
            state["conditions"] | {"torch": "1.0", "transformers": "2.0"},
            ("torch: '1.0' -> '2", "transformers: '2.0' -> '5"),
        ),
        ({}, ("threads: None -> ", "machine: None -> ", "torch: None -> ")),  # version 0.1.0's
    ):
        file.write_text(json.dumps(state | {"conditions": conditions}))
        sealed(killed / "step_6")
        caplog.clear()
        resumed(killed, *SAVING)
        assert "may differ in their last digits" in caplog.text
        assert [words for words in expected if words not in caplog.text] == []


def test_versions_and_new_flags_are_no_difference(killed: Path) -> None:
    """A checkpoint outlives an upgrade of transformers, and a flag that it does not know."""
    started = run(killed, *SAVING)
    found = started.fingerprint
    config = started.accelerator.unwrap_model(started.model).config
    config.transformers_version = "9.0"
    assert run(killed, *SAVING).fingerprint == found
    before = {name: value for name, value in found.items() if name != "warmup_ratio"}
    assert differences(before, found, started.settings.defaults()) == []
    other = found | {"warmup_ratio": 0.5}
    assert differences(before, other, started.settings.defaults()) == ["warmup_ratio: 0.0 -> 0.5"]


def test_a_folder_called_like_a_variant_is_no_other_run(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (killed / "gfsa").mkdir()
    found = run(killed, *SAVING).fingerprint
    monkeypatch.chdir(killed)
    assert run(killed, *SAVING).fingerprint == found


def test_a_rate_that_was_not_given_goes_on_as_the_checkpoint_has_it(tmp_path: Path) -> None:
    """In version 0.1.0 the scalars then had the learning rate of all."""
    flags = [*RUN[: RUN.index("--filter_learning_rate")], "--learning_rate", "0.02", *SAVING]
    finished = trainer(tmp_path, *flags, "--filter_learning_rate", "0.02", count=13, dropout=0.3)
    finished.train()
    expected = outcome(finished)
    for path in checkpoints.listed(tmp_path)[1:]:
        shutil.rmtree(path)
    (path,) = checkpoints.listed(tmp_path)
    state = json.loads((path / "state.json").read_text())
    state["fingerprint"]["filter_learning_rate"] = None
    (path / "state.json").write_text(json.dumps(state))
    sealed(path)
    again = trainer(tmp_path, *flags, "--resume_from_checkpoint", "last", count=13, dropout=0.3)
    again.resume("last")
    assert again.filter_learning_rate == 0.02
    again.train()
    assert_same(outcome(again), expected)


def test_where_there_is_none_the_allowed_are_listed(killed: Path) -> None:
    with pytest.raises(checkpoints.CheckpointError, match=r"step_9'; allowed: last, .*step_2, .*"):
        checkpoints.find(str(killed / "step_9"), killed)
    with pytest.raises(checkpoints.CheckpointError, match="which has none"):
        checkpoints.find("last", killed / "bert")


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
def test_a_full_disk_is_said_and_loses_nothing(
    killed: Path, whole: tuple[Path, dict[str, Any]], size: int
) -> None:
    files = {p: storage.digest(p) for p in killed.glob("step_*/*")}
    again = resumed(killed, *SAVING)
    with (
        room_for(size),
        pytest.raises(
            storage.SaveError, match=r"step_8 could not be saved.*Free some.*step_2, step_4, step_6"
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
        patched.setattr(storage, "commit_folder", die)
        with pytest.raises(KilledError):
            again.train()
    assert [path.name for path in checkpoints.listed(killed)] == ["step_2", "step_4", "step_6"]
    assert resumed(killed, *SAVING).train().step == 12
