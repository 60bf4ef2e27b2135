"""Which model types of transformers can have a filter: docs/architectures.md, every row run, and
the list of those that are patched without a check, hf_graphattn/architectures/verified.json.

    PYTHONPATH=tests python tests/matrix.py docs/architectures.md [processes [model types]]

Of each type a tiny random model is built (tests/zoo), each in a process of its own, and every
column of tests/columns.py is tried on it. The list gets the part of the transformers that runs.
Without a page ("-") only the list is written. The rows are kept in runs/matrix.json: where types
are named, theirs alone are new.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from columns import COLUMNS, EXACT, FAILS, NOTHING, REFUSED, WRONG, Cell, Subject, line, told
from transformers import CONFIG_MAPPING
from zoo.easier import REASONS, table
from zoo.runs import each
from zoo.settings import SECOND

from hf_graphattn.architectures import VERIFIED, find

ROWS = Path("runs/matrix.json")
NEEDED = ("neutral", "GFSA", "gradients")  # to be in the list; none of the others may be wrong
SECONDS = 180  # for one type
NONE, UNBUILT, ALIAS = "out of reach", "not built", "see"
MEANING = {
    EXACT: "as the architecture's own attention, to 1e-5, or 1e-4 where the model cannot run in "
    "float64; gradients to 1e-4 and 1e-3; saved and PEFT: weights bit for bit, outputs to 1e-5",
    REFUSED: "by the library, in the words of the last column",
    FAILS: "with another error",
    WRONG: "what a check finds, and `patch_model` then refuses",
    NOTHING: "does not apply, or plain transformers cannot do it either",
}
HEADER = """# Model types of transformers

Written by `make matrix`, which builds a tiny random model of every type and tries every column on
it, without padding and with it on either side. Last run: torch {torch}, transformers
{transformers}, Python {python}, on the CPU.

- **{listed} types are verified**: `patch_model(model, config)` takes them as they are, with this
  version of transformers. They are in `hf_graphattn/architectures/verified.json`.
- {unlisted} others have attention in reach: `patch_model(model, config, check=batch)` compares
  first on your own model and inputs, and refuses what is not exact.
- {none} are out of reach: they compute attention by themselves, or have none.
- {unbuilt} could not be built here, so nothing is known: a check on a real one decides. {alias} are
  other names of a type.

A name behind a type's is a second model of it, with settings that real checkpoints have and the
defaults of its config have not; the type is verified if it is exact too.

{counts}

{meaning}

- neutral: filters that change nothing, against plain eager attention.
- GFSA: against GFSA whose every step is the architecture's own attention, called again.
- sdpa: both with fused passes; refused where only the architecture's own attention can compute,
  which "auto" then calls.
- p-LaT: its kernel for any device against the kept matrix.
- gradients: of all parameters, with neutral filters and with GFSA, whose scalars have one each.
- cache: what is generated with one, against without.
- saved: `save_pretrained` and `ga.from_pretrained`. PEFT: LoRA on every linear layer and filters of
  the adapter's own, saved and loaded by `ga.load_peft`.

What a tiny config has not of its class's defaults, or a window has no edge in, is this:

{easier}

| model type | verified | {names} | error | attention | why |
|---|---|{rules}|---|---|---|
"""
# Of the experiment with which this began: 378 types built.
FIRST = {"neutral": 358, "GFSA": 358, "saved": 362}


def outcome(name: str) -> str:
    """The row of a type, or of a second model of one, as JSON."""
    model_type = name.partition(", ")[0]
    try:
        subject = Subject(name)
    except BaseException as error:
        return json.dumps({"verified": UNBUILT, "why": line(error)})
    model = subject.model
    if model.config.model_type != model_type:
        return json.dumps({"verified": ALIAS, "why": f"a name of {model.config.model_type}"})
    plan = find(model)
    out_of_reach = list(plan.why_plain)
    if not plan.self_attention:
        return json.dumps({"verified": NONE, "classes": out_of_reach})
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
    text = HEADER.format(
        torch=torch.__version__,
        transformers=transformers.__version__,
        python=platform.python_version(),
        listed=kinds["yes"],
        unlisted=kinds["no"],
        none=kinds[NONE],
        unbuilt=kinds[UNBUILT],
        alias=kinds[ALIAS],
        counts=_counts(types),
        easier=_easier(name for name, row in types.items() if row["verified"] != UNBUILT),
        meaning="\n".join(f"- {state}: {said}." for state, said in MEANING.items()),
        names=" | ".join(COLUMNS),
        rules="|".join("---" for _ in COLUMNS),
    )
    for name, row in rows.items():
        states = row.get("cells", {})
        cells = [states.get(column, "") for column in COLUMNS]
        error = f"{row['error']:.0e}" if "error" in row else ""
        cells = [name, row["verified"], *cells, error, ", ".join(row.get("classes", []))]
        text += _line([*cells, row.get("why", "")])
    return text


def _counts(rows: dict[str, dict[str, Any]]) -> str:
    """How many types have what in each column."""
    found = [row["cells"] for row in rows.values() if "cells" in row]
    lines = [["", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    for state in MEANING:
        lines.append([state, *(str(sum(c[name] == state for c in found)) for name in COLUMNS)])
    lines.append(
        [
            "exact in the first experiment, of 378 types",
            *(str(FIRST.get(name, "")) for name in COLUMNS),
        ]
    )
    return "".join(_line(each) for each in lines).rstrip()


def _easier(model_types: Iterable[str]) -> str:
    """What tiny configs have not of their defaults: the setting, whose, and why."""
    lines = [["setting", "types", "why"], ["---"] * 3]
    for name, types in table(model_types).items():
        lines.append([name, ", ".join(types), REASONS[name]])
    return "".join(_line(each) for each in lines).rstrip()


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
        Path(sys.argv[1]).write_text(page(found), "utf-8")
