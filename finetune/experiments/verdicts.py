"""One honest sentence on each arm of a comparison, and on the best setting of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from finetune.experiments.best import leaders, optimism
from finetune.experiments.gather import NONE, ArmResult, Paired, TaskResult, against_degree_1
from finetune.experiments.space import described
from finetune.experiments.statistics import LEVEL, least_shown, pairs_needed, smallest_p
from finetune.plurals import many


def verdicts(found: Sequence[TaskResult]) -> list[str]:
    """A sentence for each arm but the baselines; of a sweep, what its best setting is worth.

    An arm of several passes has a second one where there is an arm of degree 1, of one pass.
    """
    if found[0].settings:
        return sweep_verdicts(found[0])
    several = len({task.task for task in found}) > 1
    return [
        (f"{task.task}, " if several else "") + verdict(task, arm, comparisons(compared))
        for compared in (found, against_degree_1(found))
        for task in compared
        for arm in task.arms[1:]
    ]


def sweep_verdicts(task: TaskResult) -> list[str]:
    """The best setting, and why its number is too good."""
    first, settings, places = leaders(task), task.settings, decimals(task)
    if not first:
        return ["No setting has a value of every seed yet: none is best."]
    arm = first[0]
    if len(first) > 1:
        return [
            f"None of {len(settings)} is best: {len(first)} tie, {task.title} "
            f"{arm.mean:.{places}f} in the mean over the seeds; "
            f"{'; '.join(described(each.setting) for each in first)}."
        ]
    gain = f", {arm.paired.mean:+.{places}f} to {task.arms[0].name}" if arm.paired else ""
    said = [
        f"Best of {len(settings)}: {described(arm.setting)}; {task.title} "
        f"{arm.mean:.{places}f}{gain} (mean over {many(len(arm.values), 'seed')})."
    ]
    return said + ([_warning(settings, places)] if len(settings) > 1 else [])


def _warning(settings: Sequence[ArmResult], places: int) -> str:
    """What the best of many settings is worth."""
    said = (
        f"It was chosen among {len(settings)} by these rows and seeds, so its number is optimistic"
    )
    luck = optimism(settings)
    if luck is None:
        return f"{said}."
    return (
        f"{said}: were all equally good, the best would be expected {luck:.{places}f} better than "
        "their average, by chance."
    )


def comparisons(found: Sequence[TaskResult]) -> int:
    """How many comparisons the p-values are corrected for."""
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
    """Digits after the point, so that two digits of the smallest spread of the task are shown."""
    spreads = [arm.deviation for arm in task.arms if arm.values]
    spreads += [a.paired.interval.half_width for a in task.arms if a.paired and a.paired.interval]
    known = [spread for spread in spreads if spread]
    if not known:
        return 4
    return max(2, next((n for n in range(6) if min(known) * 10**n >= 10), 6))


def in_per_cent(change: float, before: float) -> str:
    """A change in per cent of the size of what was before, with the change's own sign."""
    return f"{100 * change / abs(before):+.2f} %" if before else NONE


def _facts(task: TaskResult, arm: ArmResult, paired: Paired) -> str:
    places, found = decimals(task), paired.interval
    interval = f" (95 % interval {found.words(places)})" if found else ""
    plain = mean(task.arms[0].values[seed] for seed in paired.differences)
    share = f", {in_per_cent(paired.mean, plain)} of {plain:.{places}f}" if plain else ""
    return (
        f"{task.title} {paired.mean:+.{places}f}{interval}{share}, better in {paired.better} of "
        f"{len(paired.differences)} seeds, p = {paired.p:.2g}{_without(arm, paired)}"
    )


def _without(arm: ArmResult, paired: Paired) -> str:
    """The number of seeds that gave no pair, since runs that diverged are not missing by chance."""
    lost = len({*arm.values, *arm.missing} - {*paired.differences})
    return f"; {lost} more seeds gave no pair" if lost else ""


def _corrected(paired: Paired, count: int) -> str:
    return f", {paired.corrected_p:.2g} corrected for {count} comparisons" if count > 1 else ""


def _short(pairs: int, count: int) -> str:
    """How many seeds it takes to show one difference among so many, if these are fewer."""
    needed = pairs_needed(count)
    return f" ({needed} seeds are needed to show one among {count})" if pairs < needed else ""


def _unseen(task: TaskResult, paired: Paired, count: int) -> str:
    """The difference that could not have been seen: Holm's smallest p must reach 0.05 / count."""
    least = least_shown(list(paired.differences.values()), LEVEL / count)
    if least is None:
        return ""
    among = f" among {count} comparisons" if count > 1 else ""
    return (
        f"; with their spread a mean difference below about {least:.{decimals(task)}f} does not "
        f"reach p = {LEVEL}{among}"
    )
