"""The table that leads docs/evidence.md: every arm of every comparison on a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

from finetune.experiments.gather import NONE, ArmResult, Paired, TaskResult, against_degree_1
from finetune.experiments.statistics import LEVEL
from finetune.experiments.tables import Table
from finetune.experiments.verdicts import decimals, in_per_cent
from finetune.studies import margin

if TYPE_CHECKING:
    from finetune.studies.run import Comparison, Effect

HEADINGS = (
    *("study", "against", "signal to noise", "margin", "arm", "seeds", "change", "95 % interval"),
    *("in the paper", "in our interval", "verdict"),
)
MEANING = """Change: the mean difference, paired by seed, in per cent of what the arm is held
against. ↑ greater is better, ↓ less is. Paper: the same of its own figures, one run a cell, mostly
of far larger models; each study below says which; then whether this lies in our interval. Verdict:
better or worse where p, corrected by Holm over the study's arms alone, is at most 0.05; else not
shown, and the study says what it could have shown. An effect counts if it is shown and larger than
the margin, which is stated in `finetune/evidence.yaml`; for the studies that had run by 2026-11-23
it was chosen afterwards. Interval and p may disagree where one seed lies far from the others: p
assumes no distribution. Sweeps have no verdict: their best setting was chosen on the rows that it
is measured on.

Signal to noise (as in arXiv 2508.13144, whose noise is over a run's last steps): the greatest
difference between two arms' means over the standard deviation over seeds of what they are held
against; then the same over that of the paired differences, the median over arms, which is what
pairing gains.
"""


def lines(found: Iterable[tuple[Comparison, TaskResult]]) -> list[str]:
    """The table of these studies in Markdown, and what its columns mean."""
    groups = [
        [
            [*(_study(study, task) if place == 0 else [""] * 4), *_row(arm, task, effects)]
            for place, arm in enumerate(counted(task, study.again))
        ]
        for study, plain in found
        for task, effects in (
            (plain, study.effects),
            *((task, {}) for task in against_degree_1([plain])),
        )
    ]
    return [*Table(HEADINGS, groups).markdown(), "", *MEANING.splitlines(), ""]


def counted(task: TaskResult, again: Sequence[str]) -> list[ArmResult]:
    """The arms that have a row: those compared, without what a study before has told."""
    return [arm for arm in task.arms if arm.paired is not None and arm.name not in again]


def word(task: TaskResult, paired: Paired) -> str:
    """The verdict on an arm: better, worse or not shown; and whether it counts."""
    if paired.corrected_p > LEVEL:
        return "not shown"
    shown = "better" if (paired.mean > 0) == task.greater_is_better else "worse"
    size = abs(100 * paired.mean / _before(task, paired))
    return shown if size > margin(task.metric) else f"{shown}, within the margin"


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


def _study(study: Comparison, task: TaskResult) -> Sequence[str]:
    first = task.arms[0]
    direction = "↑" if task.greater_is_better else "↓"
    ratios = signal_to_noise(task)
    return [
        f"[{study.title}](#{anchor(study.title)})",
        f"{first.name}: {task.title} {direction} {first.mean:.{decimals(task)}f}",
        "{:.2g}, paired {:.2g}".format(*ratios) if ratios else NONE,
        f"{margin(task.metric):g} %",
    ]


def _row(arm: ArmResult, task: TaskResult, effects: Mapping[str, Effect]) -> Sequence[str]:
    paired, effect = arm.paired, effects.get(arm.name)
    assert paired is not None
    before = _before(task, paired)
    ends = paired.interval.ends if paired.interval else ()
    return [
        arm.name,
        str(len(paired.differences)),
        in_per_cent(paired.mean, before),
        " to ".join(in_per_cent(end, before) for end in ends) or NONE,
        *_of_paper(effect, [end / abs(before) for end in ends]),
        word(task, paired),
    ]


def _before(task: TaskResult, paired: Paired) -> float:
    """The mean of what an arm is held against, over its seeds."""
    return fmean(task.arms[0].values[seed] for seed in paired.differences)


def _of_paper(effect: Effect | None, ends: Sequence[float]) -> tuple[str, str]:
    """The paper's change in per cent, and whether it lies between the ends of our interval."""
    if effect is None or isinstance(effect, str):
        return effect or NONE, NONE
    before, after, *where = effect
    change = float(after) - float(before)
    said = " ".join([in_per_cent(change, float(before)), *(f"({each})" for each in where)])
    if not ends:
        return said, NONE
    low, high = ends
    return said, "yes" if low <= change / abs(float(before)) <= high else "no"


def anchor(title: str) -> str:
    """What a heading is called in a link, as Markdown's renderers have it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
