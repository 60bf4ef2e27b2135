"""The comparison as a table: text, Markdown, LaTeX, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from finetune.comparison.arms import grouped
from finetune.comparison.results import ArmResult, TaskResult
from finetune.comparison.statistics import EXACT_UP_TO
from finetune.comparison.verdicts import comparisons, decimals, verdicts

HEADINGS = (
    *("task", "arm", "seeds", "metric", "mean ± sd", "difference", "95 % interval", "p"),
    *("p, Holm", "scalars", "s/step", "peak memory"),
)
NONE = "-"
LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
LATEX |= {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}


def rows(found: Sequence[TaskResult]) -> list[list[str]]:
    """One row an arm and task, as words in the order of `HEADINGS`."""
    return [_row(task, arm) for task in found for arm in task.arms]


def text(found: Sequence[TaskResult], notes: Sequence[str]) -> str:
    """Aligned columns, then the verdicts and notes."""
    lines = aligned(HEADINGS, rows(found))
    return "\n".join([*lines, "", *verdicts(found), "", *legend(found), *notes]) + "\n"


def markdown(found: Sequence[TaskResult], notes: Sequence[str]) -> str:
    """The same with a pipe table."""
    lines = pipes(HEADINGS, rows(found))
    said = [f"- {line}" for line in verdicts(found)]
    below = [f"- {line}" for line in (*legend(found), *notes)]
    return "\n".join([*lines, "", *said, "", *below]) + "\n"


def latex(found: Sequence[TaskResult], notes: Sequence[str]) -> str:
    """A ``tabular`` for the package booktabs; the verdicts, legend and notes as comments."""
    lines = [f"% {line}" for line in (*verdicts(found), *legend(found), *notes)]
    columns = "llr" + "l" * 2 + "r" * (len(HEADINGS) - 5)
    groups = [[_row(task, arm) for arm in task.arms] for task in found]
    return "\n".join([*lines, *tabular(columns, HEADINGS, groups)]) + "\n"


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table for a terminal."""
    table = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def pipes(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    table = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in table]


def tabular(
    columns: str, headings: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]
) -> list[str]:
    """The lines of a LaTeX table (booktabs), a rule above each group of rows."""
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(headings)]
    for rows in groups:
        lines += [r"\midrule", *map(_latex_row, rows)]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def as_json(found: Sequence[TaskResult], notes: Sequence[str]) -> dict[str, Any]:
    """Every number: values and differences by seed, with what the verdicts say."""
    return {
        "tasks": [
            {
                "task": task.task,
                "metric": task.metric,
                "greater_is_better": task.greater_is_better,
                "baseline": task.arms[0].name,
                "arms": [_arm_json(arm) for arm in task.arms],
            }
            for task in found
        ],
        "verdicts": verdicts(found),
        "method": legend(found),
        "notes": list(notes),
    }


def legend(found: Sequence[TaskResult]) -> list[str]:
    """What the columns are, in sentences."""
    baseline = found[0].arms[0].name if found else "the baseline"
    pairs = max((len(a.paired.differences) for t in found for a in t.arms if a.paired), default=0)
    exact = "exact, all sign flips" if pairs <= EXACT_UP_TO else "drawn sign flips"
    count = comparisons(found)
    corrected = f"Holm's correction over all {count} comparisons, tasks and arms together"
    return [
        "Metric: ↑ greater is better, ↓ less is. Mean and standard deviation over the seeds.",
        f"Difference: to {baseline}, paired by seed; its 95 % interval by the BCa bootstrap over "
        "seeds, too narrow for few of them (with 8 it holds the true mean in some 88 % of cases).",
        f"p: two-sided paired permutation test ({exact}); "
        f"{corrected if count > 1 else 'one comparison, nothing to correct for'}.",
        "Medians over the runs: seconds a step, and peak memory (of the tensors on a GPU, of the "
        "whole process on a CPU).",
        f"Arms: {'; '.join(own_flags(found))}.",
    ]


def own_flags(found: Sequence[TaskResult]) -> list[str]:
    """For each arm the flags that not all arms have."""
    arms = found[0].arms if found else []
    groups = [[" ".join(group) for group in grouped(arm.flags)] for arm in arms]
    shared = set.intersection(*map(set, groups)) if groups else set()
    return [
        f"{arm.name}: {' '.join(flag for flag in flags if flag not in shared)}"
        for arm, flags in zip(arms, groups, strict=True)
    ]


def _row(task: TaskResult, arm: ArmResult) -> list[str]:
    places, paired = decimals(task), arm.paired
    metric = f"{task.title} {'↑' if task.greater_is_better else '↓'}"
    seconds, memory = arm.typical("seconds_per_step"), arm.typical("peak_memory_bytes")
    scalars = arm.typical("filter_scalars")
    cells = [task.task, arm.name, str(len(arm.values)), metric, _spread(arm, places)]
    if paired is None:
        cells += [NONE] * 4
    else:
        interval = paired.interval
        bounds = f"{interval.low:+.{places}f} to {interval.high:+.{places}f}" if interval else NONE
        cells += [f"{paired.mean:+.{places}f}", bounds]
        cells += [f"{paired.p:.3g}", f"{paired.corrected_p:.3g}"]
    cells.append(NONE if scalars is None else f"{scalars:.0f}")
    cells.append(NONE if seconds is None else f"{seconds:.3g}")
    cells.append(NONE if memory is None else f"{memory / 2**20:.0f} MiB")
    return cells


def _spread(arm: ArmResult, places: int) -> str:
    if not arm.values:
        return NONE
    deviation = "" if arm.deviation is None else f" ± {arm.deviation:.{places}f}"
    return f"{arm.mean:.{places}f}{deviation}"


def _arm_json(arm: ArmResult) -> dict[str, Any]:
    paired = None if arm.paired is None else asdict(arm.paired) | {"mean": arm.paired.mean}
    return {
        "arm": arm.name,
        "flags": arm.flags,
        "values": arm.values,
        "mean": arm.mean if arm.values else None,
        "standard_deviation": arm.deviation if arm.values else None,
        "missing": arm.missing,
        "paired": paired,
        "filter_scalars": arm.typical("filter_scalars"),
        "seconds_per_step": arm.typical("seconds_per_step"),
        "peak_memory_bytes": arm.typical("peak_memory_bytes"),
    }


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join("".join(LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"
