"""A sweep as a table, with the best setting named and what its number is worth."""

from __future__ import annotations

from collections.abc import Sequence

from finetune.arguments import NO_VARIANT
from finetune.comparison.results import ArmResult
from finetune.comparison.tables import NONE, aligned, pipes, tabular
from finetune.comparison.verdicts import decimals
from finetune.sweeping import selection
from finetune.sweeping.results import Found
from finetune.sweeping.space import shown


def text(found: Found, notes: Sequence[str]) -> str:
    """Aligned columns, then the best setting and the notes."""
    lines = [*aligned(headings(found), rows(found)), "", *best(found), "", *legend(found), *notes]
    return "\n".join(lines) + "\n"


def markdown(found: Found, notes: Sequence[str]) -> str:
    """The same with a pipe table."""
    below = [f"- {line}" for line in (*legend(found), *notes)]
    lines = [*pipes(headings(found), rows(found)), "", *best(found), "", *below]
    return "\n".join(lines) + "\n"


def latex(found: Found) -> str:
    """A ``tabular`` for the package booktabs; what is said of it as comments."""
    flags = len(found.sweep.space.flags)
    columns = "l" * flags + "r" * (len(headings(found)) - flags)
    said = [f"% {line}" for line in (*best(found), *legend(found))]
    return "\n".join([*said, *tabular(columns, headings(found), [rows(found)])]) + "\n"


def headings(found: Found) -> list[str]:
    """The flags, then what was measured."""
    names = [*found.sweep.space.flags, "seeds", "mean", "sd", "min", "max"]
    return [*names, f"difference to {NO_VARIANT}", "95 % interval"] if found.plain else names


def rows(found: Found) -> list[list[str]]:
    """Plain attention, then each setting, as words in the order of `headings`."""
    places, flags = decimals(found.task), found.sweep.space.flags
    made = []
    if found.plain is not None:
        blank = [NONE] * (len(flags) - 1)
        made.append([NO_VARIANT, *blank, *_numbers(found.plain, places), NONE, NONE])
    for arm in found.rows:
        values = found.settings[arm.name].values
        cells = [shown(values.get(flag)) for flag in flags]
        cells += _numbers(arm, places)
        made.append([*cells, *(_difference(arm, places) if found.plain else [])])
    return made


def best(found: Found) -> list[str]:
    """The best setting, why its number is too good, and what would confirm it."""
    arm = selection.best(found.task, found.rows)
    if arm is None:
        return verdicts(found)
    setting = found.settings[arm.name]
    return [
        *verdicts(found),
        f"Fresh seeds show whether it differs from {NO_VARIANT}:",
        f"    {selection.confirmation(found.sweep, setting, found.launcher)}",
    ]


def verdicts(found: Found) -> list[str]:
    """The best setting, and why its number is too good."""
    arm, task = selection.best(found.task, found.rows), found.task
    if arm is None:
        return ["No setting has a value of every seed yet: none is best."]
    places, setting = decimals(task), found.settings[arm.name]
    gain = f", {arm.paired.mean:+.{places}f} to {NO_VARIANT}" if arm.paired else ""
    return [
        f"Best of {len(found.rows)}: {setting}; {task.title} {arm.mean:.{places}f}{gain} "
        f"(mean over {len(arm.values)} seed{'s' if len(arm.values) > 1 else ''}).",
        *_warning(found, places),
    ]


def _warning(found: Found, places: int) -> list[str]:
    count, luck = len(found.rows), selection.optimism(found.rows)
    if count < 2:
        return []
    said = f"It was chosen among {count} by these rows and seeds, so its number is optimistic"
    if luck is None:
        return [f"{said}."]
    return [
        f"{said}: were all equally good, the best would be expected {luck:.{places}f} better than "
        "their average, by chance."
    ]


def legend(found: Found) -> list[str]:
    """What the columns are, in sentences."""
    task = found.task
    way = "greater" if task.greater_is_better else "less"
    sweep = found.sweep
    lines = [
        f"{task.task}, {sweep.variant}: {task.title} on the validation rows, {way} is better; "
        "mean, standard deviation, least and greatest over the seeds. default: flag not given."
    ]
    if found.plain is not None:
        lines.append(
            f"Difference to plain attention ({NO_VARIANT}), paired by seed; its 95 % interval by "
            "the BCa bootstrap, from 4 seeds on, not corrected for the number of settings."
        )
        if found.general:
            lines.append(
                f"{', '.join(found.general)}: plain attention has it too and ran with one value "
                "of it alone, which favours the settings. Sweep it with --variant none as well."
            )
    return lines


def _numbers(arm: ArmResult, places: int) -> list[str]:
    values = list(arm.values.values())
    if not values:
        return ["0", *[NONE] * 4]
    deviation = NONE if arm.deviation is None else f"{arm.deviation:.{places}f}"
    ends = [f"{end:.{places}f}" for end in (min(values), max(values))]
    return [str(len(values)), f"{arm.mean:.{places}f}", deviation, *ends]


def _difference(arm: ArmResult, places: int) -> list[str]:
    if arm.paired is None:
        return [NONE, NONE]
    interval = arm.paired.interval
    bounds = f"{interval.low:+.{places}f} to {interval.high:+.{places}f}" if interval else NONE
    return [f"{arm.paired.mean:+.{places}f}", bounds]
