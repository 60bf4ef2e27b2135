"""The table of a comparison, the table of a sweep, and what their columns mean.

A `Table` is text for a terminal, Markdown or LaTeX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.experiments.gather import (
    MEMORY,
    MOVED,
    NONE,
    SCALARS,
    STEP,
    ArmResult,
    Paired,
    TaskResult,
    against_degree_1,
)
from finetune.experiments.space import shown
from finetune.experiments.statistics import EXACT_UP_TO
from finetune.experiments.verdicts import comparisons, decimals
from finetune.settings import recipes
from finetune.settings.groups import FILTER_RATE
from finetune.settings.variants import NO_VARIANT, owners

HEADINGS = (
    *("task", "arm", "seeds", "metric", "mean ± sd", "difference", "95 % interval", "p"),
    *("p, Holm", "scalars", "s/step", "peak memory"),
)
LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
LATEX |= {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}

Row = Sequence[str]


@dataclass(frozen=True)
class Table:
    """Headings and rows of cells.

    Attributes:
        headings: a word or two for each column.
        groups: rows that belong together; LaTeX draws a rule above each group.
        columns: LaTeX's letter for each column, l or r; empty is l for all.
    """

    headings: Row
    groups: Sequence[Sequence[Row]]
    columns: str = ""

    @property
    def rows(self) -> list[Row]:
        """The rows of all groups."""
        return [row for group in self.groups for row in group]

    def text(self) -> list[str]:
        """The lines for a terminal, columns aligned."""
        table = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]

    def markdown(self) -> list[str]:
        """The lines of a pipe table."""
        table = [self.headings, ["---"] * len(self.headings), *self.rows]
        return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in table]

    def latex(self) -> list[str]:
        """The lines of a ``tabular`` for the package booktabs."""
        columns = self.columns or "l" * len(self.headings)
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(self.headings)]
        for rows in self.groups:
            lines += [r"\midrule", *map(_latex_row, rows)]
        return [*lines, r"\bottomrule", r"\end{tabular}"]


def _latex_row(cells: Row) -> str:
    return " & ".join("".join(LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"


def table(found: Sequence[TaskResult]) -> Table:
    """The table of a sweep if the arms carry settings, else that of a comparison."""
    (first, *_) = found
    return sweep(first) if first.settings else comparison(found)


def legend(found: Sequence[TaskResult]) -> list[str]:
    """What the columns of the table are, in sentences."""
    (first, *_) = found
    return sweep_legend(first) if first.settings else comparison_legend(found)


def comparison(found: Sequence[TaskResult]) -> Table:
    """One row for each arm and task."""
    groups = [[_arm_row(task, arm) for arm in task.arms] for task in found]
    return Table(HEADINGS, groups, "llr" + "ll" + "r" * (len(HEADINGS) - 5))


def comparison_legend(found: Sequence[TaskResult]) -> list[str]:
    """What the columns of a comparison are, and each arm's own flags."""
    pairs = max((len(a.paired.differences) for t in found for a in t.arms if a.paired), default=0)
    exact = "exact, all sign flips" if pairs <= EXACT_UP_TO else "drawn sign flips"
    count = comparisons(found)
    corrected = f"Holm's correction over all {count} comparisons, tasks and arms together"
    return [
        "Metric: ↑ greater is better, ↓ less is. Mean and standard deviation over the seeds.",
        f"Difference: to {found[0].arms[0].name}, paired by seed; its 95 % interval by "
        "Student's t over seeds, which holds the true mean in 95 % of cases if differences are "
        "normally distributed, in fewer if they are not.",
        f"p: two-sided paired permutation test ({exact}); "
        f"{corrected if count > 1 else 'one comparison, nothing to correct for'}.",
        *_of_degree_1(found),
        "Medians over the runs: seconds a step, and peak memory (of the tensors on a GPU, of the "
        "whole process on a CPU).",
        arms_in_words(found[0].arms),
    ]


def _of_degree_1(found: Sequence[TaskResult]) -> list[str]:
    held = [arm.name for task in against_degree_1(found) for arm in task.arms[1:]]
    if not held:
        return []
    return [
        f"{', '.join(dict.fromkeys(held))}: of several passes of attention, so held against degree "
        "1 as well, c_0 V + c_1 A V, of one; p corrected over these comparisons alone."
    ]


def arms_in_words(arms: Sequence[ArmResult]) -> str:
    """Each arm's own flags, as on the command line."""
    said = [
        f"{arm.name}: {' '.join(recipes.words(flags))}"
        for arm, flags in zip(arms, own_flags(arms), strict=True)
    ]
    return f"Arms: {'; '.join(said)}."


def own_flags(arms: Sequence[ArmResult]) -> list[dict[str, Any]]:
    """For each arm the flags that not all arms have with the same value, its variant first."""

    first, *others = (arm.flags for arm in arms)
    shared = [n for n in first if all(n in flags and flags[n] == first[n] for flags in others)]

    def own(flags: Mapping[str, Any]) -> dict[str, Any]:
        names = sorted(flags, key=lambda name: name != "variant")
        return {name: flags[name] for name in names if name not in shared}

    return [own(arm.flags) for arm in arms]


def sweep(task: TaskResult) -> Table:
    """One row for plain attention and one for each setting; a column for each swept flag."""
    places, flags, plain, has_moved = decimals(task), task.swept, task.plain, _have_moved(task)

    def numbers(arm: ArmResult) -> list[str]:
        moved = [_number(arm.typical.get(MOVED), ".2g")] if has_moved else []
        paired = difference(arm.paired, places) if plain else []
        return [*_numbers(arm, places), *moved, *paired]

    rows: list[Row] = []
    if plain is not None:
        rows.append([plain.name, *[NONE] * (len(flags) - 1), *numbers(plain)])
    for arm in task.settings:
        rows.append([*(shown(arm.setting.get(flag)) for flag in flags), *numbers(arm)])
    headings = [*flags, "seeds", "mean", "sd", "min", "max", *(["moved"] if has_moved else [])]
    if plain is not None:
        headings += [f"difference to {plain.name}", "95 % interval"]
    return Table(headings, [rows], "l" * len(flags) + "r" * (len(headings) - len(flags)))


def sweep_legend(task: TaskResult) -> list[str]:
    """What the columns of a sweep are."""
    variant = task.settings[0].flags.get("variant", NO_VARIANT)
    lines = [
        f"{task.task}, {variant}: {task.title} on the validation rows, {task.direction}; "
        "mean, standard deviation, least and greatest over the seeds. default: flag not given."
    ]
    if _have_moved(task):
        lines.append(
            "Moved: how far the scalar that moved most ended from its start; the median over the "
            "runs."
        )
    if task.plain is None:
        return lines
    lines.append(
        f"Difference to plain attention ({task.plain.name}), paired by seed; its 95 % interval by "
        "Student's t, not corrected for the number of settings."
    )
    general = [flag for flag in task.swept if not owners(flag) and flag != FILTER_RATE]
    if general:
        lines.append(
            f"{', '.join(general)}: plain attention has it too and ran with one value of it "
            f"alone, which favours the settings. Sweep it with --variant {NO_VARIANT} as well."
        )
    return lines


def _have_moved(task: TaskResult) -> bool:
    """Whether any arm says how far its scalars moved; records of earlier versions do not."""
    return any(arm.typical.get(MOVED) is not None for arm in task.arms)


def _arm_row(task: TaskResult, arm: ArmResult) -> list[str]:
    places, paired = decimals(task), arm.paired
    metric = f"{task.title} {'↑' if task.greater_is_better else '↓'}"
    p = (None, None) if paired is None else (paired.p, paired.corrected_p)
    scalars, seconds, memory = (arm.typical.get(name) for name in (SCALARS, STEP, MEMORY))
    return [
        *(task.task, arm.name, str(len(arm.values)), metric, arm.words(places)),
        *difference(paired, places),
        *(_number(value, ".3g") for value in p),
        *(_number(scalars, ".0f"), _number(seconds, ".3g")),
        NONE if memory is None else f"{memory / 2**20:.0f} MiB",
    ]


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else f"{value:{form}}"


def _numbers(arm: ArmResult, places: int) -> list[str]:
    values = list(arm.values.values())
    found = (arm.mean, arm.deviation, min(values), max(values)) if values else [None] * 4
    return [str(len(values)), *(_number(value, f".{places}f") for value in found)]


def difference(paired: Paired | None, places: int) -> list[str]:
    """The mean difference and its interval, in words."""
    if paired is None:
        return [NONE, NONE]
    interval = paired.interval
    return [f"{paired.mean:+.{places}f}", interval.words(places) if interval else NONE]
