"""A sweep's results: plain attention, and each setting's values over the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import hf_graphattn as ga
from finetune.comparison.arms import FILTER_RATE
from finetune.comparison.results import ArmResult, TaskResult
from finetune.sweeping import selection
from finetune.sweeping.plan import Sweep
from finetune.sweeping.space import Setting


@dataclass(frozen=True)
class Found:
    """A sweep's results.

    Attributes:
        task: its arms are plain attention, where it was run, and the settings.
        settings: by their arms' names.
        launcher: words before the script, for the command that confirms the best.
        ranked: the best first, else in the order of ``settings``.
    """

    sweep: Sweep
    task: TaskResult
    settings: Mapping[str, Setting]
    launcher: str = ""
    ranked: bool = False

    @property
    def rows(self) -> list[ArmResult]:
        """The settings' results."""
        arms = [arm for arm in self.task.arms if arm.name in self.settings]
        if not self.ranked:
            return arms
        sign = -1 if self.task.greater_is_better else 1
        ended = [arm for arm in arms if arm.values]
        return [
            *sorted(ended, key=lambda arm: sign * arm.mean),
            *(arm for arm in arms if not arm.values),
        ]

    @property
    def plain(self) -> ArmResult | None:
        """Plain attention's, if it was run."""
        return next((a for a in self.task.arms if a.name not in self.settings and a.values), None)

    @property
    def general(self) -> list[str]:
        """The swept flags that plain attention has too."""
        own = {field.name for config in ga.variant_configs().values() for field in fields(config)}
        return [flag for flag in self.sweep.space.flags if flag not in {*own, FILTER_RATE}]


def as_json(found: Found) -> dict[str, Any]:
    """Every number: each setting's flags, values by seed, and differences."""
    top = selection.best(found.task, found.rows)
    best = None
    if top is not None:
        setting = found.settings[top.name]
        best = {
            "setting": top.name,
            "settings_tried": len(found.rows),
            "optimism": selection.optimism(found.rows),
            "confirm": selection.confirmation(found.sweep, setting, found.launcher),
        }
    return {
        "task": found.task.task,
        "variant": found.sweep.variant,
        "metric": found.task.metric,
        "greater_is_better": found.task.greater_is_better,
        "seeds": list(found.sweep.seeds),
        "plain": None if found.plain is None else _arm_json(found.plain),
        "settings": [
            _arm_json(arm) | {"flags": dict(found.settings[arm.name].values)} for arm in found.rows
        ],
        "best": best,
    }


def _arm_json(arm: ArmResult) -> dict[str, Any]:
    values = list(arm.values.values())
    paired = None
    if arm.paired is not None:
        interval = None if arm.paired.interval is None else asdict(arm.paired.interval)
        paired = {"mean": arm.paired.mean, "interval": interval}
        paired["differences"] = arm.paired.differences
    return {
        "setting": arm.name,
        "values": arm.values,
        "mean": arm.mean if values else None,
        "standard_deviation": arm.deviation if values else None,
        "least": min(values, default=None),
        "greatest": max(values, default=None),
        "paired": paired,
        "missing": arm.missing,
        "seconds_per_step": arm.typical("seconds_per_step"),
        "peak_memory_bytes": arm.typical("peak_memory_bytes"),
    }
