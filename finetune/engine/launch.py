"""How a run begins: its processes, its log, its seed, and a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import DataLoaderConfiguration, DistributedType, set_seed

from finetune import terminal
from finetune.engine import output_folder, publishing
from finetune.errors import refusal
from finetune.settings.schema import Settings
from finetune.settings.training import EVERY, NOWHERE, TrainArguments

ON_CPUS = (
    "Start several processes on the CPU with "
    "`ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 SCRIPT ...`: "
    "`--multi_gpu` only means several processes."
)


@contextmanager
def start(settings: Settings[Any, Any]) -> Iterator[Accelerator]:
    """The accelerator of a run, with the main process's log shown and the seed set.

    Meanwhile its output folder is its own: `output_folder.claimed` says when that is refused.
    """
    accelerator = make_accelerator(settings.train)
    with terminal.log_shown(accelerator.is_main_process):
        set_seed(settings.train.seed)
        with output_folder.claimed(settings, accelerator):
            if settings.train.push_to_hub and accelerator.is_main_process:
                publishing.repository(settings)  # before hours of training, not after
            yield accelerator


def make_accelerator(train: TrainArguments) -> Accelerator:
    """The accelerator of a run: seeded order of rows, a schedule that counts updates."""
    _check_tracker(train.tracker)
    accelerator = Accelerator(
        mixed_precision=train.mixed_precision,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        log_with=train.tracker,
        project_dir=train.output_dir,
        # By default accelerate steps a schedule once for each process and update.
        step_scheduler_with_optimizer=False,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=train.seed),
    )
    _check_launch(accelerator)
    return accelerator


def _check_tracker(name: str | None) -> None:
    """Refuse a tracker that is not here: accelerate would leave it out."""
    if name is None:
        return
    known = [str(each) for each in get_available_trackers()]
    if name not in known and not (name == EVERY and known):
        allowed = ", ".join((NOWHERE, *([EVERY] if known else ()), *known))
        remedy = "Choose one of these, or install a tracker, such as tensorboard."
        raise refusal("report_to", name, f"{allowed}: what can be imported here", remedy)


def _check_launch(accelerator: Accelerator) -> None:
    """Refuse processes that would not train together as they were launched to."""
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    # The launcher sets the address where several processes meet, and no rank for any of them.
    meets_others = "MASTER_ADDR" in os.environ and "RANK" not in os.environ
    if on_cpu and meets_others and accelerator.num_processes == 1:
        raise refusal(
            "num_processes",
            "more than 1",
            "1, since accelerate's flag `--cpu` starts a single process without MPI",
            ON_CPUS,
        )
    if accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        raise refusal(
            "mixed_precision",
            "fp16",
            "no or bf16 on cpu, where accelerate leaves fp16 out without a word",
            "Choose one of these.",
        )
    # Without GPUs accelerate leaves FSDP out, and what joins the processes, and says nothing.
    sharded = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    unsharded = sharded and accelerator.distributed_type != DistributedType.FSDP
    several = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if several and (unsharded or accelerator.num_processes == 1):
        raise refusal(
            "the launch",
            "FSDP" if sharded else "several GPUs",
            f"what can run on {accelerator.device.type}, the only device that accelerate found",
            ON_CPUS,
        )
