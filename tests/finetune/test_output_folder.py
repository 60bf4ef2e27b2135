"""An output folder holds one run, one at a time, and never what two runs have left."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import warm
from glue_runs import ROOT, flags, written
from tiny_run import trainer
from transformers import AutoModelForSequenceClassification

import hf_graphattn as ga
from finetune import glue
from finetune.engine import checkpoints, locks, output_folder
from finetune.engine.launch import make_accelerator
from finetune.engine.output_folder import LOCK
from finetune.engine.progress import LOG
from finetune.engine.results import RESULTS
from finetune.engine.storage import SaveError
from finetune.errors import Refused
from finetune.settings.schema import Run

RUN = ("--model_name_or_path", "m", "--task_name", "cola", "--variant", "gfsa")
RATE = "filter_learning_rate"


def parsed(folder: Path | str, *others: str) -> Run[Any, Any]:
    return glue.SCHEMA.parse([*RUN, "--output_dir", str(folder), *others])


def claimed(folder: Path | str, *others: str) -> AbstractContextManager[None]:
    settings = parsed(folder, *others)
    return output_folder.claimed(settings, make_accelerator(settings.train))


def finished(folder: Path, *others: str) -> None:
    """Results as a run with these flags leaves them."""
    settings = parsed(folder, *others).flat() | {RATE: 0.01}
    (folder / RESULTS).write_text(json.dumps({"settings": settings, "filter_scalars": 8}))


def with_checkpoints(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "manifest.json").touch()


@pytest.mark.parametrize(
    ("others", "difference"),
    [
        (("--order", "5"), "order: 3 -> 5"),
        ((f"--{RATE}", "0.1"), r"filter_learning_rate: 0\.01 -> 0\.1"),
        (("--do_eval_only",), "do_eval_only: False -> True"),
        (("--seed", "7", "--resume_from_checkpoint", "x/step_3"), "seed: 42 -> 7"),
    ],
)
def test_results_of_another_run_are_kept(
    tmp_path: Path, others: tuple[str, ...], difference: str
) -> None:
    finished(tmp_path)
    words = rf"output_dir is .*another run \(then -> now\): {difference}.*--overwrite_output_dir to"
    with pytest.raises(Refused, match=words), claimed(tmp_path, *others):
        pass
    with claimed(tmp_path, *others, "--overwrite_output_dir"):
        pass
    assert (tmp_path / RESULTS).exists()  # until the new run has read all that it needs


def test_the_same_run_may_be_done_again(tmp_path: Path) -> None:
    finished(tmp_path)
    for free in ((), ("--do_predict", "--report_to", "tensorboard"), (f"--{RATE}", "0.01")):
        with claimed(tmp_path, *free):
            pass
    measured = ("--do_eval_only", "--resume_from_checkpoint")
    finished(tmp_path, *measured, "x/step_3")
    with claimed(tmp_path, *measured, "x/step_3"):
        pass
    with (
        pytest.raises(Refused, match="resume_from_checkpoint: 'x/step_3' -> 'x/step_4'"),
        claimed(tmp_path, *measured, "x/step_4"),
    ):
        pass


def test_results_of_version_0_2_0_are_read(tmp_path: Path) -> None:
    version = ROOT / "tests" / "fixtures" / "0.2.0"
    shutil.copy(version / "outputs" / "training" / RESULTS, tmp_path)
    _, arguments = json.loads((version / "commands.json").read_text())["training"]

    def again(*others: str) -> AbstractContextManager[None]:
        settings = glue.SCHEMA.parse([*arguments, "--output_dir", str(tmp_path), *others])
        return output_folder.claimed(settings, make_accelerator(settings.train))

    with again():
        pass
    with pytest.raises(Refused, match="order: 3 -> 9"), again("--order", "9"):
        pass


def test_checkpoints_are_their_runs_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with_checkpoints(out, "step_2", "step_4")
    with_checkpoints(tmp_path / "other", "step_2")
    own = ("--resume_from_checkpoint", str(out / "step_2"))
    other = ("--resume_from_checkpoint", str(tmp_path / "other" / "step_2"))
    words = r"has step_2, step_4. Continue that run"
    for others in ((), other, ("--do_eval_only", *own)):
        with pytest.raises(Refused, match=words), claimed(out, *others):
            pass
    for others in (own, ("--resume_from_checkpoint", "last")):
        with claimed(out, *others):
            pass
    shutil.rmtree(out)
    (out / "step_999").mkdir(parents=True)  # unfinished
    with claimed(out):
        pass


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resume_from_checkpoint", "last"),
        ("model_name_or_path", "{out}"),
        ("model_name_or_path", "{out}/../out/step_2/model"),
        ("train_file", "{out}/CoLA.tsv"),
    ],
)
def test_what_the_run_reads_is_not_removed(tmp_path: Path, name: str, value: str) -> None:
    out = tmp_path / "out"
    with_checkpoints(out, "step_2")
    (out / "CoLA.tsv").touch()
    for folder in ("bert", "step_2/model"):
        (out / folder).mkdir()
    flag = (f"--{name}", value.format(out=out), "--overwrite_output_dir")
    with pytest.raises(Refused, match=rf"^{name} is .*does not remove"), claimed(out, *flag):
        pass
    beside = out / "bert"
    with claimed(out, "--model_name_or_path", str(beside), "--overwrite_output_dir"):
        pass


def test_nothing_of_the_former_run_is_left(tmp_path: Path) -> None:
    out, logged = tmp_path / "out", ("--report_to", "tensorboard")
    adapter = ("--variant", "gfsa", "--peft", "lora", "--checkpointing_steps", "1")
    glue.main(flags(tmp_path, "mrpc", *adapter, "--do_predict", *logged))
    assert {"adapter_config.json", "MRPC.tsv", "step_1"} <= {path.name for path in out.iterdir()}
    for name in ("mine.tsv", "CoLA.tsv", ".step_7.part", "example.png"):
        (out / name).touch()
    before = stamps(out)
    shutil.rmtree(tmp_path / "data")
    other = [*flags(tmp_path, "cola", *logged), "--overwrite_output_dir"]
    (tmp_path / "no_model").mkdir()
    empty = ("--model_name_or_path", str(tmp_path / "no_model"))
    with pytest.raises((OSError, ValueError), match="no_model"):
        glue.main([*other, *empty, "--tokenizer_name", str(tmp_path / "bert")])
    assert stamps(out) == before
    glue.main(other)
    assert before.items() & stamps(out).items() == {(out / "mine.tsv", before[out / "mine.tsv"])}
    assert not ga.is_patched(AutoModelForSequenceClassification.from_pretrained(out))


def stamps(folder: Path) -> dict[Path, int]:
    """When each file was last written."""
    return {x: x.stat().st_mtime_ns for x in folder.rglob("*") if x.is_file() and x.name != LOCK}


def test_a_second_run_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    """Two processes, the first of which is killed."""
    endless = flags(tmp_path, "cola", "--num_train_epochs", "100000")
    command = [warm.python("finetune"), "finetune/glue.py"]
    log, again = tmp_path / "out" / LOG, ("--resume_from_checkpoint", "last")
    first = subprocess.Popen([*command, *endless], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        while not (log.is_file() and log.stat().st_size):
            assert first.poll() is None
            time.sleep(0.02)
        for others in ((), ("--overwrite_output_dir",), again):
            words = r"no other run is at work\. Wait for the end of process (\d+) on"
            with pytest.raises(Refused, match=words) as refused:
                glue.main([*endless, *others])
        os.kill(int(re.findall(words, str(refused.value))[0]), signal.SIGKILL)
        first.wait()
    finally:
        first.kill()
    glue.main(flags(tmp_path, "cola", "--max_train_steps", "1"))
    assert written(tmp_path)["steps"] == 1


def test_every_process_of_a_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first finds the fault and sends it to the others."""
    sent: list[list[str | None]] = []
    monkeypatch.setattr(
        output_folder, "broadcast_object_list", lambda fault: sent.append(fault) or sent[0]
    )
    with locks.held(tmp_path, LOCK):
        for is_main in (True, False):
            process: Any = SimpleNamespace(is_main_process=is_main)
            started = output_folder.claimed(parsed(tmp_path), process)
            with pytest.raises(Refused, match="a folder in which no other run is at work"), started:
                pass
    assert sent[1] == [None]


def test_a_folder_that_cannot_be_and_damaged_results_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = r"^output_dir is .*; allowed: a folder that can be made and written to; here: \w+"
    with pytest.raises(Refused, match=message), claimed(tmp_path / "file" / "in"):
        pass
    (tmp_path / RESULTS).write_bytes(b'{"eval_loss": 1.0}')
    with pytest.raises(Refused, match=rf"{RESULTS} is 'damaged'.*Remove"), claimed(tmp_path):
        pass


def test_a_folder_that_is_removed_meanwhile_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    started = trainer(tmp_path, "--output_dir", str(out))
    loss = started.objective.loss

    def removing(*inputs: Any) -> torch.Tensor:
        shutil.rmtree(out)
        return loss(*inputs)

    object.__setattr__(started.objective, "loss", removing)
    for write, name in (
        (started.train, LOG),
        (started.evaluate, "eval_predictions.tsv"),
        (lambda: checkpoints.save(started.accelerator, out / "step_1", {}, {}), "step_1"),
    ):
        with pytest.raises(SaveError, match=rf"out/{name} could not be saved.*folder exists"):
            write()
    assert not out.exists()


def test_a_child_keeps_the_lock(tmp_path: Path) -> None:
    """As a run does whose comparison was ended; package filelock would unlock it here."""
    with locks.held(tmp_path) as lock:
        assert locks.holder(tmp_path).startswith(f"process {os.getpid()} on ")
        child = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    try:
        with locks.held(tmp_path) as lock:
            assert lock is None
        with locks.held(tmp_path, "another") as lock:
            assert lock is not None
    finally:
        child.kill()
        child.wait()
    with locks.held(tmp_path) as lock:
        assert lock is not None


def test_a_file_system_without_locks_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    number = errno.ENOLCK
    with locks.held(tmp_path) as first, locks.held(tmp_path) as second:
        assert None not in (first, second)
    assert f"{tmp_path} cannot be locked ({os.strerror(number)})" in caplog.text
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(number)), locks.held(tmp_path):
        pass
