"""The pages of the studies, from docs/evidence/*.json and the rows of evidence.yaml alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, stdev
from typing import Any

from finetune.engine.results import write_json
from finetune.experiments import analyze, figures, report
from finetune.experiments.analyze import NONE, ArmResult, Paired, TaskResult
from finetune.experiments.report import Table, decimals, in_per_cent
from finetune.experiments.statistics import LEVEL
from finetune.studies import look, margin
from finetune.studies.run import Effect, Study
from hf_graphattn.diagnostics import drawing

HEAD = (Path(__file__).parent / "head.md").read_text("utf-8")
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
    folder = docs / "evidence"
    if figure := figures.of_report(analyze.results_of(_numbers(name, folder))):
        drawing.save(figure, folder / name, ["png"])


def published(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """A report's numbers without what holds paths of the machine that it was run on.

    Of an arm's flags are left those that not all arms have, and the variant, which says how the
    arm is drawn.
    """
    kept = {name: value for name, value in numbers.items() if name not in ("best", "command")}
    if "tasks" in kept:
        kept["tasks"] = [
            task
            | {
                "arms": [
                    arm | {"flags": {"variant": arm["flags"]["variant"], **flags}}
                    for arm, flags in zip(
                        task["arms"], report.differing_flags(results.arms), strict=True
                    )
                ]
            }
            for task, results in zip(kept["tasks"], analyze.results_of(numbers), strict=True)
        ]
    return kept


def write(studies: Sequence[Study], docs: Path) -> Path:
    """Write ``docs/evidence.md`` and, for each study with numbers, ``docs/evidence/<study>.md``."""
    page, folder = docs / "evidence.md", docs / "evidence"
    known = [study for study in studies if (folder / f"{study.name}.json").is_file()]
    compared = [
        (study, task)
        for study in known
        if study.compares
        for task in analyze.results_of(_numbers(study.name, folder))
    ]
    others = [study for study in known if not study.compares]
    left = [f"- {study.title}" for study in studies if study not in known]
    text = [HEAD, *lines(compared)]
    if others:
        text += ["## Sweeps, and choices of settings", "", *map(_link, others), ""]
    text += ["## Not run yet", "", *left, ""] if left else []
    text += ["```{toctree}", ":hidden:", "", *(f"evidence/{s.name}" for s in known), "```", ""]
    page.write_text("\n".join(text), "utf-8")
    for study in known:
        (folder / f"{study.name}.md").write_text("\n".join(study_page(study, folder)), "utf-8")
    return page


def study_page(study: Study, folder: Path) -> list[str]:
    """The lines of the page of one study, whose numbers ``folder`` has."""
    numbers = _numbers(study.name, folder)
    results = analyze.results_of(numbers)
    remarks = (*report.verdicts(results), *numbers["notes"])
    columns = {"reported": "paper", "setting": "setting", "figure": "figure"}
    reported = Table([{n: row[key] for n, key in columns.items()} for row in study.reported])
    is_sweep = bool(results[0].settings)
    versions, git, machine = (
        analyze.origin_as_text(name, numbers[name]) for name in ("versions", "git", "machine")
    )
    runs = f"{numbers['runs']} runs, about {numbers['hours']:.1f} hours in all"
    return [
        *(f"# {study.title}", ""),
        *("A study of [Evidence](../evidence.md), which says what the columns mean.", ""),
        *(*report.table(results).markdown(), ""),
        *(*(f"- {remark}" for remark in remarks), ""),
        *(*(f"![{study.title}]({figure})" for figure in numbers["figures"]), ""),
        *([*reported.markdown(), ""] if study.reported else []),
        *(f"The papers: {study.paper}", ""),
        *([] if is_sweep else [report.arms_as_text(results[0].arms), ""]),
        *(f"{runs}. {machine}; {versions}; commit {git}.", ""),
        *look.section(study.name, folder),
    ]


def _link(study: Study) -> str:
    return f"- [{study.title}](evidence/{study.name}.md)"


def _numbers(name: str, folder: Path) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text("utf-8"))


COLUMNS = (Path(__file__).parent / "columns.md").read_text("utf-8")


def lines(compared: Iterable[tuple[Study, TaskResult]]) -> list[str]:
    """The table of these studies in Markdown, and what its columns mean."""
    rows = []
    for study, plain in compared:
        for task in (plain, *analyze.against_degree_1([plain])):
            effects, first = study.effects if task is plain else {}, _study(study, task)
            for arm in counted(task, study.again):
                rows.append(first | _row(arm, task, effects.get(arm.name)))
                first = dict.fromkeys(first, "")
    return [*Table(rows).markdown(), "", *COLUMNS.splitlines(), ""] if rows else []


def counted(task: TaskResult, again: Sequence[str]) -> list[ArmResult]:
    """The arms that have a row: those compared, without the runs of a study before."""
    return [arm for arm in task.arms if arm.paired is not None and arm.name not in again]


def verdict(task: TaskResult, paired: Paired) -> str:
    """Whether an arm is better, worse or neither was shown; and whether that counts."""
    if paired.corrected_p > LEVEL:
        return "not shown"
    size, least = abs(100 * paired.mean), margin(task.metric) * abs(task.baseline_mean(paired))
    return task.direction_of(paired) + ("" if size > least else ", within the margin")


def signal_to_noise(task: TaskResult) -> tuple[float, float] | None:
    """The range of the arms' means over plain's spread over seeds, and over that of differences.

    None where there is no spread, as of one seed.
    """
    means = [arm.mean for arm in task.arms if arm.values]
    plain = list(task.arms[0].values.values())
    differences = [arm.paired.differences.values() for arm in task.arms if arm.paired]
    spreads = [stdev(values) for values in differences if len(values) > 1]
    if not spreads or not stdev(plain) or not median(spreads):
        return None
    signal = max(means) - min(means)
    return signal / stdev(plain), signal / median(spreads)


def _study(study: Study, task: TaskResult) -> dict[str, str]:
    first, ratios = task.arms[0], signal_to_noise(task)
    return {
        "study": f"[{study.title}](evidence/{study.name}.md)",
        "against": f"{first.name}: {task.title} {task.arrow} {first.mean:.{decimals(task)}f}",
        "signal to noise": "{:.2g}, paired {:.2g}".format(*ratios) if ratios else NONE,
        "margin": f"{margin(task.metric):g} %",
    }


def _row(arm: ArmResult, task: TaskResult, effect: Effect | None) -> dict[str, str]:
    paired = arm.paired
    assert paired is not None
    before = task.baseline_mean(paired)
    ends = paired.interval.ends if paired.interval else ()
    change, is_inside = _of_paper(effect, [end / abs(before) for end in ends if before])
    return {
        "arm": arm.name,
        "seeds": str(len(paired.differences)),
        "change": in_per_cent(paired.mean, before),
        "95 % interval": " to ".join(in_per_cent(end, before) for end in ends) or NONE,
        "in the paper": change,
        "in our interval": is_inside,
        "verdict": verdict(task, paired),
    }


def _of_paper(effect: Effect | None, ends: Sequence[float]) -> tuple[str, str]:
    """The paper's change in per cent, and whether it lies between the ends of our interval."""
    if effect is None or isinstance(effect, str):
        return effect or NONE, NONE
    before, after, *where = effect
    change = float(after) - float(before)
    text = " ".join([in_per_cent(change, float(before)), *(f"({each})" for each in where)])
    if not ends:
        return text, NONE
    low, high = ends
    return text, "yes" if low <= change / abs(float(before)) <= high else "no"
