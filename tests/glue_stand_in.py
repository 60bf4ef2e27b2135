"""A stand-in for glue.py whose metric is known and at once there, and sweeps of it."""

from __future__ import annotations

import json
from pathlib import Path

# A script whose metric is known: greatest at order 5 and w_0 0.02, and a seed adds the same to all.
FAKE = """
import json, sys
from pathlib import Path

words = sys.argv[1:]
given = {name.removeprefix("--"): value for name, value in zip(words, words[1:])}
out, seed = Path(given["output_dir"]), int(given["seed"])
with (out.parents[2] / "calls.txt").open("a") as calls:
    calls.write(f"{out.parent.name} {seed}\\n")
stop = out.parents[2] / "stop"
if stop.exists() and out.parent.name != "none":
    sys.exit("stopped")
order, w_0 = int(given.get("order", 3)), float(given.get("w_0", 0.02))
value = 0.5 + 0.01 * seed
if given["variant"] != "none":
    value += 0.1 - 0.01 * (order - 5) ** 2 - (w_0 - 0.02) ** 2
name = "eval_matthews_correlation"
found = {"settings": {"seed": seed}, name: value, "best": {"metric": name}, "history": []}
(out / "all_results.json").write_text(json.dumps(found))
"""


def save(folder: Path) -> Path:
    """The stand-in as ``folder``/glue.py; returns the folder."""
    (folder / "glue.py").write_text(FAKE)
    return folder


def argv(folder: Path, text: str, *others: str) -> list[str]:
    """Words of sweep.py for this space, two seeds of gfsa on CoLA."""
    words = ["--script", str(folder / "glue.py"), "--output_dir", str(folder / "out")]
    words += ["--task_name", "cola", "--model_name_or_path", "m"]
    return [*words, "--variant", "gfsa", "--space", text, "--seeds", "2", *others]


def calls(folder: Path) -> list[str]:
    """Setting and seed of each run that was started."""
    path = folder / "out" / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def report(folder: Path) -> dict:
    """What the sweep wrote."""
    return json.loads((folder / "out/sweep.json").read_text())
