"""What a comparison or a sweep prints and leaves: tables, sentences, figures, all numbers.

A sweep is a comparison whose arms carry a setting. Its table has a column for each swept flag, its
figure shows how the metric depends on them, and its best setting comes with a warning and with the
command that would confirm it.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from finetune.engine.results import write_json
from finetune.experiments import analyze, figures, statistics
from finetune.experiments.analyze import NONE, ArmResult, Paired, TaskResult, against_degree_1
from finetune.experiments.arms import as_text, described
from finetune.experiments.execute import Job
from finetune.experiments.plan import Experiment
from finetune.experiments.statistics import LEVEL
from finetune.plurals import many
from finetune.settings import recipes
from finetune.settings.groups import FILTER_RATE
from finetune.settings.variants import NO_VARIANT, owners
from hf_graphattn.diagnostics import drawing
from hf_graphattn.version import how_to_install

COMPARISON, SWEEP = "comparison", "sweep"  # names of the files
FORMATS = (*drawing.FORMATS, "svg")  # of the figures
CONFIRMING_SEEDS = 8
SIGNS = {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}  # that LaTeX writes otherwise


@dataclass(frozen=True)
class Table:
    """Rows, each with its cells by the headings of the columns."""

    rows: Sequence[Mapping[str, str]]

    def text(self) -> list[str]:
        """The lines for a terminal, columns aligned."""
        cells = [[*self.rows[0]], *([*row.values()] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        cells.insert(1, ["-" * width for width in widths])
        return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]

    def markdown(self) -> list[str]:
        """The lines of a pipe table."""
        cells = [self.rows[0], ["---"] * len(self.rows[0]), *(row.values() for row in self.rows)]
        return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells]

    def latex(self) -> str:
        """A ``tabular`` for the package booktabs."""
        text: str = pd.DataFrame(self.rows).to_latex(index=False, escape=True)
        for sign, command in SIGNS.items():
            text = text.replace(sign, command)
        return text


def write(
    experiment: Experiment,
    jobs: Sequence[Job],
    missing: Mapping[str, str],
    command: Sequence[str],
) -> str:
    """Write ``comparison.{txt,md,tex,json}``, or ``sweep``, and the figures; returns the text.

    Args:
        experiment: the comparison or sweep.
        jobs: its runs, of which those that have ended count, in complete pairs.
        missing: why a run has no results, by its name.
        command: what was called, for the record.
    """
    done = {job.name: job.results() for job in jobs if job.is_done()}
    results = analyze.gather(jobs, done, experiment.metric, missing)
    if not results:
        return "No run has ended: there is nothing to report yet.\n"
    if experiment.is_search:
        results = [analyze.ranked(task) for task in results]
    name = SWEEP if results[0].settings else COMPARISON
    mixtures = analyze.mixtures(done.values())
    numbers = {
        **analyze.as_json(results),
        "verdicts": verdicts(results),
        "method": legend(results),
        "notes": [*analyze.warnings(results, jobs), *_without(results), *mixtures],
        "command": list(command),
        **analyze.origin(jobs, done),
    }
    if name == SWEEP:
        numbers["best"] = _best(results[0], experiment)
    folder = experiment.options.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", numbers)
    text = _write_tables(results, numbers, folder / name)
    text += f"\nWritten to {folder}: {name}.txt, .md, .tex, .json"
    if importlib.util.find_spec("matplotlib") is None:
        return f"{text}; figures need matplotlib: {how_to_install('plots')}\n"
    if (figure := figures.of_report(results)) is not None:
        title = SWEEP if name == SWEEP else "differences"
        drawing.save(figure, folder / title, FORMATS)
        text += f"; {title} as {', '.join(FORMATS)}"
    return f"{text}\n"


def _without(results: Sequence[TaskResult]) -> list[str]:
    """A sentence for each arm and each reason why it lacks seeds: such pairs are not compared."""
    seeds = defaultdict(list)
    for task in results:
        for arm in task.arms:
            for seed, reason in arm.missing.items():
                seeds[f"{task.task}, {arm.name}", reason].append(str(seed))
    return [f"{arm}: without seed {', '.join(x)} ({why})." for (arm, why), x in seeds.items()]


def _best(task: TaskResult, sweep: Experiment) -> dict[str, Any] | None:
    """The best setting, what its number is worth, and the command that confirms it.

    None if no setting is complete, or several are equally good: then none is the best.
    """
    arms = analyze.best(task)
    if len(arms) != 1:
        return None
    tried = {"setting": arms[0].name, "settings_tried": len(task.settings)}
    confirm = confirmation(arms[0], sweep)
    return {**tried, "optimism": analyze.optimism(task.settings), "confirm": confirm}


def confirmation(arm: ArmResult, sweep: Experiment) -> str:
    """The command that compares a setting with plain attention, with seeds not used yet.

    It keeps every flag of the sweep's runs, in two files that are written for it.
    """
    options, folder = sweep.options, sweep.options.output_dir
    setting = {flag: value for flag, value in arm.setting.items() if value is not None}
    arms = {NO_VARIANT: {}, arm.name: {"variant": arm.flags["variant"], **setting}}
    flags = {"script": options.script, "launcher": options.launcher, "metric": options.metric}
    for title, values in (("arms", arms), ("recipe", dict(sweep.common))):
        flags[title] = folder / f"confirm-{title}.yaml"
        flags[title].write_text(yaml.safe_dump(values, sort_keys=False), "utf-8")
    flags |= {"seeds": CONFIRMING_SEEDS, "first_seed": sweep.seeds[-1] + 1}
    argv = recipes.argv({n: v for n, v in flags.items() if v} | {"output_dir": f"{folder}-confirm"})
    return shlex.join(["python", str(options.script.with_name("compare.py")), *argv])


def _write_tables(results: Sequence[TaskResult], numbers: Mapping[str, Any], path: Path) -> str:
    """Write the table and its sentences, as text, Markdown and LaTeX; returns the text."""
    rows, sentences = table(results), [*numbers["verdicts"], *numbers["notes"]]
    if numbers.get("best"):
        sentences += [f"Fresh seeds show whether it differs: {numbers['best']['confirm']}"]
    lines = [*sentences, "", *numbers["method"], ""]
    bullets = [f"- {line}" if line else "" for line in lines]
    texts = {
        ".txt": [*rows.text(), "", *lines],
        ".md": [*rows.markdown(), "", *bullets],
        ".tex": [*(f"% {line}" for line in lines), rows.latex()],
    }
    for ending, text in texts.items():
        path.with_suffix(ending).write_text("\n".join(text), "utf-8")
    return "\n".join(texts[".txt"])


def table(results: Sequence[TaskResult]) -> Table:
    """One row for each arm and task; of a sweep a column for each swept flag."""
    row = _sweep_row if results[0].settings else _arm_row
    return Table([row(task, arm) for task in results for arm in _rows_of(task)])


def _rows_of(task: TaskResult) -> list[ArmResult]:
    """Its arms; of a sweep plain attention, if it has values, and the settings."""
    plain = [] if task.plain is None else [task.plain]
    return [*plain, *task.settings] if task.settings else task.arms


def _arm_row(task: TaskResult, arm: ArmResult) -> dict[str, str]:
    places, paired = decimals(task), arm.paired
    scalars, seconds, memory = (arm.typical.get(name) for name in analyze.COSTS)
    return {
        **{"task": task.task, "arm": arm.name, "seeds": str(len(arm.values))},
        **{"metric": f"{task.title} {task.arrow}", "mean ± sd": arm.as_text(places)},
        **dict(zip(("difference", "95 % interval"), difference(paired, places), strict=True)),
        "p": _number(paired.p if paired else None, ".3g"),
        "p, Holm": _number(paired.corrected_p if paired else None, ".3g"),
        "scalars": _number(scalars, ".0f"),
        "s/step": _number(seconds, ".3g"),
        "peak memory": NONE if memory is None else f"{memory / 2**20:.0f} MiB",
    }


def _sweep_row(task: TaskResult, arm: ArmResult) -> dict[str, str]:
    places, values, plain = decimals(task), arm.values.values(), task.plain
    first = {task.swept[0]: arm.name}  # plain attention has no setting
    row = {
        f: as_text(arm.setting.get(f)) if arm.setting else first.get(f, NONE) for f in task.swept
    }
    row["seeds"] = str(len(values))
    made = (arm.mean, arm.deviation, min(values), max(values)) if values else (None,) * 4
    for name, value in zip(("mean", "sd", "min", "max"), made, strict=True):
        row[name] = _number(value, f".{places}f")
    # Records of earlier versions do not have it.
    if any(each.typical.get(analyze.MOVED) is not None for each in task.arms):
        row["moved"] = _number(arm.typical.get(analyze.MOVED), ".2g")
    if plain is not None:
        texts = difference(arm.paired, places)
        row[f"difference to {plain.name}"], row["95 % interval"] = texts
    return row


def legend(results: Sequence[TaskResult]) -> list[str]:
    """What the columns of the table are, in sentences, and each arm's own flags."""
    if results[0].settings:
        return _sweep_legend(results[0])
    pairs = max((len(a.paired.differences) for t in results for a in t.arms if a.paired), default=0)
    exact = "exact, all sign flips" if pairs <= statistics.EXACT_UP_TO else "drawn sign flips"
    count = comparisons(results)
    corrected = f"Holm's correction over all {count} comparisons, tasks and arms together"
    held = dict.fromkeys(arm.name for task in against_degree_1(results) for arm in task.arms[1:])
    control = f"{', '.join(held)}: of several passes, so held against degree 1, of one, as well."
    return [
        "Mean and standard deviation over the seeds; ↑ greater is better, ↓ less is.",
        f"Difference: to {results[0].arms[0].name}, paired by seed; its 95 % interval by Student's "
        "t, too narrow where differences are not normally distributed.",
        f"p: two-sided paired permutation test ({exact}); {corrected if count > 1 else 'alone'}.",
        *([control] if held else []),
        "Seconds a step and peak memory are medians over the runs.",
        arms_as_text(results[0].arms),
    ]


def _sweep_legend(task: TaskResult) -> list[str]:
    variant = task.settings[0].flags.get("variant", NO_VARIANT)
    lines = [
        f"{task.task}, {variant}: {task.title} on the validation rows, {task.direction}; over the "
        "seeds. default: flag not given. moved: how far the scalar that moved most ended from its "
        "start, the median over the runs."
    ]
    if task.plain is None:
        return lines
    general = [flag for flag in task.swept if not owners(flag) and flag != FILTER_RATE]
    favoured = (
        f"{', '.join(general)}: plain attention has it too and ran with one value of it "
        f"alone, which favours the settings. Sweep it with --variant {NO_VARIANT} as well."
    )
    return [
        *lines,
        f"Difference to plain attention ({task.plain.name}), paired by seed; its 95 % interval by "
        "Student's t, not corrected for the number of settings.",
        *([favoured] if general else []),
    ]


def arms_as_text(arms: Sequence[ArmResult]) -> str:
    """Each arm's own flags, as on the command line."""
    pairs = zip(arms, differing_flags(arms), strict=True)
    texts = [f"{arm.name}: {' '.join(recipes.argv(flags))}" for arm, flags in pairs]
    return f"Arms: {'; '.join(texts)}."


def differing_flags(arms: Sequence[ArmResult]) -> list[dict[str, Any]]:
    """For each arm the flags that not all arms have with the same value, its variant first."""
    common = [n for n, v in arms[0].flags.items() if all(a.flags.get(n) == v for a in arms)]
    return [
        {n: arm.flags[n] for n in sorted(arm.flags, key="variant".__ne__) if n not in common}
        for arm in arms
    ]


def difference(paired: Paired | None, places: int) -> list[str]:
    """The mean difference and its interval, as texts."""
    if paired is None:
        return [NONE, NONE]
    interval = paired.interval
    return [f"{paired.mean:+.{places}f}", interval.as_text(places) if interval else NONE]


def decimals(task: TaskResult) -> int:
    """Digits after the point, so that two digits of the smallest spread of the task are printed."""
    spreads = [arm.deviation for arm in task.arms if arm.values]
    spreads += [a.paired.interval.half_width for a in task.arms if a.paired and a.paired.interval]
    least = min(filter(None, spreads), default=None)
    return max(2, next((n for n in range(6) if least * 10**n >= 10), 6)) if least else 4


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else f"{value:{form}}"


def verdicts(results: Sequence[TaskResult]) -> list[str]:
    """A sentence for each arm but the baselines; of a sweep, what its best setting is worth.

    An arm of several passes has a second one where there is an arm of degree 1, of one pass.
    """
    if results[0].settings:
        return _sweep_verdicts(results[0])
    several = len({task.task for task in results}) > 1
    return [
        (f"{task.task}, " if several else "") + verdict(task, arm, comparisons(compared))
        for compared in (results, against_degree_1(results))
        for task in compared
        for arm in task.arms[1:]
    ]


def _sweep_verdicts(task: TaskResult) -> list[str]:
    """The best setting, and why its number is too good."""
    first, count, places = analyze.best(task), len(task.settings), decimals(task)
    if not first:
        return ["No setting has a value of every seed yet: none is best."]
    arm, settings = first[0], "; ".join(described(each.setting) for each in first)
    value = f"{task.title} {arm.mean:.{places}f}"
    if len(first) > 1:
        return [
            f"None of {count} is best: {len(first)} tie, {value} in the mean over the seeds; "
            f"{settings}."
        ]
    gain = f", {arm.paired.mean:+.{places}f} to {task.arms[0].name}" if arm.paired else ""
    seeds = many(len(arm.values), "seed")
    sentences = [f"Best of {count}: {settings}; {value}{gain} (mean over {seeds})."]
    if count > 1:
        chance, luck = "", analyze.optimism(task.settings)
        if luck is not None:
            chance = ": were all equally good, the best would be expected "
            chance += f"{luck:.{places}f} better than their average, by chance"
        sentences.append(
            f"It was chosen among {count} by these rows and seeds, so its number is "
            f"optimistic{chance}."
        )
    return sentences


def comparisons(results: Sequence[TaskResult]) -> int:
    """How many comparisons the p-values are corrected for."""
    return sum(arm.paired is not None for task in results for arm in task.arms)


def verdict(task: TaskResult, arm: ArmResult, count: int) -> str:
    """What the paired differences of one arm show, and what they cannot."""
    name, baseline, paired = arm.name, task.arms[0].name, arm.paired
    if paired is None:
        return f"{name}: no verdict, no seed ended both with it and with {baseline}."
    pairs, facts = len(paired.differences), _facts(task, arm, paired)
    direction = task.direction_of(paired)
    needed = statistics.pairs_needed(count)
    short = f" ({needed} seeds are needed to show one among {count})" if pairs < needed else ""
    corrected = f", {paired.corrected_p:.2g} corrected for {count} comparisons" if count > 1 else ""
    if pairs == 1:
        return f"{name}: no verdict, one seed has no spread to judge by: {facts}."
    if statistics.smallest_p(pairs) > LEVEL:
        cannot = f"{pairs} seeds cannot show a difference from {baseline}"
        least = statistics.pairs_needed(1)
        return f"{name}: no verdict, {cannot} (an exact paired test needs {least}): {facts}."
    if paired.corrected_p <= LEVEL:
        return f"{name} is {direction} than {baseline}: {facts}{corrected}."
    if paired.p <= LEVEL:
        alone = f"{direction} than {baseline} taken alone, but not among {count} comparisons"
        return f"{name}: {alone}, so not shown: {facts}{corrected}{short}."
    least_shown = statistics.least_shown(list(paired.differences.values()), LEVEL / count)
    if least_shown is not None:
        short = (
            f"; with their spread a mean difference below about {least_shown:.{decimals(task)}f}"
        )
        short += f" does not reach p = {LEVEL}"
        short += f" among {count} comparisons" if count > 1 else ""
    nothing = f"no difference from {baseline} that {pairs} seeds can show"
    return f"{name}: {nothing}: {facts}{short}."


def in_per_cent(change: float, before: float) -> str:
    """A change in per cent of the size of what was before, with the change's own sign."""
    return f"{100 * change / abs(before):+.2f} %" if before else NONE


def _facts(task: TaskResult, arm: ArmResult, paired: Paired) -> str:
    places, interval = decimals(task), paired.interval
    text = f" (95 % interval {interval.as_text(places)})" if interval else ""
    plain = task.baseline_mean(paired)
    share = f", {in_per_cent(paired.mean, plain)} of {plain:.{places}f}" if plain else ""
    # Runs that diverged are not missing by chance.
    lost = len({*arm.values, *arm.missing} - {*paired.differences})
    without = f"; {lost} more seeds gave no pair" if lost else ""
    return (
        f"{task.title} {paired.mean:+.{places}f}{text}{share}, better in {paired.better} of "
        f"{len(paired.differences)} seeds, p = {paired.p:.2g}{without}"
    )
