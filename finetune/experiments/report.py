"""What a comparison or a sweep leaves in its folder: tables, figures, all numbers, the verdict.

A sweep is a comparison whose arms carry a setting. Its table has a column for each swept flag, its
figure shows how the metric depends on them, and its best setting comes with a warning and with the
command that would confirm it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.engine.results import write_json
from finetune.experiments import record, tables
from finetune.experiments.best import best, confirmation, optimism, ranked
from finetune.experiments.experiment import Experiment
from finetune.experiments.gather import TaskResult, finished, gather
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import Results
from finetune.experiments.verdicts import verdicts
from finetune.settings.variants import NO_VARIANT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARISON, SWEEP = "comparison", "sweep"  # names of the files


def write(
    asked: Experiment,
    cells: Sequence[Cell],
    missing: Mapping[str, str],
    command: Sequence[str],
    *,
    best_first: bool = False,
) -> str:
    """Write ``comparison.{txt,md,tex,json}``, or ``sweep``, and the figures; returns the text.

    Args:
        asked: the comparison or sweep.
        cells: its runs, of which those that have ended count, in complete pairs.
        missing: why a run has no results, by its name.
        command: what was called, for the record.
        best_first: whether settings are listed from the best to the worst.
    """
    done, folder, metric = finished(cells), asked.folder, asked.measure.name
    found = gather(cells, done, metric, missing)
    if not found:
        return "No run has ended: there is nothing to report yet.\n"
    if best_first:
        found = [ranked(task) for task in found]
    name = SWEEP if found[0].settings else COMPARISON
    notes = [*missing_notes(found), *record.mixtures(done.values())]
    numbers = {
        **record.as_json(found),
        "verdicts": verdicts(found),
        "method": tables.legend(found),
        "notes": notes,
        "command": list(command),
        **record.origin(cells, done),
    }
    if name == SWEEP:
        numbers["best"] = best_json(found[0], cells, metric, asked.given.launcher)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", numbers)
    text = _write_tables(found, numbers, folder, name)
    return f"{text}\n{_draw(found, cells, done, folder, name)}\n"


def best_json(
    task: TaskResult, cells: Sequence[Cell], metric: str | None, launcher: str
) -> dict[str, Any] | None:
    """The best setting, what its number is worth, and the command that confirms it."""
    arm = best(task)
    if arm is None:
        return None
    return {
        "setting": arm.name,
        "settings_tried": len(task.settings),
        "optimism": optimism(task.settings),
        "confirm": confirmation(arm.name, cells, metric, launcher),
    }


def missing_notes(found: Sequence[TaskResult]) -> list[str]:
    """A note on each arm that lacks runs: pairs without them are not compared."""
    notes = []
    for task in found:
        for arm in task.arms:
            for why in dict.fromkeys(arm.missing.values()):
                seeds = [str(seed) for seed, reason in arm.missing.items() if reason == why]
                notes.append(f"{task.task}, {arm.name}: without seed {', '.join(seeds)} ({why}).")
    return notes


def _write_tables(
    found: Sequence[TaskResult], numbers: Mapping[str, Any], folder: Path, name: str
) -> str:
    """Write the table with what is said of it, as text, Markdown and LaTeX; returns the text."""
    table, said = tables.table(found), numbers["verdicts"]
    below = [*numbers["method"], *numbers["notes"]]
    confirm = []
    if numbers.get("best"):
        command = f"    {numbers['best']['confirm']}"
        confirm = [f"Fresh seeds show whether it differs from {NO_VARIANT}:", command]
    forms = {
        "txt": [*table.text(), "", *said, *confirm, "", *below],
        "md": [*table.markdown(), "", *_bullets(said), *_apart(confirm), "", *_bullets(below)],
        "tex": [*(f"% {line}" for line in (*said, *confirm, *below)), *table.latex()],
    }
    for ending, lines in forms.items():
        (folder / f"{name}.{ending}").write_text("\n".join(lines) + "\n", "utf-8")
    return "\n".join(forms["txt"]) + "\n"


def _bullets(lines: Sequence[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _apart(lines: Sequence[str]) -> list[str]:
    """Each after an empty line."""
    return [part for line in lines for part in ("", line)]


def _draw(
    found: Sequence[TaskResult],
    cells: Sequence[Cell],
    done: Mapping[str, Results],
    folder: Path,
    name: str,
) -> str:
    """Write the figures; returns what has been written, in words."""
    written = f"Written to {folder}: {name}.txt, .md, .tex, .json"
    if importlib.util.find_spec("seaborn") is None:
        return f"{written}; no figures: pip install 'hf_graphattn[plots]' brings seaborn."
    import matplotlib

    from finetune.experiments import figures, sensitivity  # both need it

    drawn: dict[str, Figure] = {}
    if name == SWEEP:
        drawn[SWEEP] = sensitivity.sensitivity(found[0])
    else:
        if any(arm.paired for task in found for arm in task.arms):
            drawn["differences"] = figures.differences(found)
        for task in found:
            curves = figures.learning_curves(task, cells, done)
            drawn[f"learning_curves-{task.task}"] = curves
    for title, figure in drawn.items():
        figure.savefig(folder / f"{title}.png", dpi=150)
        with matplotlib.rc_context({"svg.hashsalt": title}):  # the same bytes each time
            figure.savefig(folder / f"{title}.svg", metadata={"Date": None})
    return f"{written}; {', '.join(drawn)} as png and svg"
