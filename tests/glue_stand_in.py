"""A stand-in for glue.py whose metric is known and at once there, and sweeps of it."""

from __future__ import annotations

import json
from pathlib import Path

# A script whose metric is known: greatest at order 5 and w_0 0.02, and a seed adds the same to all.
FAKE = """
import json, sys
from pathlib import Path

import yaml

given = yaml.safe_load(Path(sys.argv[sys.argv.index("--recipe") + 1]).read_text())
out, seed = Path(given["output_dir"]), given["seed"]
with (out.parents[2] / "calls.txt").open("a") as calls:
    calls.write(f"{out.parent.name} {seed}\\n")
stop = out.parents[2] / "stop"
if stop.exists() and out.parent.name != "none":
    sys.exit("stopped")
order, w_0 = given.get("order", 3), given.get("w_0", 0.02)
value = 0.5 + 0.01 * seed
if given.get("variant", "none") != "none":
    value += 0.1 - 0.01 * (order - 5) ** 2 - (w_0 - 0.02) ** 2
name = "eval_matthews_correlation"
found = {"settings": {"seed": seed}, name: value, "best": {"metric": name}, "history": []}
directions = {name: True}
if "metric" in given:  # whatever it is, and it is better where it is less
    found |= {"eval_distance": value, "settings": {"seed": seed, "metric": given["metric"]}}
    directions |= {"eval_distance": False}
found |= {"greater_is_better": directions}
(out / "all_results.json").write_text(json.dumps(found))
"""


# A module of `evaluate`: the share of predictions that are wrong.
METRIC = """
import datasets
import evaluate


class Distance(evaluate.Metric):
    {says}

    def _info(self):
        columns = {{"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(columns))

    def _compute(self, predictions, references):
        wrong = [p != r for p, r in zip(predictions, references)]
        return {{"distance": sum(wrong) / len(wrong)}}
"""


def save(folder: Path) -> Path:
    """The stand-in as ``folder``/glue.py; returns the folder."""
    (folder / "glue.py").write_text(FAKE)
    return folder


def save_metric(folder: Path, says: str = "greater_is_better = False") -> str:
    """The module as ``folder``/own.py; returns its path."""
    path = folder / "own.py"
    path.write_text(METRIC.format(says=says))
    return str(path)


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
