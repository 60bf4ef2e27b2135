"""How the benchmarks time: interleaved rounds, medians, and where the numbers are from.

The cases of one table run in turns, a round at a time, so that a machine that grows slower grows
slower for all of them. A ratio is the median over rounds of (case / first case), each taken within
one round. `commits.py` runs two processes, of which each does a round in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

import hf_graphattn
from hf_graphattn.version import __version__

ROOT = Path(hf_graphattn.__file__).resolve().parents[1]  # of the library that is measured
TURNS = "BENCHMARKS_TURNS"  # the variable that says that the standard input passes the turns
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
DEFAULT_ALLOCATOR = "Time with malloc as it is, which gives freed memory back."


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median, and the quartiles; ratio to the table's first case."""

    seconds: float
    low: float
    high: float
    ratio: float
    rounds: int


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 7,
    warm_up: int = 1,
    device: str = "cpu",
    budget: float | None = None,
    keep: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time the cases in turns; ``budget`` (seconds) may end the rounds early, after three.

    With ``keep`` freed memory is kept for the next call from now on, as GPUs' allocator does: else
    the forms with large matrices would be timed on page faults too. Without, malloc is left as it
    is, which in a process where nothing was timed with it is glibc's default. ``clock``: its unit
    is a second; ``time.process_time`` is that of a CPU, on which other processes weigh less.
    """
    if keep:
        _keep_freed_memory(True)
    for _ in range(warm_up):
        for call in cases.values():
            call()
    taken: dict[str, list[float]] = {name: [] for name in cases}
    start = time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        for done in range(rounds):
            take_turns()
            for name, call in cases.items():
                taken[name].append(_seconds(call, device, clock))
            if budget is not None and done >= 2 and time.perf_counter() - start > budget:
                break
    finally:
        gc.enable()
    first = next(iter(taken.values()))
    return {name: _timing(seconds, first) for name, seconds in taken.items()}


def take_turns() -> None:
    """Let the other process of `commits.py` do its round; where there is none, nothing."""
    if TURNS in os.environ:
        with contextlib.suppress(BrokenPipeError):  # the other has ended
            os.write(0, b".")
        os.read(0, 1)


def peak_memory(case: Callable[[], Callable[[], object]], device: str = "cpu") -> int:
    """Bytes that one call of ``case()`` needs at its height beyond what its arguments hold.

    On a CPU, in a child process (Linux, glibc): what a second call adds to its resident memory,
    the first having loaded what a first call loads and its freed memory been handed back. No
    earlier call in this process may have started torch's threads.
    """
    if device == "cuda":
        return _peak_on_gpu(case())
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_peak_of_child, args=(case, sender))
    child.start()
    sender.close()
    try:
        return int(receiver.recv())
    except EOFError:
        raise MemoryError("the measured process ended: out of memory?") from None
    finally:
        child.join()


def _peak_on_gpu(call: Callable[[], object]) -> int:
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_of_child(case: Callable[[], Callable[[], object]], sender: Connection) -> None:
    _keep_freed_memory(False)
    call = case()
    call()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the first call freed would serve the second
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = _resident("VmRSS")
    call()
    sender.send(_resident("VmHWM") - before)


def _keep_freed_memory(kept: bool) -> None:
    """Set whether glibc's malloc gives freed memory back; elsewhere, nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_MAX, 0 if kept else 2**16)
    mallopt(M_TRIM_THRESHOLD, -1 if kept else 2**17)  # -1: never
    mallopt(M_MMAP_THRESHOLD, 2**17)


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise ValueError(f"no {field} in /proc/self/status: memory is measured on Linux alone")


def origin(device: str = "cpu") -> dict[str, Any]:
    """Machine, versions and commit, for the JSON beside every table."""
    on_gpu = device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else _cpu(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "python": platform.python_version(),
        "versions": {
            "hf_graphattn": __version__,  # which need not be installed
            "torch": torch.__version__,
            "transformers": metadata.version("transformers"),
        },
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(git("status", "--porcelain")),
    }


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Write the JSON of a benchmark, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def _seconds(call: Callable[[], object], device: str, clock: Callable[[], float]) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def _timing(seconds: list[float], first: list[float]) -> Timing:
    ordered = sorted(seconds)
    count = len(ordered)
    ratios = [one / other for one, other in zip(seconds, first, strict=True)]
    return Timing(
        median(ordered), ordered[count // 4], ordered[(3 * count) // 4], median(ratios), count
    )


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git(*arguments: str) -> str | None:
    """What git prints of the library's tree; None where it fails, or there is no git."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
