"""Which runs a sweep makes of settings: each with every seed, beside plain attention's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hf_graphattn as ga
from finetune.arguments import NO_VARIANT
from finetune.comparison import grid
from finetune.comparison.arms import Arm, grouped, name_of
from finetune.comparison.grid import Cell
from finetune.comparison.scripts import Script
from finetune.flags import refusal
from finetune.sweeping.space import Setting, Space

PLAIN = Arm(NO_VARIANT, ("--variant", NO_VARIANT))


@dataclass(frozen=True)
class Sweep:
    """What all runs of a sweep have in common.

    Attributes:
        script: what is run.
        variant: whose settings are swept.
        space: the settings.
        seeds: one run of each setting a seed.
        common: flags of all runs.
        folder: theirs are ``<task>/<setting>/seed-<n>`` in it.
        baseline: whether plain attention runs beside them.

    Raises ``ValueError`` for an unknown variant, and flags that are both common and swept.
    """

    script: Script
    variant: str
    space: Space
    seeds: Sequence[int]
    common: Sequence[str]
    folder: Path
    baseline: bool

    def __post_init__(self) -> None:
        both = [n for n in map(name_of, grouped(self.common)) if n in self.space.flags]
        if both:
            raise refusal(
                f"--{both[0]}", "given, and swept", "one of the two", "Drop it, or from the space."
            )

    def cells(self, settings: Sequence[Setting], *, plain: bool) -> list[Cell]:
        """Their runs, those of plain attention before them if wanted.

        Raises ``ValueError`` for settings that the script would refuse.
        """
        arms = [setting.arm(self.variant) for setting in settings]
        wanted = [PLAIN, *arms] if plain else arms
        return grid.plan(self.script, wanted, self.seeds, [], self.common, self.folder)


def checked_variant(name: str | None) -> str:
    """The name, if a variant has it."""
    allowed = [*ga.variant_configs(), NO_VARIANT]
    if name not in allowed:
        raise refusal("variant", name, ", ".join(allowed), "Give --variant; see --help.")
    return name


def refuse_twins(cells: Sequence[Cell]) -> None:
    """Raise ``ValueError`` if two settings are the same run."""
    names: dict[str, str] = {}
    for cell in cells:
        if cell.arm == PLAIN.name or cell.seed != cells[0].seed:
            continue
        settings = json.dumps(cell.run.settings, sort_keys=True)
        if settings in names:
            raise refusal(
                "space",
                f"{names[settings]} and {cell.arm}",
                "settings that differ",
                "These are the same run: drop one of them.",
            )
        names[settings] = cell.arm
