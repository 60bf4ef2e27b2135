"""``all_results.json``: written whole, with where its numbers come from."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from finetune.engine import storage
from finetune.errors import refusal

RESULTS = "all_results.json"
PACKAGES = ("hf_graphattn", "torch", "transformers", "datasets", "accelerate")


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write whole, so that a reader never meets half a file; NaN becomes null."""
    storage.write_text(path, json.dumps(finite(values), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A run's results, or the record of its start.

    Raises ``Refused`` if the file is damaged, or has no settings of the run.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
    except ValueError:
        values = None
    if isinstance(values, dict) and isinstance(values.get("settings"), dict):
        return values
    remedy = f"Remove {path.parent}, and the run is done again."
    raise refusal(str(path), "damaged", "the JSON that a run leaves", remedy)


def origin(accelerator: Accelerator) -> dict[str, Any]:
    """Where results come from: versions, commit, machine."""
    known = hasattr(os, "sched_getaffinity")
    return {
        "versions": versions() | {"python": platform.python_version()},
        "git": _commit(),
        "machine": {
            "device": accelerator.device.type,
            "name": machine_name(accelerator),
            "cores": len(os.sched_getaffinity(0)) if known else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processes": accelerator.num_processes,
            "mixed_precision": accelerator.mixed_precision,
        },
    }


def machine_name(accelerator: Accelerator) -> str:
    """The GPU's name, or the processor's."""
    if accelerator.device.type == "cuda":
        return torch.cuda.get_device_name(accelerator.device)
    return cpu_name()


def cpu_name() -> str:
    """The processor's name as the system has it."""
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text("utf-8").splitlines() if cpu_info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions() -> dict[str, str]:
    """The installed version of each package that numbers depend on."""
    return {name: metadata.version(name) for name in PACKAGES}


def peak_memory(accelerator: Accelerator) -> int:
    """Bytes at the highest: of the device's tensors on a GPU, else of this process."""
    if accelerator.device.type == "cuda":
        return torch.cuda.max_memory_allocated(accelerator.device)
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, whose ru_maxrss counts what the parent held before the fork
        lines = (line.split() for line in status.read_text("utf-8").splitlines())
        return next(1024 * int(cells[1]) for cells in lines if cells[0] == "VmHWM:")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def finite(value: Any) -> Any:
    """The value as JSON has it; NaN and infinity, in whatever containers, become None."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def _commit() -> dict[str, Any] | None:
    """The repository's commit and whether files differ from it; None outside a repository."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        text = subprocess.check_output(
            [*git, "--abbrev=40", "--exclude=*"], stderr=subprocess.DEVNULL, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    commit, dirty, _ = text.strip().partition("-dirty")
    return {"commit": commit, "dirty": bool(dirty)}
