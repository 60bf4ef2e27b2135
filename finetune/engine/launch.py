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
from finetune.settings.schema import Run
from finetune.settings.training import EVERY, NOWHERE, TrainArguments

ON_CPUS = (
    "Start several processes on the CPU with "
    "`ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 SCRIPT ...`: "
    "`--multi_gpu` only means several processes."
)


@contextmanager
def start(settings: Run[Any, Any]) -> Iterator[Accelerator]:
    """The accelerator of a run, with the main process's log on the terminal and the seed set.

    Meanwhile its output folder is locked: `output_folder.claimed` says when that is refused.
    """
    accelerator = make_accelerator(settings.train)
    terminal.show_log(is_main_process=accelerator.is_main_process)
    set_seed(settings.train.seed)
    with output_folder.claimed(settings, accelerator):
        if settings.train.push_to_hub and accelerator.is_main_process:
            publishing.repository(settings)  # before hours of training, not after
        yield accelerator


def make_accelerator(train: TrainArguments) -> Accelerator:
    """The accelerator of a run: seeded order of rows, a schedule that counts updates."""
    known = [str(tracker) for tracker in get_available_trackers()]
    trackers = [EVERY, *known] if known else []
    if train.tracker not in (None, *trackers):  # accelerate would leave it out
        allowed = f"{', '.join([NOWHERE, *trackers])}: what can be imported here"
        raise refusal("report_to", train.tracker, allowed, "Choose one, or install a tracker.")
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


def _check_launch(accelerator: Accelerator) -> None:
    """Refuse a launch of which accelerate silently does less."""
    device, environment = accelerator.device.type, os.environ
    on_cpu, sharded = (
        environment.get(f"ACCELERATE_USE_{name}", "").lower() == "true" for name in ("CPU", "FSDP")
    )
    # With `--cpu` the launcher sets the address where several processes meet, and no ranks.
    unranked = on_cpu and "MASTER_ADDR" in environment and "RANK" not in environment
    several = unranked or int(environment.get("WORLD_SIZE", 1)) > 1
    unsharded = sharded and accelerator.distributed_type != DistributedType.FSDP
    if several and (unsharded or accelerator.num_processes == 1):
        kind = "FSDP" if sharded else "several processes"
        allowed = f"a single process, all that accelerate starts so on {device}"
        raise refusal("the launch", kind, allowed, ON_CPUS)
    if accelerator.mixed_precision == "fp16" and device == "cpu":
        allowed = "no or bf16 on cpu, where accelerate leaves fp16 out"
        raise refusal("mixed_precision", "fp16", allowed, "Choose one of these.")
