"""What a sweep leaves in its folder: tables, all numbers, figures."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from finetune.comparison.figures import FORMATS, save
from finetune.comparison.grid import Cell
from finetune.comparison.report import missing_notes, origin
from finetune.comparison.results import gather, mixtures
from finetune.outputs import write_json
from finetune.sweeping import figures, tables
from finetune.sweeping.plan import Sweep
from finetune.sweeping.results import Found, as_json
from finetune.sweeping.space import Setting

NAME = "sweep"


def gathered(
    sweep: Sweep,
    settings: Sequence[Setting],
    cells: Sequence[Cell],
    metric: str | None,
    missing: Mapping[str, str],
) -> Found | None:
    """The results of the runs that have ended; None if none has.

    Args:
        sweep: what was swept.
        settings: in the order of the rows.
        cells: their runs, after plain attention's where it is the baseline.
        metric: what is reported; None is the task's main metric.
        missing: why a run has no results, by its name.
    """
    tasks = gather(cells, metric, missing, paired=sweep.baseline)
    names = {setting.name: setting for setting in settings}
    return Found(sweep, tasks[0], names) if tasks else None


def write(found: Found, command: Sequence[str]) -> str:
    """Write ``sweep.{txt,md,tex,json}`` and the figures; returns the text.

    ``command`` is what was called, for the record.
    """
    notes = [*missing_notes([found.task]), *mixtures([found.task])]
    folder, text = found.sweep.folder, tables.text(found, notes)
    folder.mkdir(parents=True, exist_ok=True)
    for ending, content in (
        ("txt", text),
        ("md", tables.markdown(found, notes)),
        ("tex", tables.latex(found)),
    ):
        (folder / f"{NAME}.{ending}").write_text(content, "utf-8")
    record = {"verdicts": tables.verdicts(found), "notes": notes, "command": list(command)}
    record |= origin([found.task])
    write_json(folder / f"{NAME}.json", as_json(found) | record)
    written = f"Written to {folder}: {NAME}.txt, .md, .tex, .json"
    if importlib.util.find_spec("matplotlib") is None:
        return f"{text}\n{written}; no figure: pip install 'hf_graphattn[plots]' brings it.\n"
    save(figures.sensitivity(found), folder, NAME)
    return f"{text}\n{written}, {', '.join(f'.{kind}' for kind in FORMATS)}\n"
