"""Which model types of transformers can have a filter: docs/architectures.md, every row run.

    PYTHONPATH=tests python tests/matrix.py docs/architectures.md [processes]

Of each type a tiny random model is built (tests/zoo) and `ga.check` compares filters with its own
attention, with a cache too where it generates.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

import torch
import transformers
from transformers import CONFIG_MAPPING
from zoo.batches import inputs
from zoo.models import build
from zoo.runs import each

import hf_graphattn as ga
from hf_graphattn.architectures import own_attention, self_attention_modules

EXACT, WRONG, NONE, REFUSED, UNBUILT = "exact", "not exact", "out of reach", "refused", "not built"
MEANING = {
    EXACT: "filters compute what the architecture's own attention gives, to 1e-5 (1e-4 where the "
    "model cannot run in float64)",
    WRONG: "the check says so, and `patch_model` refuses",
    NONE: "its attention does not go through transformers' interface, or it has none",
    REFUSED: "in the words of the last column",
    UNBUILT: "no tiny model of it could be made here, so nothing is known: a check on a real one "
    "decides",
}
HEADER = """# Model types of transformers

Written by `make matrix`, which builds a tiny random model of every type and runs `ga.check` on it.
Last run: torch {torch}, transformers {transformers}, Python {python}, on the CPU.

{counts}

Of types that are not in docs/compatibility.md `patch_model` asks for a check on your own model and
inputs first: `ga.patch_model(model, config, check=batch)`.

| model type | filters | with a cache | largest error | attention | why |
|---|---|---|---|---|---|
"""


def outcome(model_type: str) -> str:
    """One type's row, as JSON."""
    try:
        model = build(model_type)
        batch = inputs(model)
        with torch.no_grad():
            model(**batch)
    except BaseException as error:
        return _told(UNBUILT, why=_line(error))
    classes = sorted({type(found.module).__name__ for found in self_attention_modules(model)})
    own = sorted({type(module).__name__ for _, module in own_attention(model)})
    if not classes:
        return _told(NONE, classes=own)
    try:
        found = ga.check(model, **batch)
    except ga.GraphAttentionError as error:
        return _told(REFUSED, classes=classes, why=_line(error))
    rows = {row.name: row for row in found.rows}
    failed = ", ".join(row.name for row in found.rows if not row.passed)
    plain = f"{', '.join(own)} stays plain" if own else ""
    cached = rows.get("cached")
    return _told(
        EXACT if found.passed else WRONG,
        classes=classes,
        error=max(rows["plain"].error, rows["filtered"].error),
        cached="-" if cached is None else cached.says.partition(":")[0] or "exact",
        why="; ".join(filter(None, [failed, plain, cached.says if cached else ""])),
    )


def _told(kind: str, **more: Any) -> str:
    return json.dumps({"kind": kind, **more})


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def _some(model_types: list[str], queue: Any) -> None:
    for found in each(outcome, model_types, 90):
        queue.put(found)


def run(processes: int) -> dict[str, dict[str, Any]]:
    """Every type's row, by its name."""
    types, queue = sorted(CONFIG_MAPPING), multiprocessing.Queue()
    for i in range(processes):
        multiprocessing.Process(target=_some, args=(types[i::processes], queue)).start()
    rows = {}
    while len(rows) < len(types):
        name, told = queue.get()
        is_row = told.startswith("{")  # else it was killed, or took too long
        rows[name] = json.loads(told) if is_row else {"kind": UNBUILT, "why": told}
        print(f"[{len(rows)}/{len(types)}] {name}: {rows[name]['kind']}", flush=True)
    return dict(sorted(rows.items()))


def page(rows: dict[str, dict[str, Any]]) -> str:
    """The Markdown of docs/architectures.md."""
    counts = Counter(row["kind"] for row in rows.values())
    text = HEADER.format(
        torch=torch.__version__,
        transformers=transformers.__version__,
        python=platform.python_version(),
        counts="\n".join(f"- {counts[kind]} {kind}: {MEANING[kind]}." for kind in MEANING),
    )
    for name, row in rows.items():
        error = f"{row['error']:.0e}" if "error" in row else ""
        classes = ", ".join(row.get("classes", []))
        cells = [name, row["kind"], row.get("cached", ""), error, classes, row.get("why", "")]
        text += "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
    return text


if __name__ == "__main__":
    found = run(int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count() or 1)
    Path(sys.argv[1]).write_text(page(found), "utf-8")
