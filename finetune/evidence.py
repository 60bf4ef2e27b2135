"""docs/evidence.md: every comparison and sweep that it shows, run, and written down.

    python finetune/evidence.py --glue data/nyu-mll/glue --ptb data/ptb-text-only/ptb_text_only \\
        --bert models/all-MiniLM-L6-v2 --shakespeare data/tinyshakespeare/input.txt
    python finetune/evidence.py --report_only

The studies are the rows of `evidence.yaml`. Each is a call of `compare.py` or `sweep.py`, so a
stopped one goes on where it was. Their numbers are kept in docs/evidence/, and the page is written
from these alone: it can be written again where the runs are no longer at hand.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetune.experiments import command_line
from finetune.settings.words import WordParser
from finetune.studies import ROOT, rows_by_name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the studies asked for, and write the page; returns 1 if runs are missing."""
    asked = vars(parser(list(rows_by_name())).parse_args(argv))
    # Imported here: the flags are read without them.
    from finetune.studies import page
    from finetune.studies.run import Given, studies

    rows = studies()
    names = asked.pop("studies")
    asked.pop("debug", None)
    redraw = asked.pop("redraw")
    given = Given(**{name: _absolute(value) for name, value in asked.items()})
    missing = 0
    for study in (row for row in rows if row.name in names):
        folder = given.runs / study.name
        if given.report_only and not folder.is_dir():
            print(f"{study.name}: no runs in {folder}; the page keeps the numbers that it has.")
            if redraw and (given.docs / "evidence" / f"{study.name}.json").is_file():
                page.draw(study.name, given.docs)
            continue
        with contextlib.chdir(ROOT):  # the paths in the flags of a study begin there
            missing |= study.run(given)
        page.keep(study.name, folder, given.docs)
    page.write(rows, given.docs)
    return missing


def parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """The flags; ``names`` are those of the studies."""
    made = WordParser(__doc__)
    made.add_argument("--studies", nargs="+", choices=names, default=names)
    made.add_argument("--glue", default="nyu-mll/glue", help="GLUE: a folder or an id on the hub.")
    made.add_argument("--ptb", default="ptb-text-only/ptb_text_only", help="Penn Treebank.")
    made.add_argument("--bert", default="sentence-transformers/all-MiniLM-L6-v2")
    made.add_argument("--shakespeare", default="input.txt", help="Shakespeare's plays, one file.")
    made.add_argument("--processes", type=int, default=1, help="Runs at once.")
    made.add_argument("--threads", type=int, default=1, help="CPU threads of a run.")
    made.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence")
    made.add_argument("--docs", type=Path, default=ROOT / "docs")
    made.add_argument("--report_only", action="store_true", help="Run nothing.")
    made.add_argument("--redraw", action="store_true", help="Draw the kept numbers again.")
    return made


def _absolute(value: Any) -> Any:
    """Paths from anywhere; a text stays what it is where it names no file, but an id on the hub."""
    if isinstance(value, str) and Path(value).exists():
        return str(Path(value).resolve())
    return value.resolve() if isinstance(value, Path) else value


if __name__ == "__main__":
    command_line.exit_with(main)
