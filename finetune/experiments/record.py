"""The numbers of a report as JSON, and read back: its table can be written again from these."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from finetune.experiments.gather import TYPICAL, ArmResult, Paired, TaskResult
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import Results
from finetune.experiments.runs import CLOSED
from finetune.experiments.statistics import Interval

Record = dict[str, Any]
ORIGIN = ("versions", "git", "machine")


def as_json(found: Sequence[TaskResult]) -> Record:
    """Every number of a comparison by task, or of a sweep by setting."""
    task = found[0]
    seeds = sorted({seed for arm in task.arms for seed in (*arm.values, *arm.missing)})
    if not task.settings:
        return {"tasks": [_task_json(task) for task in found], "seeds": seeds}
    return {
        "task": task.task,
        "variant": task.settings[0].flags.get("variant"),
        "metric": task.metric,
        "greater_is_better": task.greater_is_better,
        "seeds": seeds,
        "plain": None if task.plain is None else _setting_json(task.plain),
        "settings": [_setting_json(arm) for arm in task.settings],
    }


def results_of(record: Mapping[str, Any]) -> list[TaskResult]:
    """The results that `as_json` made a record of."""
    if "tasks" in record:
        return [
            _task(task, [_arm(arm, arm["flags"]) for arm in task["arms"]])
            for task in record["tasks"]
        ]
    plain = [] if record["plain"] is None else [_arm(record["plain"], {})]
    variant = {"variant": record["variant"]}
    return [_task(record, [*plain, *(_arm(x, variant, x["flags"]) for x in record["settings"])])]


def origin(cells: Sequence[Cell], done: Mapping[str, Results]) -> Record:
    """How many runs there are, their hours, and the versions, commit and machine of the first."""
    ended = [cell.run for cell in cells if cell.run.name in done]
    seconds = [(run.record() or {}).get(CLOSED) or 0.0 for run in ended]
    first = done[ended[0].name]
    return {
        "runs": len(ended),
        "hours": sum(seconds) / 3600,
        **{name: first.get(name) for name in ORIGIN},
    }


def mixtures(runs: Collection[Results]) -> list[str]:
    """What differs between the runs and should not, in words: versions, commit, machine."""
    notes = []
    for name, title in zip(ORIGIN, ("versions", "commit", "machine"), strict=True):
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


def _task_json(task: TaskResult) -> Record:
    return {
        "task": task.task,
        "metric": task.metric,
        "greater_is_better": task.greater_is_better,
        "baseline": task.arms[0].name,
        "arms": [_arm_json(arm) for arm in task.arms],
    }


def _setting_json(arm: ArmResult) -> Record:
    """Of a sweep: ``flags`` are the swept ones."""
    return {"setting": arm.name, **_arm_json(arm), "flags": dict(arm.setting)}


def _arm_json(arm: ArmResult) -> Record:
    values = list(arm.values.values())
    return {
        "arm": arm.name,
        "flags": dict(arm.flags),
        "values": arm.values,
        "mean": arm.mean if values else None,
        "standard_deviation": arm.deviation if values else None,
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
    return ArmResult(
        found["arm"],
        _by_seed(found["values"]),
        flags,
        setting or {},
        _by_seed(found["missing"]),
        {name: found[name] for name in TYPICAL},
        None if found["paired"] is None else _paired(found["paired"]),
    )


def _paired(found: Mapping[str, Any]) -> Paired:
    interval = None if found["interval"] is None else Interval(**found["interval"])
    p = {name: found[name] for name in ("p", "corrected_p", "better")}
    return Paired(_by_seed(found["differences"]), interval, **p)


def _by_seed(found: Mapping[str, Any]) -> dict[int, Any]:
    """JSON has texts for keys."""
    return {int(seed): value for seed, value in found.items()}
