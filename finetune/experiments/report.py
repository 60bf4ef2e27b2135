"""What a comparison or a sweep leaves in its folder: tables, figures, all numbers, the verdict.

A sweep is a comparison whose arms carry a setting. Its table has a column for each swept flag, its
figure shows how the metric depends on them, and its best setting comes with a warning and with the
command that would confirm it.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.engine.results import write_json
from finetune.experiments import degenerate, record, tables
from finetune.experiments.best import best, confirmation, optimism, ranked
from finetune.experiments.experiment import Experiment
from finetune.experiments.gather import TaskResult, finished, gather
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import Results
from finetune.experiments.verdicts import verdicts
from finetune.settings.variants import NO_VARIANT
from hf_graphattn.diagnostics import drawing
from hf_graphattn.version import how_to_install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARISON, SWEEP = "comparison", "sweep"  # names of the files
FORMATS = (*drawing.FORMATS, "svg")  # of the figures


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
    done, folder = finished(cells), asked.folder
    found = gather(cells, done, asked.measure.name, missing)
    if not found:
        return "No run has ended: there is nothing to report yet.\n"
    if best_first:
        found = [ranked(task) for task in found]
    name = SWEEP if found[0].settings else COMPARISON
    numbers = {
        **record.as_json(found),
        "verdicts": verdicts(found),
        "method": tables.legend(found),
        "notes": [
            *degenerate.warnings(found, cells),
            *missing_notes(found),
            *record.mixtures(done.values()),
        ],
        "command": list(command),
        **record.origin(cells, done),
    }
    if name == SWEEP:
        numbers["best"] = best_json(found[0], asked, cells)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", numbers)
    text = _write_tables(found, numbers, folder / name)
    return f"{text}\n{_draw(found, cells, done, folder, name)}\n"


def best_json(task: TaskResult, asked: Experiment, cells: Sequence[Cell]) -> dict[str, Any] | None:
    """The best setting, what its number is worth, and the command that confirms it.

    None if no setting is complete, or several are equally good: then none is the best.
    """
    arm = best(task)
    if arm is None:
        return None
    said = {"setting": arm.name, "settings_tried": len(task.settings)}
    confirm = confirmation(arm.name, asked, cells)
    return {**said, "optimism": optimism(task.settings), "confirm": confirm}


def missing_notes(found: Sequence[TaskResult]) -> list[str]:
    """A note on each arm that lacks runs: pairs without them are not compared."""
    seeds = defaultdict(list)
    for task in found:
        for arm in task.arms:
            for seed, why in arm.missing.items():
                seeds[task.task, arm.name, why].append(str(seed))
    return [
        f"{task}, {arm}: without seed {', '.join(lost)} ({why})."
        for (task, arm, why), lost in seeds.items()
    ]


def _write_tables(found: Sequence[TaskResult], numbers: Mapping[str, Any], path: Path) -> str:
    """Write the table with what is said of it, as text, Markdown and LaTeX; returns the text."""
    table, said = tables.table(found), [*numbers["verdicts"], *numbers["notes"]]
    below, confirm = numbers["method"], []
    if numbers.get("best"):
        command = f"    {numbers['best']['confirm']}"
        confirm = [f"Fresh seeds show whether it differs from {NO_VARIANT}:", command]
    bullets, more = ([f"- {line}" for line in lines] for lines in (said, below))
    apart = [part for line in confirm for part in ("", line)]
    text = "\n".join([*table.text(), "", *said, *confirm, "", *below, ""])
    markdown = "\n".join([*table.markdown(), "", *bullets, *apart, "", *more, ""])
    notes = [f"% {line}" for line in (*said, *confirm, *below)]
    path.with_suffix(".txt").write_text(text, "utf-8")
    path.with_suffix(".md").write_text(markdown, "utf-8")
    path.with_suffix(".tex").write_text("\n".join([*notes, *table.latex(), ""]), "utf-8")
    return text


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
        return f"{written}; no figures: they need seaborn, {how_to_install('plots')}."
    from finetune.experiments import figures, sensitivity  # both need it

    drawn: dict[str, Figure | None] = {}
    if name == SWEEP and any(arm.values for arm in found[0].settings):
        drawn[SWEEP] = sensitivity.sensitivity(found[0])
    if name == COMPARISON:
        if any(arm.paired for task in found for arm in task.arms):
            drawn["differences"] = figures.differences(found)
        for task in found:
            curves = figures.learning_curves(task, cells, done)
            drawn[f"learning_curves-{task.task}"] = curves
    kept = {title: figure for title, figure in drawn.items() if figure is not None}
    for title, figure in kept.items():
        drawing.save(figure, folder / title, FORMATS)
    left = [f"no {title}: nothing was measured twice" for title in drawn if title not in kept]
    parts = [written, f"{', '.join(kept)} as {', '.join(FORMATS)}" if kept else "", *left]
    return "; ".join(filter(None, parts))
