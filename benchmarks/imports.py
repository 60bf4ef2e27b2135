"""What `import hf_graphattn` adds to an import of transformers; how long patching and --help take.

Every import is timed inside a process of its own; the processes take turns.

python benchmarks/imports.py --output imports.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median

import measure
from transformers import BertConfig, BertModel

import hf_graphattn as ga

OURS = "import hf_graphattn as ga"
HELP = """
import contextlib, io
from finetune import glue
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    glue.main(["--help"])
"""
CASES = {  # (what the process has imported before, what is timed)
    "import transformers": ("", "import transformers"),
    "  + import hf_graphattn": ("import transformers", OURS),
    "import torch": ("", "import torch"),
    "  + finetune/glue.py --help": ("import torch", HELP),
    "  + import transformers, its models": ("import torch", "from transformers import BertModel"),
    "    + import hf_graphattn": ("from transformers import BertModel", OURS),
    "      + ga.patch_model": (f"from transformers import BertModel\n{OURS}", "ga.patch_model"),
}


def seconds(before: str, timed: str) -> float:
    """Seconds that the statement `timed` takes in a new process."""
    script = f"{before}\nimport time\nstart = time.perf_counter()\n{timed}\n"
    command = [sys.executable, "-c", script + "print(time.perf_counter() - start)"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def imports(rounds: int) -> dict[str, list[float]]:
    """Seconds of every case, a value a round; a first round fills the disk cache."""
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    for turn in range(rounds + 1):
        for name, case in CASES.items():
            taken[name] += [seconds(*case)] * (turn > 0)
    return taken


def patching(rounds: int) -> dict[str, measure.Timing]:
    """Seconds to patch and to unpatch BERT-base, random weights."""
    model = BertModel(BertConfig())
    cases = {
        "patch_model": lambda: ga.patch_model(model, ga.GFSAConfig()),
        "unpatch_model": lambda: ga.unpatch_model(model),
    }
    return measure.interleaved(cases, rounds=rounds)


def main() -> None:
    """Print a table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="Processes an import.")
    parser.add_argument("--output", type=Path, help="JSON file.")
    arguments = parser.parse_args()
    patched = patching(max(20, arguments.rounds))
    for name, timing in patched.items():
        print(f"{'BERT-base, ' + name:38s}{1000 * timing.seconds:8.1f} ms")
    imported = imports(arguments.rounds)
    for name, taken in imported.items():
        low, high = (1000 * edge(taken) for edge in (min, max))
        print(f"{name:38s}{1000 * median(taken):8.1f} ms  ({low:.1f} to {high:.1f})")
    if arguments.output:
        results = {
            "machine": measure.origin(),
            "imports": {name.strip(): taken for name, taken in imported.items()},
            "patching": {name: asdict(timing) for name, timing in patched.items()},
        }
        measure.write(arguments.output, results)


if __name__ == "__main__":
    main()
