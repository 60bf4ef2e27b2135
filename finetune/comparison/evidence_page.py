"""docs/evidence.md from the studies that have been run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.comparison import depth_page
from finetune.comparison.tables import pipes
from finetune.outputs import write_json

HEAD = """# Evidence: does it help, at the size that fits here?

Written by `python finetune/evidence.py`, from runs that were really done: each study is a call of
`finetune/compare.py` or `finetune/sweep.py`, and a row of `finetune/evidence.yaml`. Same seeds for
all arms: the same data order and the same start for a seed, so differences are paired. Numbers of
all seeds are in `docs/evidence/`. These are small models, little data and few steps: read the
tables for what they can show, and the papers' rows and sentences for how their setting differs.

Mean and standard deviation are over the seeds; the difference to plain attention is paired by seed,
its 95 % interval the BCa bootstrap's over seeds, p that of the exact test of all sign flips, then
corrected by Holm over the rows of a table. All of it is about other seeds on these evaluation rows,
not about other rows. Of few seeds the interval is too narrow: it holds the true mean of normally
distributed differences in 78 % of cases with 4 seeds, 88 % with 8, 95 % with 16
(`python benchmarks/interval_coverage.py`).

Two runs at a time shared the two cores of a machine that others use as well, so seconds a step
(medians) are rough: README's Speed has measured ones. Peak memory is that of the whole process.
"""
KEPT = ("values", "mean", "standard_deviation", "missing", "paired", "filter_scalars",
        "seconds_per_step", "peak_memory_bytes")  # fmt: skip


def write(studies: Sequence[Any], runs: Path, docs: Path) -> Path:
    """Write ``docs/evidence.md`` and what it shows.

    A study without runs keeps the section that the page has of it, or has none.

    Args:
        studies: what `finetune.evidence.studies` returns.
        runs: a folder a study, as compare.py or sweep.py leaves it.
        docs: where to write.
    """
    folder, page = docs / "evidence", docs / "evidence.md"
    folder.mkdir(parents=True, exist_ok=True)
    before = _sections(page)
    sections = [
        _section(study, runs / study.name, folder) or before.get(study.title) for study in studies
    ]
    page.write_text("\n".join([HEAD, *(s for s in sections if s)]), "utf-8")
    return page


def _sections(page: Path) -> dict[str, str]:
    """The page's sections by their titles."""
    text = page.read_text("utf-8") if page.is_file() else ""
    return {
        part.partition("\n")[0]: f"## {part}".rstrip("\n") + "\n"
        for part in text.split("\n## ")[1:]
    }


def _section(study: Any, run: Path, folder: Path) -> str | None:
    """One study's section; its numbers and figure are copied to ``folder``."""
    for kind, numbers, figure in (
        ("comparison", _of_comparison, "differences"),
        ("sweep", _of_sweep, "sweep"),
    ):
        source = run / f"{kind}.json"
        if source.is_file():
            found = json.loads(source.read_text("utf-8"))
            write_json(folder / f"{study.name}.json", numbers(found))
            shutil.copy(run / f"{figure}.png", folder / f"{study.name}.png")
            table, *_ = (run / f"{kind}.md").read_text("utf-8").split("\n\n")
            lines = [f"## {study.title}", "", table, ""]
            lines += [f"- {words}" for words in (*found["verdicts"], *found["notes"])]
            lines += ["", f"![{study.title}]({folder.name}/{study.name}.png)", ""]
            lines += [*_reported(study), f"The papers: {study.paper}", ""]
            if "method" in found:
                lines += [found["method"][-1], ""]  # each arm's own flags
            lines += [_cost(run, found), ""]
            return "\n".join([*lines, *depth_page.section(study.name, folder)])
    return None


def _reported(study: Any) -> list[str]:
    """The papers' rows, to read ours beside them."""
    if not study.reported:
        return []
    rows = [[row["paper"], row["setting"], row["figure"]] for row in study.reported]
    return [*pipes(["reported", "setting", "figure"], rows), ""]


# What the page rests on, without the paths of the machine that it was run on.
def _of_sweep(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in ("best", "command")}


def _of_comparison(found: Mapping[str, Any]) -> dict[str, Any]:
    tasks = [
        {
            "task": task["task"],
            "metric": task["metric"],
            "arms": {arm["arm"]: {name: arm[name] for name in KEPT} for arm in task["arms"]},
        }
        for task in found["tasks"]
    ]
    return {"tasks": tasks} | {
        name: found[name] for name in ("verdicts", "method", "notes", "versions", "git", "machine")
    }


def _cost(run: Path, found: Mapping[str, Any]) -> str:
    walls = [_wall(path) for path in run.glob("*/*/seed-*/run.json")]
    machine, versions = found["machine"], found["versions"] or {}
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    hours = sum(walls) / 3600
    return (
        f"{len(walls)} runs, about {hours:.1f} hours in all. {_words(machine)}; {shown}; "
        f"{_commit(found['git'])}."
    )


def _commit(git: Any) -> str:
    if not isinstance(git, Mapping):
        return "no git"
    return f"commit {str(git['commit'])[:9]}{' with changes' if git['dirty'] else ''}"


def _wall(path: Path) -> float:
    return float(json.loads(path.read_text("utf-8")).get("wall_seconds") or 0.0)


def _words(machine: Any) -> str:
    if not isinstance(machine, Mapping):
        return str(machine)
    return ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None)
