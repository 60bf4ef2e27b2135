"""The GLUE script from flags to files: every task, every variant, and through the launcher."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_task
import torch
from accelerate.utils import DistributedType
from edges import leading
from glue_runs import LAUNCH, ROOT, check_loss, flags, written

import hf_graphattn as ga
import tasks
from finetune import glue
from finetune.engine import launch
from finetune.engine.results import EVALUATED
from finetune.settings.training import TrainArguments

SUBMITTED = {
    "mnli": {"entailment", "neutral", "contradiction"},
    "qnli": {"entailment", "not_entailment"},
    "rte": {"entailment", "not_entailment"},
}


@pytest.mark.parametrize("task", ["cola", "mrpc", "stsb", "mnli", "rte", "demo"])
def test_a_task_of_each_kind_runs_and_writes_its_submission(tmp_path: Path, task: str) -> None:
    returned = glue.main(flags(tmp_path, task, "--do_predict"))
    results = written(tmp_path)
    assert returned["eval_loss"] == results["eval_loss"]
    row = tasks.get(task, "glue")
    for suffix in [split.key_suffix for split in row.validation_splits]:
        assert {f"eval_{row.main_metric}{suffix}", f"eval_loss{suffix}"} <= set(results)
    for split in row.test_splits:
        header, *lines = (tmp_path / "out" / split.prediction_file).read_text().splitlines()
        assert header == "index\tprediction"
        assert [line.split("\t")[0] for line in lines] == ["0", "1", "2", "3", "4"]
        predicted = {line.split("\t")[1] for line in lines}
        if task == "stsb":
            assert all(0 <= float(value) <= 5 for value in predicted)
        else:
            assert predicted <= SUBMITTED.get(task, {"0", "1"})


@pytest.mark.parametrize("variant", ["gfsa", "plat", "laplacian", "neutreno", "contranorm"])
def test_variants_train_save_and_load(tmp_path: Path, variant: str) -> None:
    glue.main(flags(tmp_path, "cola", "--variant", variant))
    results = written(tmp_path)
    model = ga.from_pretrained(tmp_path / "out")
    assert results["filter_scalars"] == sum(p.numel() for _, p in ga.filter_parameters(model))
    assert results["settings"]["variant"] == variant == model.config.graph_attn["variant"]
    assert results["steps"] == 2
    assert results["seconds_per_step"] > 0


def test_results_say_where_they_come_from_and_a_seed_repeats_them(tmp_path: Path) -> None:
    tracked = ("--learning_rate", "1e-2", "--with_tracking", "--report_to", "tensorboard")
    first, other, again = (
        glue.main(flags(tmp_path, "cola", *tracked, "--overwrite_output_dir", "--seed", seed))
        for seed in ("5", "2", "5")
    )
    assert first["train_loss"] == again["train_loss"] != other["train_loss"]
    assert first["eval_loss"] == again["eval_loss"] != other["eval_loss"]
    results = written(tmp_path)
    assert results["settings"]["seed"] == 5
    assert results["versions"]["hf_graphattn"] == ga.__version__
    assert results["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert results["machine"]["processes"] == 1
    assert results["machine"]["cores"] >= 1
    assert len(results["history"]) == 1
    assert list((tmp_path / "out").rglob("events.out.tfevents*"))


def test_the_scalars_own_learning_rate_moves_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    still = ("--variant", "gfsa", "--learning_rate", "0")

    def run(*rate: str) -> dict:
        caplog.clear()
        out = str(tmp_path / "-".join(["out", *rate]))
        return glue.main(flags(tmp_path, "cola", *still, *rate, "--output_dir", out))

    results = run("--filter_learning_rate", "0")
    assert results["filter_max_abs"] == results["filter_max_moved"] == 0.0
    assert "moved by less than 0.001 at a learning rate of 0:" in caplog.text
    # Two updates of AdamW at a rate that falls linearly from 0.1: each as long as its rate at most.
    results = run("--filter_learning_rate", "0.1")
    assert results["filter_max_moved"] == results["filter_max_abs"] > 0.05
    assert "moved by less than" not in caplog.text
    results = run()
    assert results["settings"]["filter_learning_rate"] == 0.01
    assert 0.005 < results["filter_max_moved"] < 0.02
    assert "moved by less than" not in caplog.text


@pytest.mark.parametrize("order", leading(1, [("--group_by_length",), ()]))
def test_two_processes_are_one_at_the_same_global_batch(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    tiny_task.save_data(tasks.get("cola", "glue"), tmp_path / "data", train=15)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    tiny_task.save_bert(tmp_path / "bert", **still)
    argv = flags(tmp_path, "cola", "--variant", "gfsa", "--order", "4", "--w_0", "-0.01")
    argv += ["--num_train_epochs", "2", "--gradient_accumulation_steps", "2", "--eval_steps", "1"]
    argv += ["--per_device_eval_batch_size", "2", "--learning_rate", "0.008", "--do_predict"]
    # 15 rows: the last batch of an epoch is short, and so is the epoch's last update.
    argv += order
    alone = glue.main([*argv, "--per_device_train_batch_size", "4"])
    predicted = (tmp_path / "out" / EVALUATED.format("")).read_text()
    argv += ["--per_device_train_batch_size", "2", "--checkpointing_steps", "epoch"]
    argv += ["--overwrite_output_dir"]
    launch = "--multi_gpu --num_processes 2 --num_machines 1 --main_process_port 0"
    run_script(*launch.split(), argv=argv)
    results = written(tmp_path)
    assert (results["machine"]["processes"], alone["machine"]["processes"]) == (2, 1)
    assert [(h["epoch"], h["step"]) for h in results["history"]] == [(1, 1), (1, 2), (2, 3), (2, 4)]
    rates = [h["learning_rate"] for h in results["history"]]
    assert rates == pytest.approx([0.006, 0.004, 0.002, 0.0])
    for mine, theirs in zip(results["history"], alone["history"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)
    assert results["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-4)
    # Adam divides by the gradient's size: it magnifies the rounding of one that nearly vanishes.
    assert results["filter_max_abs"] == pytest.approx(alone["filter_max_abs"], rel=1e-2) != 0
    assert len((tmp_path / "out" / "CoLA.tsv").read_text().splitlines()) == 1 + 5
    assert (tmp_path / "out" / EVALUATED.format("")).read_text() == predicted
    saved = {path.name for path in (tmp_path / "out" / "step_4").iterdir()}
    assert {"random_states_0.pkl", "random_states_1.pkl", "model.safetensors"} <= saved
    check_loss(ga.from_pretrained(tmp_path / "out"), tmp_path / "out", results["eval_loss"])


def test_a_launch_that_loses_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What `accelerate launch --cpu --num_processes 2` sets for the only process it starts.
    for name, value in (("ACCELERATE_USE_CPU", "True"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ValueError, match=r"the launch is 'several processes'.*--multi_gpu --num_processes 2"
    ):
        glue.main(flags(tmp_path, "cola"))


SHARDED, SEVERAL = r"the launch is 'FSDP'; .* on cpu.*--multi_gpu", r"the launch is 'several proc"
FP16 = r"^mixed_precision is 'fp16'; allowed: no or bf16 on cpu"


@pytest.mark.parametrize(
    ("launched", "found", "processes", "precision", "message"),
    [
        ({"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"}, "MULTI_CPU", 2, "no", SHARDED),
        ({"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"}, "NO", 1, "no", SHARDED),
        ({"WORLD_SIZE": "2"}, "NO", 1, "no", SEVERAL),
        ({}, "NO", 1, "fp16", FP16),  # which the flag or the launcher may have asked for
    ],
)
def test_a_launch_of_which_accelerate_silently_does_less_is_refused(
    launched: dict[str, str],
    found: str,
    processes: int,
    precision: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It trains without FSDP, each process by itself, or in float32."""
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    stand_in = SimpleNamespace(
        num_processes=processes,
        distributed_type=DistributedType[found],
        device=torch.device("cpu"),
        mixed_precision=precision,
    )
    monkeypatch.setattr(launch, "Accelerator", lambda **_: stand_in)
    with pytest.raises(ValueError, match=message):
        launch.make_accelerator(TrainArguments(output_dir="out"))


def test_a_tracker_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate would leave it out."""
    with pytest.raises(ValueError, match=r"^report_to is 'comet'; allowed: none, all, tensorboard"):
        launch.make_accelerator(TrainArguments(output_dir="out", report_to="comet"))
    assert TrainArguments(output_dir="out", report_to="none", with_tracking=True).tracker is None
    monkeypatch.setattr(launch, "get_available_trackers", list)
    with pytest.raises(
        ValueError, match=r"^report_to is 'all'; allowed: none: .*install a tracker"
    ):
        launch.make_accelerator(TrainArguments(output_dir="out", with_tracking=True))


def run_script(*launch_flags: str, argv: list[str]) -> None:
    """The script through `accelerate launch`, in the environment of a fresh shell on the CPU."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    done = subprocess.run(
        [*LAUNCH, *launch_flags, "finetune/glue.py", *argv],
        cwd=ROOT,
        env=environment | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
