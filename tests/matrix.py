"""Which model types of transformers can have a filter, each one run. It writes the table
docs/architectures.csv, the page that explains it, docs/architectures.md, and the list of the types
that are patched without a check, hf_graphattn/architectures/verified.json.

    PYTHONPATH=tests python tests/matrix.py docs/architectures.md [processes [model types]]

Of each type a tiny random model is built (tests/zoo), each in a process of its own, and every
column of tests/columns.py is tried on it. The list gets the part of the transformers that runs.
Without a page ("-") only the list is written. The rows are kept in runs/matrix.json: where types
are named, theirs alone are new.
"""

from __future__ import annotations

import csv
import json
import logging
import multiprocessing
import os
import platform
import sys
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from columns import COLUMNS, EXACT, FAILS, NOTHING, REFUSED, WRONG, Cell, Subject, line, told
from transformers import CONFIG_MAPPING
from zoo.models import build
from zoo.runs import each
from zoo.settings import SECOND

from hf_graphattn.architectures import VERIFIED, find

ROWS = Path("runs/matrix.json")
NEEDED = ("neutral", "GFSA", "gradients")  # to be in the list; none of the others may be wrong
SECONDS = 180  # for one type
NONE, UNBUILT, ALIAS = "out of reach", "not built", "see"
MEANING = {
    EXACT: "the results are those of the architecture's own attention",
    REFUSED: "the library raises an error; the reason is in the table",
    FAILS: "another error is raised",
    WRONG: "a check finds a difference, and then `patch_model(..., check=batch)` refuses the model",
    NOTHING: "the column does not apply, or plain transformers cannot do it either",
}
HEADER = """# Model types of transformers

Can your model have a filter? A table has the answer for all {types} model types of transformers.
This page explains the table. `make matrix` writes both. It builds a tiny random model of each type,
and runs each column of the table on it, without padding and with padding on either side. Last run:
torch {torch}, transformers {transformers}, Python {python}, on the CPU.

| verified | types | what `patch_model` does |
|---|---|---|
| yes | {yes} | it patches the model, with this version of transformers |
| no | {no} | it needs `check=batch`, and refuses the model if the check finds a difference |
| out of reach | {none} | it refuses: the model has no attention, or computes it in its own code |
| not built | {unbuilt} | it needs `check=batch`: no tiny model could be built |
| see | {alias} | the name is another name of a type |

`check=batch` compares the filters with the model's own attention, on your model and your inputs.

The verified types are also in `hf_graphattn/architectures/verified.json`. Some rows are named
"type, setting": these are second models of a type, with a setting that real checkpoints use and the
default config does not. A type is verified only if its second models are exact too.

## Find a type

The table is [architectures.csv](architectures.csv), which a forge shows as a table. On the site it
is below, with a search field.

<!-- table -->

## The columns

- neutral: filters that change nothing, compared with plain eager attention.
- GFSA: compared with GFSA that calls the architecture's own attention once for each pass.
- sdpa: neutral and GFSA again, with fused passes. Some architectures need their own attention. For
  them sdpa is refused, and "auto" calls the architecture's own attention.
- p-LaT: the kernel that runs on any device, compared with the form that keeps A.
- gradients: of all parameters, with neutral filters and with GFSA. Each scalar must have one.
- cache: generation with the cache, compared with generation without it.
- error: the largest relative error of neutral, GFSA and gradients.
- attention: the attention classes that can have a filter (out of reach: that cannot).
- why: the reason of each cell that is not exact, and the attention classes that stay plain.

{meaning}

Exact means a relative error of at most 1e-5, or 1e-4 where the model cannot run in float64. For
gradients it is 1e-4 and 1e-3.

The number of rows with each result:

{counts}

## What the tiny models leave out

A tiny model switches few settings off that the default config has on:

- `num_nextn_predict_layers`: transformers does not build these layers.
- `apply_layernorm_after_vision_backbone`: the outputs of all stages need one width.
- `coarse_matching_threshold`: random features match badly, so the model would return nothing.

The windows leave keys out, except those that count frames of sound (`n_window`, `n_window_infer`),
those that only streaming reads (`left_chunk`, `chunk_left_context`), and SAM's and Reformer's, of
which parts compute attention in their own code.
"""


def outcome(name: str) -> str:
    """The row of a type, or of a second model of one, as JSON."""
    model_type = name.partition(", ")[0]
    try:
        model = build(name)
        plan = find(model)
        out_of_reach = list(plan.why_plain)
        if model.config.model_type != model_type:
            return json.dumps({"verified": ALIAS, "why": f"a name of {model.config.model_type}"})
        if not plan.self_attention:
            return json.dumps({"verified": NONE, "classes": out_of_reach})
        subject = Subject(model)
    except BaseException as error:
        return json.dumps({"verified": UNBUILT, "why": line(error)})
    classes = {type(each.module) for each in plan.attention}
    cells = {name: told(partial(column, subject)) for name, column in COLUMNS.items()}
    states, missed = {cell.state for cell in cells.values()}, subject.missed
    verified = (
        all(cells[name].state == EXACT for name in NEEDED)
        and not states & {WRONG, FAILS}
        and not missed
        and all(each.__module__.startswith("transformers.") for each in classes)
    )
    why = _reasons(cells)
    if missed:
        why.append(missed)
    if out_of_reach:
        why.append(f"{', '.join(out_of_reach)} stays plain")
    return json.dumps(
        {
            "verified": "yes" if verified else "no",
            "classes": sorted(each.__name__ for each in classes),
            "cells": {name: cell.state for name, cell in cells.items()},
            "error": max(cells[name].error for name in NEEDED),
            "why": "; ".join(why),
        }
    )


def _reasons(cells: dict[str, Cell]) -> list[str]:
    """Each reason once, behind the columns of which it is."""
    columns: dict[str, list[str]] = {}
    for name, cell in cells.items():
        if cell.why:
            columns.setdefault(cell.why, []).append(name)
    return [f"{', '.join(names)}: {why}" for why, names in columns.items()]


def _some(model_types: list[str], queue: Any) -> None:
    for found in each(outcome, model_types, SECONDS):
        queue.put(found)


def names() -> list[str]:
    """Those of all rows: the types, and second models of some."""
    return sorted([*CONFIG_MAPPING, *(f"{name}, {n}" for name in SECOND for n in SECOND[name])])


def run(processes: int, types: list[str]) -> dict[str, dict[str, Any]]:
    """The rows of these names."""
    outcome("bert")  # what this imports, the processes need not import again
    queue: Any = multiprocessing.Queue()
    for i in range(processes):
        multiprocessing.Process(target=_some, args=(types[i::processes], queue)).start()
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < len(types):
        name, says = queue.get()
        is_row = says.startswith("{")  # else it was killed, or took too long
        rows[name] = json.loads(says) if is_row else {"verified": UNBUILT, "why": says}
        row = rows[name]
        print(
            f"[{len(rows)}/{len(types)}] {name}: {row['verified']}", row.get("why", ""), flush=True
        )
    return rows


def joined(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rows in order; a type is verified if its second models are too."""
    rows = dict(sorted(rows.items()))
    for name, row in rows.items():
        first = rows[name.partition(", ")[0]]
        if first["verified"] == "yes" and row["verified"] != "yes":
            first |= {"verified": "no", "why": f"{first['why']}; see {name!r}".lstrip("; ")}
    return rows


def page(rows: dict[str, dict[str, Any]]) -> str:
    """The Markdown of docs/architectures.md."""
    types = {name: row for name, row in rows.items() if name in CONFIG_MAPPING}
    kinds = Counter(row["verified"] for row in types.values())
    return HEADER.format(
        types=len(types),
        torch=torch.__version__,
        transformers=transformers.__version__,
        python=platform.python_version(),
        yes=kinds["yes"],
        no=kinds["no"],
        none=kinds[NONE],
        unbuilt=kinds[UNBUILT],
        alias=kinds[ALIAS],
        counts=_counts(types),
        meaning="\n".join(f"- {state}: {meaning}." for state, meaning in MEANING.items()),
    )


def write_table(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Write docs/architectures.csv: a row for each type."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model type", "verified", *COLUMNS, "error", "attention", "why"])
        for name, row in rows.items():
            states = [row.get("cells", {}).get(column, "") for column in COLUMNS]
            error = f"{row['error']:.0e}" if "error" in row else ""
            classes = ", ".join(row.get("classes", []))
            writer.writerow([name, row["verified"], *states, error, classes, row.get("why", "")])


def _counts(rows: dict[str, dict[str, Any]]) -> str:
    """The number of types with each state, for each column."""
    found = [row["cells"] for row in rows.values() if "cells" in row]
    lines = [["result", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    for state in MEANING:
        lines.append([state, *(str(sum(c[name] == state for c in found)) for name in COLUMNS)])
    return "".join(map(_line, lines)).rstrip()


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |\n"


def write_list(rows: dict[str, dict[str, Any]], path: Path, version: str) -> None:
    """Put the verified types, with their attention classes, in the place of those that the list has
    for a version of transformers; a line for each type."""
    listed = json.loads(path.read_text("utf-8")) if path.exists() else {}
    yes = {n: r["classes"] for n, r in rows.items() if r["verified"] == "yes" and ", " not in n}
    parts = []
    for each_version, types in sorted({**listed, version: yes}.items()):
        lines = [f"  {json.dumps(name)}: {json.dumps(types[name])}" for name in sorted(types)]
        parts.append(f" {json.dumps(each_version)}: {{\n" + ",\n".join(lines) + "\n }")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    some = sys.argv[3:]
    kept = json.loads(ROWS.read_text("utf-8")) if some else {}
    found = kept | run(int(sys.argv[2]) if sys.argv[2:] else os.cpu_count() or 1, some or names())
    ROWS.parent.mkdir(exist_ok=True)
    ROWS.write_text(json.dumps(found, indent=1), "utf-8")
    found = joined(found)
    write_list(found, Path(str(VERIFIED)), transformers.__version__)
    if sys.argv[1] != "-":
        written = Path(sys.argv[1])
        written.write_text(page(found), "utf-8")
        write_table(found, written.with_suffix(".csv"))
