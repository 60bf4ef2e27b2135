"""The table that leads docs/evidence.md: every arm of every comparison on a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from finetune.experiments.gather import NONE, ArmResult, Paired, TaskResult
from finetune.experiments.statistics import LEVEL
from finetune.experiments.tables import Table
from finetune.experiments.verdicts import decimals, in_per_cent

if TYPE_CHECKING:
    from finetune.studies.run import Comparison, Effect

HEADINGS = (
    "study",
    "against",
    "arm",
    "seeds",
    "change",
    "95 % interval",
    "in the paper",
    "verdict",
)
MEANING = """Change: the mean difference, paired by seed, in per cent of what the arm is held
against. ↑ greater is better, ↓ less is. Paper: the same of its own figures, one run a cell, mostly
of far larger models; each study below says which. Verdict: better or worse where p, corrected by
Holm over the study's arms, is at most 0.05; else not shown, and the study says what it could have
shown. Sweeps have no verdict: their best setting was chosen on the rows that it is measured on.
"""


def lines(found: Iterable[tuple[Comparison, TaskResult]]) -> list[str]:
    """The table of these studies in Markdown, and what its columns mean."""
    groups = [
        [
            [*(_study(study, task) if place == 0 else ("", "")), *_row(study, task, arm)]
            for place, arm in enumerate(arm for arm in task.arms if arm.paired is not None)
        ]
        for study, task in found
    ]
    return [*Table(HEADINGS, groups).markdown(), "", *MEANING.splitlines(), ""]


def word(task: TaskResult, paired: Paired) -> str:
    """The verdict on an arm: better, worse or not shown."""
    if paired.corrected_p > LEVEL:
        return "not shown"
    return "better" if (paired.mean > 0) == task.greater_is_better else "worse"


def _study(study: Comparison, task: TaskResult) -> Sequence[str]:
    first = task.arms[0]
    direction = "↑" if task.greater_is_better else "↓"
    return [
        f"[{study.title}](#{anchor(study.title)})",
        f"{first.name}: {task.title} {direction} {first.mean:.{decimals(task)}f}",
    ]


def _row(study: Comparison, task: TaskResult, arm: ArmResult) -> Sequence[str]:
    paired = arm.paired
    assert paired is not None
    before = fmean(task.arms[0].values[seed] for seed in paired.differences)
    ends = paired.interval.ends if paired.interval else ()
    return [
        arm.name,
        str(len(paired.differences)),
        in_per_cent(paired.mean, before),
        " to ".join(in_per_cent(end, before) for end in ends) or NONE,
        _of_paper(study.effects.get(arm.name)),
        word(task, paired),
    ]


def _of_paper(effect: Effect | None) -> str:
    if effect is None:
        return NONE
    if isinstance(effect, str):
        return effect
    before, after, *where = effect
    change = in_per_cent(float(after) - float(before), float(before))
    return " ".join([change, *(f"({each})" for each in where)])


def anchor(title: str) -> str:
    """What a heading is called in a link, as Markdown's renderers have it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
