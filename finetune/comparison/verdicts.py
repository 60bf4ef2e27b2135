"""One honest sentence on each arm."""

from __future__ import annotations

from collections.abc import Sequence

from finetune.comparison.results import ArmResult, Paired, TaskResult
from finetune.comparison.statistics import LEVEL, least_shown, pairs_needed, smallest_p


def verdicts(found: Sequence[TaskResult]) -> list[str]:
    """A sentence for each arm of each task but the baseline."""
    count = comparisons(found)
    several = len(found) > 1
    return [
        (f"{task.task}, " if several else "") + verdict(task, arm, count)
        for task in found
        for arm in task.arms[1:]
    ]


def comparisons(found: Sequence[TaskResult]) -> int:
    """How many p-values are corrected for."""
    return sum(arm.paired is not None for task in found for arm in task.arms)


def verdict(task: TaskResult, arm: ArmResult, count: int) -> str:
    """What the paired differences of one arm show, and what they cannot."""
    baseline, paired = task.arms[0].name, arm.paired
    if paired is None:
        return f"{arm.name}: no verdict, no seed ended both with it and with {baseline}."
    pairs = len(paired.differences)
    facts = _facts(task, arm, paired)
    is_better = (paired.mean > 0) == task.greater_is_better
    direction = "better" if is_better else "worse"
    if pairs == 1:
        return f"{arm.name}: no verdict, one seed has no spread to judge by: {facts}."
    if smallest_p(pairs) > LEVEL:
        return (
            f"{arm.name}: no verdict, {pairs} seeds cannot show a difference from {baseline} "
            f"(an exact paired test needs {pairs_needed(1)}): {facts}."
        )
    if paired.corrected_p <= LEVEL:
        return f"{arm.name} is {direction} than {baseline}: {facts}{_corrected(paired, count)}."
    if paired.p <= LEVEL:
        return (
            f"{arm.name}: {direction} than {baseline} taken alone, but not among {count} "
            f"comparisons, so not shown: {facts}{_corrected(paired, count)}{_short(pairs, count)}."
        )
    return (
        f"{arm.name}: no difference from {baseline} that {pairs} seeds can show: {facts}"
        f"{_unseen(task, paired, count) or _short(pairs, count)}."
    )


def decimals(task: TaskResult) -> int:
    """Digits after the point that show two digits of the spread of values and of differences."""
    spreads = [arm.deviation for arm in task.arms if arm.values]
    spreads += [a.paired.interval.half_width for a in task.arms if a.paired and a.paired.interval]
    known = [spread for spread in spreads if spread]
    if not known:
        return 4
    return max(2, next((n for n in range(6) if min(known) * 10**n >= 10), 6))


def _facts(task: TaskResult, arm: ArmResult, paired: Paired) -> str:
    places, interval = decimals(task), ""
    if paired.interval is not None:
        low, high = paired.interval.low, paired.interval.high
        interval = f" (95 % interval {low:+.{places}f} to {high:+.{places}f})"
    return (
        f"{task.title} {paired.mean:+.{places}f}{interval}, better in {paired.better} of "
        f"{len(paired.differences)} seeds, p = {paired.p:.2g}{_without(arm, paired)}"
    )


def _without(arm: ArmResult, paired: Paired) -> str:
    """Seeds that gave no pair: runs that diverged are not missing by chance."""
    lost = len({*arm.values, *arm.missing} - {*paired.differences})
    return f"; {lost} more seeds gave no pair" if lost else ""


def _corrected(paired: Paired, count: int) -> str:
    return f", {paired.corrected_p:.2g} corrected for {count} comparisons" if count > 1 else ""


def _short(pairs: int, count: int) -> str:
    """Whether anything at all could have been shown among so many comparisons."""
    needed = pairs_needed(count)
    return f" ({needed} seeds are needed to show one among {count})" if pairs < needed else ""


def _unseen(task: TaskResult, paired: Paired, count: int) -> str:
    """What could not have been seen: the smallest p of several has to reach a share of 0.05."""
    least = least_shown(list(paired.differences.values()), LEVEL / count)
    if least is None:
        return ""
    among = f" among {count} comparisons" if count > 1 else ""
    return (
        f"; with their spread a mean difference below about {least:.{decimals(task)}f} does not "
        f"reach p = {LEVEL}{among}"
    )
