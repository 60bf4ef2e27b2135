"""Every GPU figure, a row after the other in the order of their worth: see `gpu_rows.py`.

python benchmarks/gpu.py                     # writes benchmarks/results/gpu-<gpu>.json
python benchmarks/gpu.py --budget 540        # ends within nine minutes; started again, it goes on
python benchmarks/gpu.py --device cpu --tiny --output runs/dry.json    # all of it, anywhere

Each row runs in a process of its own and is written as soon as it is measured. One that fails is
written with the words of its failure, and the next one runs; started again, what failed comes last.
The project need not be installed; what else has to be there is checked first. A machine whose files
do not stay: give `--output`, take the file away, and put it there again before the next call.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Row = Callable[[], Iterator[tuple[str, Any]]]  # what was measured, and its figures
ROOT = Path(__file__).resolve().parents[1]
# What the rows need; the library as a whole needs a newer transformers, for other models.
LOWEST = {
    "torch": "2.9",
    "triton": "3.5",
    "transformers": "5.17",
    "safetensors": "0.8",
    "lazy_loader": "0.4",
}
MACHINE = "machine"  # the first row: a parent that asks for the device could not fork any more
SHORTEST = 15.0  # seconds: with less left of the budget no row is begun


def missing() -> list[str]:
    """What is not here, or is too old, as requirements of pip."""
    found = []
    for name, lowest in LOWEST.items():
        try:
            given = metadata.version(name)
        except metadata.PackageNotFoundError:
            given = "0"
        if _numbers(given) < _numbers(lowest):
            found.append(f"{name}>={lowest}")
    return found


def check_packages() -> None:
    """Stop where a package is missing or too old, and say which wheels to bring, and how."""
    if wanted := missing():
        sys.exit(
            f"missing or too old here: {', '.join(wanted)}. Without a network: fetch the wheels "
            f"elsewhere, for this Python ({sys.version_info.major}.{sys.version_info.minor}), with "
            f"pip download --no-deps -d wheels {' '.join(map(repr, wanted))}, bring them, and "
            "pip install --no-index --no-deps --target site wheels/*.whl; export PYTHONPATH=site"
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]


def piped(row: Row, sender: Connection) -> None:
    """Run a row in this process: its figures, or the words of its failure, go into the pipe."""
    import torch

    torch.manual_seed(0)
    try:
        for piece in row():
            sender.send(piece)
    except BaseException as error:
        traceback.print_exc()
        sender.send(("failed", f"{type(error).__name__}: {error}"))


def measured(row: Row, limit: float) -> dict[str, Any]:
    """A row's figures, from a process of its own that is ended after `limit` seconds."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=piped, args=(row, sender))
    start, found = time.monotonic(), {}
    child.start()
    sender.close()
    try:
        while receiver.poll(max(0.0, limit - (time.monotonic() - start))):
            what, figures = receiver.recv()
            found[what] = figures
        found["failed"] = f"not done within {limit:.0f} seconds"
        child.kill()
    except EOFError:
        pass
    child.join()
    if child.exitcode and "failed" not in found:
        found["failed"] = f"its process ended with exit code {child.exitcode}"
    return found | {"seconds": round(time.monotonic() - start, 1)}


def order(rows: dict[str, Any], done: dict[str, Any]) -> list[str]:
    """The rows still to be measured: those that failed before come last."""
    failed = [name for name in rows if "failed" in done.get(name, ())]
    return [name for name in rows if name not in done] + failed


def write(path: Path, values: dict[str, Any]) -> None:
    """Write all that is known; a stop in the middle leaves the file that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    os.replace(draft, path)


def go_on(
    rows: dict[str, Row], values: dict[str, Any], path: Path, limit: float, end: float
) -> None:
    """Measure row after row, each within `limit` seconds, until the clock shows `end`."""
    done = values["rows"]
    for name in order(rows, done):
        left = end - time.monotonic()
        if left < SHORTEST:
            break
        found = measured(rows[name], min(limit, left))
        if left < limit and found["seconds"] >= left:
            break  # the end of the budget, not of the row's patience
        done[name] = found | {"commit": values[MACHINE]["commit"]}
        write(path, values)
        print(f"{name:28s} {found['seconds']:6.1f} s  {found.get('failed', '')}", flush=True)


def main() -> None:
    """Measure what is not measured yet; the exit code is 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="JSON file; what it has is not done again.")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="Sizes that measure nothing.")
    parser.add_argument("--rows", nargs="+", help="These alone (default: all).")
    parser.add_argument("--limit", type=float, default=180.0, help="Seconds a row.")
    parser.add_argument("--budget", type=float, default=float("inf"), help="Seconds of this call.")
    parser.add_argument("--list", action="store_true", help="Print the rows alone.")
    arguments = parser.parse_args()
    start = time.monotonic()
    check_packages()
    sys.path.insert(0, str(ROOT))  # the library need not be installed
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # whoever asks for a device can still fork
    import gpu_rows

    rows = gpu_rows.rows(arguments.device, arguments.tiny)
    if unknown := set(arguments.rows or ()) - set(rows):
        sys.exit(f"no such row: {', '.join(sorted(unknown))}; allowed: {', '.join(rows)}")
    rows = {name: row for name, row in rows.items() if name in (arguments.rows or rows)}
    if arguments.list:
        print("\n".join(rows))
        return
    machine = measured(partial(gpu_rows.machine, arguments.device), arguments.limit)
    if "failed" in machine:
        sys.exit(f"nothing is measured on {arguments.device}: {machine['failed']}")
    device = machine[MACHINE]["device"]
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    path = arguments.output or ROOT / "benchmarks" / "results" / f"gpu-{slug}.json"
    values = json.loads(path.read_text("utf-8")) if path.exists() else {"rows": {}}
    if values.get(MACHINE, machine[MACHINE])["device"] != device:
        sys.exit(
            f"{path} is of {values[MACHINE]['device']}, this is {device}: give another --output"
        )
    values[MACHINE] = machine[MACHINE]
    go_on(rows, values, path, arguments.limit, start + arguments.budget)
    done = values["rows"]
    failed = [name for name in rows if "failed" in done.get(name, ())]
    rest = [name for name in rows if name not in done]
    print(f"{path}: {len(failed)} rows failed, {len(rest)} are left of {len(rows)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
