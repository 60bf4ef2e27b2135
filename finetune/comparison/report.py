"""What a comparison leaves in its folder: tables, figures, all numbers, and the verdict."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from finetune.comparison import figures, tables
from finetune.comparison.grid import Cell
from finetune.comparison.results import TaskResult, gather, mixtures
from finetune.outputs import write_json

NAME = "comparison"


def write(
    cells: Sequence[Cell],
    folder: Path,
    metric: str | None,
    missing: Mapping[str, str],
    command: Sequence[str],
) -> str:
    """Write ``comparison.{txt,md,tex,json}`` and the figures; returns the text.

    Args:
        cells: the grid; of its runs those that have ended count, in complete pairs.
        folder: where to write.
        metric: what is compared; None is each task's main metric.
        missing: why a run has no results, by its name.
        command: what was called, for the record.
    """
    found = gather(cells, metric, missing)
    if not found:
        return "No run has ended: there is nothing to report yet.\n"
    notes = [*missing_notes(found), *mixtures(found)]
    folder.mkdir(parents=True, exist_ok=True)
    text = tables.text(found, notes)
    for ending, content in (
        ("txt", text),
        ("md", tables.markdown(found, notes)),
        ("tex", tables.latex(found, notes)),
    ):
        (folder / f"{NAME}.{ending}").write_text(content, "utf-8")
    write_json(
        folder / f"{NAME}.json",
        tables.as_json(found, notes) | {"command": list(command), **origin(found)},
    )
    return f"{text}\n{_draw(found, cells, folder)}\n"


def _draw(found: Sequence[TaskResult], cells: Sequence[Cell], folder: Path) -> str:
    written = f"Written to {folder}: {NAME}.txt, .md, .tex, .json"
    if importlib.util.find_spec("matplotlib") is None:
        return f"{written}; no figures: pip install 'hf_graphattn[plots]' brings matplotlib."
    names = []
    if any(arm.paired for task in found for arm in task.arms):
        figures.save(figures.differences(found), folder, "differences")
        names.append("differences")
    for task in found:
        name = f"learning_curves-{task.task}"
        figures.save(figures.learning_curves(task, cells), folder, name)
        names.append(name)
    return f"{written}; {', '.join(names)} as {' and '.join(figures.FORMATS)}"


def missing_notes(found: Sequence[TaskResult]) -> list[str]:
    """A note on each arm that lacks runs: pairs without them are not compared."""
    notes = []
    for task in found:
        for arm in task.arms:
            for why in dict.fromkeys(arm.missing.values()):
                seeds = [str(seed) for seed, reason in arm.missing.items() if reason == why]
                notes.append(f"{task.task}, {arm.name}: without seed {', '.join(seeds)} ({why}).")
    return notes


def origin(found: Sequence[TaskResult]) -> dict[str, object]:
    """Versions, commit and machine of the first run; `mixtures` notes where others differ."""
    run = next(run for task in found for arm in task.arms for run in arm.runs.values())
    return {name: run.get(name) for name in ("versions", "git", "machine")}
