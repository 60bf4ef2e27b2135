"""Two commits in one run: a script's rows by the library of either, a round at a time in turns.

python benchmarks/commits.py --base main~10 attention.py --lengths 512 1024 --forms gfsa
python benchmarks/commits.py --base main~10 --output commits.json    # all of TABLE: 15 minutes

The scripts and their cases are those of this tree; of the base it is the library alone. Each has a
process of its own, and only that whose turn it is does anything. Ratios are to plain attention in
the same process and round.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import measure

ROOT = Path(__file__).resolve().parents[1]
TABLE = (
    "attention.py --lengths 1024 2048 --forms gfsa --memory --budget 12",
    "attention.py --lengths 512 --batch 8 --forms gfsa --memory --budget 12",
    "attention.py --lengths 256 512 --batch 8 --bidirectional --forms gfsa --memory --budget 12",
    "attention.py --lengths 2048 --bidirectional --forms gfsa --memory --budget 12",
    "attention.py --lengths 512 1024 --forms plat --memory --budget 12",
    "attention.py --lengths 4096 --forms plat --memory --budget 12",
    "decode.py --context 128 768 --default_allocator --rounds 30",
    "step.py --cases gpt2 --forms gfsa --budget 40",
    "step.py --cases gpt2-dropout --forms gfsa --budget 40",
    "inference.py --cases bert gpt2-prefill vit --forms gfsa --budget 20",
)


def library(commit: str | None, folder: Path) -> Path:
    """The folder that holds hf_graphattn as it was at this commit; None: as it is in this tree."""
    if commit is None:
        return ROOT
    command = ["git", "-C", str(ROOT), "archive", commit, "hf_graphattn"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def named(commit: str) -> str:
    """The whole name of a commit."""
    found = measure.git("rev-parse", "--verify", f"{commit}^{{commit}}")
    return found or sys.exit(f"there is no commit {commit!r}")


def work(folder: str, script: str, *flags: str) -> None:
    """In a process of its own: run a script with this library, beginning with its first turn."""
    if Path(folder) != measure.ROOT:
        sys.exit(f"the library is that of {measure.ROOT}, not of {folder}")
    os.read(0, 1)
    sys.argv = [script, *flags]
    runpy.run_path(str(Path(__file__).parent / script), run_name="__main__")


def run(command: list[str], libraries: dict[str, Path], folder: Path) -> dict[str, Any]:
    """What the script writes with each of the libraries, by its name."""
    ends = socket.socketpair()
    working, outputs = [], {name: folder / f"{name}.json" for name in libraries}
    for end, (name, path) in zip(ends, libraries.items(), strict=True):
        worker = [sys.executable, __file__, str(path), *command, "--output", str(outputs[name])]
        working.append(
            subprocess.Popen(
                worker,
                env=os.environ | {"PYTHONPATH": str(path), measure.TURNS: "1"},
                stdin=end,
                stdout=subprocess.DEVNULL,
            )
        )
    ends[1].send(b".")  # the first one's turn
    for end in ends:
        end.close()
    ended = [process.wait() for process in working]
    if any(ended):
        sys.exit(f"{' '.join(command)}: failed, see above")
    return {name: json.loads(path.read_text("utf-8")) for name, path in outputs.items()}


def timings(found: dict[str, Any], *place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(its place, a timing), for each in the JSON of a benchmark."""
    if "ratio" in found:
        yield " ".join(place), found
        return
    for key, value in found.items():
        if isinstance(value, dict):
            yield from timings(value, *place, key)


def shown(timing: dict[str, Any]) -> str:
    memory = f" (+{timing['peak_bytes'] / 2**20:.0f} MB)" if "peak_bytes" in timing else ""
    return f"{timing['ratio']:5.2f}{memory}"


def add(path: Path, rows: dict[str, Any]) -> None:
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    measure.write(path, known | rows)


def main() -> None:
    """Print both ratios of each row; write them beside what other commands have given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True, type=named, help="The commit to compare with.")
    parser.add_argument("--new", type=named, help="The other one (default: this tree as it is).")
    parser.add_argument("--output", type=Path, help="JSON file; other commands' rows are kept.")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="And its flags; default: TABLE.")
    arguments = parser.parse_args()
    commits = {"base": arguments.base, "new": arguments.new}
    commands = [arguments.script] if arguments.script else [row.split() for row in TABLE]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        libraries = {each: library(commit, folder / each) for each, commit in commits.items()}
        for command in commands:
            found = run(command, libraries, folder)
            base, new = (dict(timings(each)) for each in found.values())
            print(" ".join(command))
            for place in base:
                print(f"  {place:32s} {shown(base[place])} -> {shown(new[place])}", flush=True)
            if arguments.output:
                rows = {place: {"base": base[place], "new": new[place]} for place in base}
                row = commits | {"machine": found["new"]["machine"], "rows": rows}
                add(arguments.output, {" ".join(command): row})


if __name__ == "__main__":
    work(*sys.argv[1:]) if measure.TURNS in os.environ else main()
