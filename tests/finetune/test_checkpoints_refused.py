"""Checkpoints that are damaged, unfinished or of another run, and what is told of conditions."""

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


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (("--seed", "7"), "seed: 42 -> 7"),
        (("--variant", "plat"), "variant: 'gfsa' -> 'plat'"),
        (("--order", "5"), "order: 3 -> 5"),
        (("--eval_steps", "3"), "eval_steps: None -> 3"),
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


class Evil:
    """Runs what it says when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.folder),)


def test_states_that_would_run_code_are_refused(killed: Path) -> None:
    file = killed / "step_6" / "optimizer.bin"
    torch.save(Evil(killed / "was-here"), file)
    sealed(killed / "step_6")
    with pytest.raises(checkpoints.CheckpointError, match=r"cannot be loaded \(UnpicklingError"):
        resumed(killed, *SAVING)
    assert not (killed / "was-here").exists()


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
        ({}, ("threads: None -> ", "machine: None -> ", "torch: None -> ")),
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


def test_where_there_is_none_the_allowed_are_listed(killed: Path) -> None:
    with pytest.raises(checkpoints.CheckpointError, match=r"step_9'; allowed: last, .*step_2, .*"):
        checkpoints.find(str(killed / "step_9"), killed)
    with pytest.raises(checkpoints.CheckpointError, match="which has none"):
        checkpoints.find("last", killed / "bert")
