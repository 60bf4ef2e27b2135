"""``all_results.json``: written whole, with where its numbers come from."""

from __future__ import annotations

import json
import math
import os
import platform
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
    storage.write_text(path, json.dumps(_finite(values), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """What a run wrote: its results, or what it was started with.

    Raises ``Refused`` if the file is damaged, or says nothing of the run's settings.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        remedy = f"Remove {path.parent}, and the run is done again."
        raise refusal(str(path), "damaged", "the JSON that a run leaves", remedy)
    return found


def origin(accelerator: Accelerator) -> dict[str, Any]:
    """Where results come from: versions, commit, machine."""
    return {
        "versions": versions() | {"python": platform.python_version()},
        "git": _commit(Path(__file__).parent),
        "machine": {
            "device": accelerator.device.type,
            "name": machine_name(accelerator),
            "cores": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count(),
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


def versions() -> dict[str, str]:
    """The installed version of each package that numbers depend on."""
    return {name: metadata.version(name) for name in PACKAGES}


def peak_memory(accelerator: Accelerator) -> int | None:
    """Bytes at the highest: of the device's tensors on a GPU, else of this process.

    None where the system does not say.
    """
    if accelerator.device.type == "cuda":
        return torch.cuda.max_memory_allocated(accelerator.device)
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, whose ru_maxrss counts what the parent held before the fork
        lines = (line.split() for line in status.read_text("utf-8").splitlines())
        return next(1024 * int(words[1]) for words in lines if words[0] == "VmHWM:")
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _commit(folder: Path) -> dict[str, Any] | None:
    """The repository's commit and whether files differ from it; None outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_name() -> str:
    """The processor's name as the system has it."""
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        for line in cpu_info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
