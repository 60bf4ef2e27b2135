"""Which runs a sweep makes: each setting is an arm, with every seed, beside plain attention."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.errors import refusal
from finetune.experiments import grid, measure, space
from finetune.experiments.arms import Arm
from finetune.experiments.grid import Cell
from finetune.experiments.measure import Measure
from finetune.experiments.scripts import Script
from finetune.experiments.space import Space
from finetune.experiments.statistics import LEAST_RESAMPLED
from finetune.experiments.sweep_flags import OPTUNA
from finetune.settings import recipes
from finetune.settings.flags import at_least
from finetune.settings.variants import NO_VARIANT, checked_variant

PLAIN = Arm(NO_VARIANT, {"variant": NO_VARIANT})


@dataclass(frozen=True)
class Sweep:
    """What all runs of a sweep have in common.

    Attributes:
        script: what is run.
        space: the settings.
        seeds: one run of each setting a seed.
        common: flags of all runs, by name.
        folder: theirs are ``<task>/<setting>/seed-<n>`` in it.
        baseline: whether plain attention runs beside them.
        measure: the metric that settings are chosen by.
        words: the common flags as they were written; the search by Optuna is known by them.
    """

    script: Script
    space: Space
    seeds: Sequence[int]
    common: Mapping[str, Any]
    folder: Path
    baseline: bool
    measure: Measure = field(default_factory=Measure)
    words: Sequence[str] = ()

    def cells(self, settings: Sequence[Arm]) -> list[Cell]:
        """The runs of settings.

        Raises ``ValueError`` for settings that the script would refuse.
        """
        flags = {**self.common, **self.measure.flags}
        return grid.plan(self.script, settings, self.seeds, [], flags, self.folder)

    def all_cells(self, settings: Sequence[Arm]) -> list[Cell]:
        """The same, after the runs of plain attention where these are wanted."""
        return self.cells([PLAIN, *settings] if self.baseline else settings)

    def announce(self, cells: Sequence[Cell], trials: int | None) -> None:
        """Say what will be run, and what it will not be able to show.

        ``trials`` is how many settings a search tries; None is the grid of these cells.
        """
        seeds, what = len(self.seeds), self.space.variant
        what += f" and {NO_VARIANT}" if self.baseline else ""
        if trials is not None:
            print(f"{trials} trials of {what}, {seeds} runs each")
        else:
            count = len({cell.arm.name for cell in cells if cell.arm.setting})
            print(f"{len(cells)} runs: {count} settings of {what}, seeds: {seeds}")
        if seeds < LEAST_RESAMPLED and self.baseline:
            print(f"Before you wait: differences have intervals from {LEAST_RESAMPLED} seeds on.")


def planned(given: argparse.Namespace, words: Sequence[str]) -> Sweep:
    """What the flags ask for; ``words`` are those that belong to the script.

    Raises ``ValueError`` for flags that are missing or do not fit together, an unknown variant, and
    flags that are both common and swept.
    """
    at_least(given, 1, "seeds", "processes", "threads", "trials")
    for name in ("script", "output_dir", "space"):
        if getattr(given, name) is None:
            raise refusal(name, None, "a value", f"Give --{name}; see --help.")
    if (given.trials is None) == (given.method == OPTUNA):
        allowed = "a number with method optuna, None with grid"
        remedy = f"The method is {given.method}: give the one or drop the other."
        raise refusal("trials", given.trials, allowed, remedy)
    script = Script(given.script)
    swept = space.read(given.space, script, checked_variant(given.variant))
    for name in swept.flags:
        if recipes.value_of(words, name) is not None:
            remedy = "Drop the flag, or leave it out of the space."
            raise refusal(f"--{name}", "given, and swept", "one of the two", remedy)
    common, folder, look_only = (
        grid.common_flags(script, words),
        given.output_dir,
        given.report_only,
    )
    return Sweep(
        script,
        swept,
        range(given.first_seed, given.first_seed + given.seeds),
        common,
        folder,
        baseline=not given.no_baseline and swept.variant != NO_VARIANT,
        measure=measure.of(given.metric, script, [], common, folder, report_only=look_only),
        words=words,
    )


def refuse_twins(cells: Sequence[Cell]) -> None:
    """Raise ``ValueError`` if two settings are the same run."""
    names: dict[str, str] = {}
    for cell in cells:
        if not cell.arm.setting or cell.seed != cells[0].seed:
            continue
        settings = json.dumps(cell.run.settings, sort_keys=True)
        if settings in names:
            raise refusal(
                "space",
                f"{names[settings]} and {cell.arm.name}",
                "settings that differ",
                "These are the same run: drop one of them.",
            )
        names[settings] = cell.arm.name
