"""The numbers of a report as JSON, and read back: its table can be written again from these."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from finetune.experiments.gather import TYPICAL, ArmResult, TaskResult, against_baseline
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import Results
from finetune.experiments.runs import CLOSED

Record = dict[str, Any]
ORIGIN = {"versions": "versions", "git": "commit", "machine": "machine"}  # keys, and their names


def as_json(found: Sequence[TaskResult]) -> Record:
    """Every number of a comparison by task, or of a sweep by setting."""
    task = found[0]
    seeds = sorted({seed for arm in task.arms for seed in (*arm.values, *arm.missing)})
    if not task.settings:
        return {"tasks": [_task_json(task) for task in found], "seeds": seeds}
    plain, *settings = [
        arm and {"setting": arm.name, **_arm_json(arm, arm.setting)}
        for arm in (task.plain, *task.settings)
    ]
    variant = task.settings[0].flags.get("variant")
    swept = {"variant": variant, "seeds": seeds, "plain": plain, "settings": settings}
    return {**_head(task), **swept}


def results_of(record: Mapping[str, Any]) -> list[TaskResult]:
    """The results that `as_json` made a record of.

    What is paired is computed from the values: the intervals of earlier records are BCa's.
    """
    if "tasks" in record:
        tasks = [_task(x, [_arm(arm, arm["flags"]) for arm in x["arms"]]) for x in record["tasks"]]
        return against_baseline(tasks)
    arms = [_arm(x, {"variant": record["variant"]}, x["flags"]) for x in record["settings"]]
    if record["plain"] is None:
        return [_task(record, arms)]
    return against_baseline([_task(record, [_arm(record["plain"], {}), *arms])])


def origin(cells: Sequence[Cell], done: Mapping[str, Results]) -> Record:
    """How many runs there are, their hours, and the versions, commit and machine of the first."""
    ended = [cell.run for cell in cells if cell.run.name in done]
    seconds = sum((run.record() or {}).get(CLOSED) or 0.0 for run in ended)
    first = {name: done[ended[0].name].get(name) for name in ORIGIN}
    return {"runs": len(ended), "hours": seconds / 3600, **first}


def mixtures(runs: Collection[Results]) -> list[str]:
    """What differs between the runs and should not, in words: versions, commit, machine."""
    notes = []
    for name, title in ORIGIN.items():
        kinds = {json.dumps(run.get(name), sort_keys=True): run.get(name) for run in runs}
        if len(kinds) > 1:
            said = "; ".join(origin_in_words(name, kinds[key]) for key in sorted(kinds))
            notes.append(f"The runs differ in {title}: {said}.")
    return notes


def origin_in_words(name: str, value: Any) -> str:
    """One of `ORIGIN` as a run wrote it down."""
    if not isinstance(value, Mapping):
        return "unknown"
    if name == "git":
        return f"{str(value['commit'])[:9]}{' with changes' if value['dirty'] else ''}"
    return ", ".join(f"{key} {item}" for key, item in value.items() if item is not None)


def _head(task: TaskResult) -> Record:
    names = ("task", "metric", "greater_is_better")
    return {name: getattr(task, name) for name in names}


def _task_json(task: TaskResult) -> Record:
    arms = [_arm_json(arm, arm.flags) for arm in task.arms]
    return {**_head(task), "baseline": task.arms[0].name, "arms": arms}


def _arm_json(arm: ArmResult, flags: Mapping[str, Any]) -> Record:
    values = list(arm.values.values())
    return {
        "arm": arm.name,
        "flags": dict(flags),
        "values": arm.values,
        "mean": arm.mean if values else None,
        "standard_deviation": arm.deviation,
        "least": min(values, default=None),
        "greatest": max(values, default=None),
        "missing": arm.missing,
        "paired": None if arm.paired is None else asdict(arm.paired) | {"mean": arm.paired.mean},
        **{name: arm.typical.get(name) for name in TYPICAL},
    }


def _task(found: Mapping[str, Any], arms: list[ArmResult]) -> TaskResult:
    return TaskResult(found["task"], found["metric"], found["greater_is_better"], arms)


def _arm(
    found: Mapping[str, Any], flags: Mapping[str, Any], setting: Mapping[str, Any] | None = None
) -> ArmResult:
    values, missing = _by_seed(found["values"]), _by_seed(found["missing"])
    typical = {name: found.get(name) for name in TYPICAL}  # earlier records have fewer
    return ArmResult(found["arm"], values, flags, setting or {}, missing, typical)


def _by_seed(found: Mapping[str, Any]) -> dict[int, Any]:
    """JSON has texts for keys."""
    return {int(seed): value for seed, value in found.items()}
