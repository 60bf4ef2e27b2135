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

from finetune.experiments import command_line
from finetune.settings.flags import LineParser
from finetune.studies import ROOT, rows_by_name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the studies, and write the page; returns 1 if runs are missing."""
    options = parser(list(rows_by_name())).parse_args(argv)
    # Imported here: the flags are read without them.
    from finetune.studies import page
    from finetune.studies.run import SOURCES, studies

    for name in SOURCES:  # what names no file is an id on the hub
        if Path(source := getattr(options, name)).exists():
            setattr(options, name, str(Path(source).resolve()))
    options.runs, options.docs = options.runs.resolve(), options.docs.resolve()
    rows, missing = studies(), 0
    for study in (row for row in rows if row.name in options.studies):
        folder = options.runs / study.name
        if options.report_only and not folder.is_dir():
            print(f"{study.name}: no runs in {folder}; the page keeps the numbers that it has.")
            if options.redraw and (options.docs / "evidence" / f"{study.name}.json").is_file():
                page.draw(study.name, options.docs)
            continue
        with contextlib.chdir(ROOT):  # the paths in the flags of a study begin there
            missing |= study.run(options)
        page.keep(study.name, folder, options.docs)
    page.write(rows, options.docs)
    return missing


def parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """The flags; ``names`` are those of the studies."""
    made = LineParser(description=__doc__)
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


if __name__ == "__main__":
    command_line.exit_with(main)
