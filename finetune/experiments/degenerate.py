"""Warnings of what makes a table's numbers say nothing: one answer for all rows, zeros, ties."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from finetune.engine.predictions import constant, evaluated, only_answer
from finetune.experiments.gather import MOVED, TaskResult
from finetune.experiments.grid import Cell


def warnings(found: Sequence[TaskResult], cells: Sequence[Cell]) -> list[str]:
    """A line for each thing that is degenerate, in a comparison or in a sweep."""
    return [
        f"Warning: {task.task}, {words}"
        for task in found
        for words in (*_constant(task, cells), *_zeros(task), *_ties(task))
    ]


def _constant(task: TaskResult, cells: Sequence[Cell]) -> Iterator[str]:
    """Runs that give every row the same answer, though the rows' labels differ."""
    seeds, ended = defaultdict(list), {(arm.name, seed) for arm in task.arms for seed in arm.values}
    own = (cell for cell in cells if cell.task == task.task)
    for cell in (cell for cell in own if (cell.arm.name, cell.seed) in ended):
        files = evaluated(cell.run.folder)
        ends = [end for end in files if task.metric.endswith(end)]
        answer = only_answer(files[max(ends, key=len)]) if ends else None
        if answer is not None:
            seeds[cell.arm.name, answer].append(str(cell.seed))
    for (arm, answer), which in seeds.items():
        yield (
            f"{arm}, seed {', '.join(which)}: {constant(answer)}; "
            "such a run has learned nothing that this metric could show."
        )


def _zeros(task: TaskResult) -> Iterator[str]:
    """Arms whose metric is 0 in all seeds, where that is not as good as it can be."""
    zero = [arm.name for arm in task.arms if arm.values and not any(arm.values.values())]
    if zero and task.greater_is_better:
        yield f"{', '.join(zero)}: {task.title} is 0 in all seeds."


def _ties(task: TaskResult) -> Iterator[str]:
    """Arms with identical values in all seeds, zeros left out."""
    alike = defaultdict(list)
    for arm in task.arms:
        if any(arm.values.values()):
            alike[tuple(arm.values.items())].append(arm)
    for arms in (arms for arms in alike.values() if len(arms) > 1):
        moved = {arm.name: arm.typical.get(MOVED) for arm in arms}
        known = ", ".join(f"{name} {far:.2g}" for name, far in moved.items() if far is not None)
        seeds = len(arms[0].values)
        yield (
            f"{', '.join(moved)}: the same {task.title} in "
            f"{f'all {seeds} seeds' if seeds > 1 else 'the one seed'}. Their filters had no "
            "effect, or were not learned, or the metric is too coarse to part them"
            f"{f'; how far their scalars moved: {known}' if known else ''}."
        )
