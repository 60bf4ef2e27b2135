"""Checkpoints that are damaged, unfinished or of another run are refused; other conditions warn."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from accelerate.utils import load as load_states
from checkpoint_runs import RUN, SAVING, resumed, run, saved, sealed
from tiny_run import trainer

from finetune.engine import checkpoints, storage
from finetune.engine.checkpoints import CheckpointError
from finetune.engine.fingerprint import differences


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, *SAVING).train()
    return folder


@pytest.fixture
def killed(tmp_path: Path, whole: Path) -> Path:
    """The folder of a run with the checkpoints step_2 and step_4 and step_6."""
    return saved(whole, tmp_path)


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
        (manifest, b"{}"),
    ):
        former = file.read_bytes()
        file.unlink() if content is None else file.write_bytes(content)
        name = r"[\w.]+" if file == manifest else file.name
        message = rf"step_6'; {name} is not as manifest.json has it; allowed: .*step_4\. Continue"
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


@pytest.mark.parametrize("text", ["{", "null", '{"state.json": 1}'])
def test_a_manifest_that_is_none_is_refused(killed: Path, text: str) -> None:
    (killed / "step_6" / storage.MANIFEST).write_text(text)
    with pytest.raises(CheckpointError, match=r"step_6'; .*manifest.json.*step_4\. "):
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


def test_another_model_and_other_data_are_refused(killed: Path) -> None:
    with pytest.raises(CheckpointError, match=r"data: '13 rows.*' -> '12 rows"):
        trainer(killed, *RUN, *SAVING, count=12).resume("last")
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
