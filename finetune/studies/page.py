"""docs/evidence.md, written from the JSON in docs/evidence/ and the rows of evidence.yaml alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.engine.results import write_json
from finetune.experiments import record, report, tables, verdicts
from finetune.experiments.gather import ArmResult
from finetune.experiments.tables import Table
from finetune.studies import look_page, summary
from finetune.studies.run import Comparison, Study
from hf_graphattn.diagnostics import drawing

HEAD = """# Evidence: does it help, at the size that fits here?

**Should I use this?**

1. On a pretrained checkpoint expect little, and tune the learning rate first: on Penn Treebank
   plain attention gained 20 % of a perplexity by it, and the best filter 0.6 % more; on SST-2,
   MRPC, CoLA and our own sentences no filter was shown to help.
2. From nothing, on characters, GFSA, Twicing, NeuTRENO and FeatScale were 4 to 9 % of a perplexity
   ahead after 400 steps of a small model, GFSA with its scalars' best rate 11 %: that says who
   learns faster, not who ends ahead.
3. What a paper fixes for training from nothing can do harm: A - I with its step of 1 was worse in
   every study of characters, p-LaT with its p behind after 400 steps, if not shown, and ahead after
   800.
4. Is it A²? From nothing, yes: a gain a head and degree 1 did nothing on characters (-0.03 and
   -0.13 of 12.00), GFSA -1.28, degree 2 -1.17. On Penn Treebank, pretrained, hardly: at a learning
   rate of 1e-3 degree 1 does more than GFSA (-1.286 and -0.530 of 102.26); at 3e-3, plain
   attention's best, GFSA is ahead of it (-0.484 and -0.276 of 81.39), by 0.3 %.
5. Compare on your own task, with six seeds or more, paired, and against `degree1` too: most
   differences are smaller than what the seed alone does.

Written by `python finetune/evidence.py`, from runs that were really done: each study is a call of
`finetune/compare.py` or `finetune/sweep.py`, and a row of `finetune/evidence.yaml`. Same seeds for
all arms: the same data order and the same start for a seed, so differences are paired. Numbers of
all seeds are in `docs/evidence/`. These are small models, little data and few steps: read the
tables for what they can show, and the papers' rows and sentences for how their setting differs.
What was tried and not kept is in the [log](log.md).

Mean and standard deviation are over the seeds; the difference to plain attention is paired by seed,
its 95 % interval is Student's t over seeds, p that of the exact test of all sign flips, which
assumes no distribution, then corrected by Holm over the rows of a table. All of it is about other
seeds on these evaluation rows, not about other rows. Of normally distributed differences the
interval holds the true mean in 95 % of cases, as it says, whatever their number; of skewed ones
(exponential) in 88 % with 4 seeds, 89 % with 8, 91 % with 16. The BCa bootstrap, which assumes no
distribution, does worse at so few: 79, 89 and 92 % of normal ones, 75, 86 and 91 % of skewed ones
(`python benchmarks/interval_coverage.py`, 2,000 samples each).

Two runs at a time shared the two cores of a machine that others use as well, so seconds a step
(medians) are rough: [Speed](speed.md) has measured ones. Peak memory is that of the whole process.
"""
REPORTS = (report.COMPARISON, report.SWEEP)


def keep(name: str, run: Path, docs: Path) -> None:
    """Keep a study's numbers in ``docs/evidence``, from the folder of its runs, and draw them.

    Without a report in that folder, what was kept before stays.
    """
    folder = docs / "evidence"
    for source in (run / f"{kind}.json" for kind in REPORTS):
        if source.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            numbers = published(json.loads(source.read_text("utf-8")))
            write_json(folder / f"{name}.json", numbers | {"figures": [f"{name}.png"]})
            draw(name, docs)


def draw(name: str, docs: Path) -> None:
    """Draw a study's figure from the numbers that were kept."""
    from finetune.experiments import figures, sensitivity  # of the extra plots

    folder = docs / "evidence"
    found = record.results_of(_numbers(name, folder))
    is_sweep = bool(found[0].settings)
    figure = sensitivity.sensitivity(found[0]) if is_sweep else figures.differences(found)
    drawing.save(figure, folder / name, ["png"])


def published(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """A report's numbers without what holds paths of the machine that it was run on."""
    kept = {name: value for name, value in numbers.items() if name not in ("best", "command")}
    if "tasks" in kept:
        found = record.results_of(numbers)
        own = [_own_flags(task.arms) for task in found]
        kept["tasks"] = [
            task
            | {"arms": [arm | {"flags": f} for arm, f in zip(task["arms"], flags, strict=True)]}
            for task, flags in zip(kept["tasks"], own, strict=True)
        ]
    return kept


def _own_flags(arms: Sequence[ArmResult]) -> list[dict[str, Any]]:
    """Those that not all arms have, and the variant, which says how an arm is drawn."""
    return [
        {"variant": arm.flags["variant"], **own}
        for arm, own in zip(arms, tables.own_flags(arms), strict=True)
    ]


def write(studies: Sequence[Study], docs: Path) -> Path:
    """Write ``docs/evidence.md``: a section for each study with numbers, and the others' titles."""
    page, folder = docs / "evidence.md", docs / "evidence"
    known = [study for study in studies if (folder / f"{study.name}.json").is_file()]
    compared = [
        (study, task)
        for study in known
        if isinstance(study, Comparison)
        for task in record.results_of(_numbers(study.name, folder))
    ]
    left = [f"- {study.title}" for study in studies if study not in known]
    parts = [[HEAD], summary.lines(compared), *(section(study, folder) for study in known)]
    parts += [["## Not run yet", "", *left, ""]] if left else []
    page.write_text("\n".join("\n".join(lines) for lines in parts), "utf-8")
    return page


def section(study: Study, folder: Path) -> list[str]:
    """The lines on one study, whose numbers ``folder`` has."""
    numbers = _numbers(study.name, folder)
    found = record.results_of(numbers)
    is_sweep = bool(found[0].settings)
    said = (*verdicts.verdicts(found), *numbers["notes"])
    return [
        *(f"## {study.title}", ""),
        *(*tables.table(found).markdown(), ""),
        *(*(f"- {words}" for words in said), ""),
        *(*(f"![{study.title}]({folder.name}/{figure})" for figure in numbers["figures"]), ""),
        *_reported(study),
        *(f"The papers: {study.paper}", ""),
        *([] if is_sweep else [tables.arms_in_words(found[0].arms), ""]),
        *(_cost(numbers), ""),
        *look_page.section(study.name, folder),
    ]


def _numbers(name: str, folder: Path) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text("utf-8"))


def _reported(study: Study) -> list[str]:
    """The papers' rows, to read ours beside them."""
    if not study.reported:
        return []
    headings = ("paper", "setting", "figure")
    rows = [[row[name] for name in headings] for row in study.reported]
    return [*Table(("reported", *headings[1:]), [rows]).markdown(), ""]


def _cost(numbers: Mapping[str, Any]) -> str:
    versions, git, machine = (
        record.origin_in_words(name, numbers[name]) for name in ("versions", "git", "machine")
    )
    runs = f"{numbers['runs']} runs, about {numbers['hours']:.1f} hours in all"
    return f"{runs}. {machine}; {versions}; commit {git}."
