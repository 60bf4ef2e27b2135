"""What a comparison or a sweep asks for, read from its command line.

A sweep is a comparison whose arms are the settings of a space, beside plain attention.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import refusal
from finetune.experiments import executors, grid, metrics, space
from finetune.experiments.arms import Arm
from finetune.experiments.command_line import OPTUNA
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import Measure
from finetune.experiments.scripts import Script
from finetune.experiments.space import Space
from finetune.settings.flags import at_least
from finetune.settings.variants import NO_VARIANT, checked_variant

PLAIN = Arm(NO_VARIANT, {"variant": NO_VARIANT})


@dataclass(frozen=True)
class Experiment:
    """What all runs of a comparison or of a sweep have in common.

    Attributes:
        given: what the command line says of it.
        words: the script's flags as they were written; a search is known by them.
        script: what is run.
        arms: what is compared, the baseline first; of a sweep plain attention, or nothing.
        space: a sweep's settings.
        common: flags of all runs, by name.
        measure: the metric compared.
    """

    given: argparse.Namespace
    words: Sequence[str]
    script: Script
    arms: Sequence[Arm]
    space: Space | None
    common: Mapping[str, Any]
    measure: Measure

    @property
    def seeds(self) -> range:
        """One run of each arm a seed."""
        return range(self.given.first_seed, self.given.first_seed + self.given.seeds)

    @property
    def folder(self) -> Path:
        """The runs are in ``<task>/<arm>/seed-<n>`` in it."""
        return self.given.output_dir

    def grid(self) -> list[Arm]:
        """All settings of a sweep; none of a comparison."""
        return self.space.grid() if self.space else []

    def cells(self, settings: Sequence[Arm] = ()) -> list[Cell]:
        """The runs of the arms and of these settings.

        Raises ``ValueError`` for flags that the script would refuse.
        """
        return self.cells_of([*self.arms, *settings])

    def cells_of(self, arms: Sequence[Arm]) -> list[Cell]:
        """The runs of these arms alone."""
        flags = {**self.common, **self.measure.flags}
        tasks = self.given.task_names
        return grid.plan(self.script, arms, self.seeds, tasks, flags, self.folder)


def script_of(given: argparse.Namespace, *needed: str) -> Script:
    """The script named; raises ``ValueError`` for flags that are missing or too small."""
    at_least(given, 1, "seeds", "processes", "threads")
    for name in ("script", "output_dir", *needed):
        if getattr(given, name) is None:
            raise refusal(name, None, "a value", f"Give --{name}; see --help.")
    executors.check(given)
    return Script(given.script)


def planned(
    given: argparse.Namespace,
    words: Sequence[str],
    script: Script,
    arms: Sequence[Arm],
    space: Space | None = None,
) -> Experiment:
    """The experiment; raises ``ValueError`` for flags that cannot be common, or no such metric."""
    common = grid.common_flags(script, words, vars(given))
    tasks, folder = given.task_names, given.output_dir
    look_only = given.report_only
    measure = metrics.measure(given.metric, script, tasks, common, folder, report_only=look_only)
    return Experiment(given, words, script, arms, space, common, measure)


def sweep(given: argparse.Namespace, words: Sequence[str]) -> Experiment:
    """What the flags of sweep.py ask for; ``words`` are those that belong to the script.

    Raises ``ValueError`` for flags that are missing or do not fit together, an unknown variant, and
    flags that are both common and swept.
    """
    script = script_of(given, "space")
    at_least(given, 1, "trials")
    if (given.trials is None) == (given.method == OPTUNA):
        allowed = "a number with method optuna, None with grid"
        remedy = f"The method is {given.method}: give the one or drop the other."
        raise refusal("trials", given.trials, allowed, remedy)
    swept = space.read(given.space, script, checked_variant(given.variant))
    said = script.schema.parser().given(words, vars(given))
    for name in swept.flags:
        if name in said:
            remedy = "Drop the flag, or leave it out of the space."
            raise refusal(f"--{name}", "given, and swept", "one of the two", remedy)
    has_baseline = not given.no_baseline and swept.variant != NO_VARIANT
    return planned(given, words, script, [PLAIN] if has_baseline else [], swept)
