"""Every arm with every seed on every task, as runs; seed by seed, so that pairs are complete."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import Refused, refusal
from finetune.experiments.arms import Arm, flags_for
from finetune.experiments.runs import Run
from finetune.experiments.scripts import Script
from finetune.settings import recipes

OWN_DATA = "run"  # the folder where a task's would be, of one's own files
PER_RUN = ("variant", "seed", "output_dir")  # each run has its own
# What is said per run, and what would make runs that cannot be compared.
NOT_COMMON = (
    *(*PER_RUN, "resume_from_checkpoint", "overwrite_output_dir", "do_eval_only"),
    *("push_to_hub", "hub_model_id", "hub_private_repo", "hub_example"),
)


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    ``task`` is the name of its task, or with ``is_own`` that of someone's own file or folder.
    """

    task: str
    arm: Arm
    seed: int
    run: Run
    is_own: bool = False


def common_flags(
    script: Script, words: Sequence[str], besides: Iterable[str] = ()
) -> dict[str, Any]:
    """The flags of all runs, from words of a command line and the recipe that they name.

    The variant and the seed of a recipe give way to those of each run. ``besides`` are flags of
    the comparison itself.

    Raises ``ValueError`` for flags that are unknown, or cannot be common to runs.
    """
    flags = script.schema.given(words, besides)
    for name in [name for name in NOT_COMMON if name in flags]:
        if name not in PER_RUN or recipes.value_of(words, name) is not None:
            remedy = "Drop it; --help lists the flags that set what differs between runs."
            raise refusal(f"--{name}", "given", "flags that all runs can have", remedy)
    return {name: value for name, value in flags.items() if name not in PER_RUN}


def plan(
    script: Script,
    arms: Sequence[Arm],
    seeds: Sequence[int],
    task_names: Sequence[str],
    common: Mapping[str, Any],
    folder: Path,
) -> list[Cell]:
    """The runs, in the order they are to be done: all arms of a seed, then the next seed.

    The runs of a seed differ in their arm's flags alone: they have the same order of rows and
    begin with the same weights.

    Args:
        script: what is run.
        arms: what is compared, the baseline first.
        seeds: one run of each arm a seed.
        task_names: none is the task that the common flags name.
        common: flags of all runs, by name.
        folder: theirs are ``<task>/<arm>/seed-<n>`` in it.

    Raises ``ValueError`` for flags that the script would refuse.
    """
    asked = []
    for chosen in [{"task_name": name} for name in task_names] or [{}]:
        for arm in arms:
            try:
                flags = flags_for(arm, {**common, **chosen}, script)
                settings = script.settings(flags)
            except ValueError as error:
                raise Refused(f"Arm {arm.name}: {error}") from error
            asked.append((arm, flags, settings))
    cells = []
    for seed, (arm, flags, settings) in itertools.product(seeds, asked):
        task = settings.data.task_name
        name = f"{task or OWN_DATA}/{arm.name}/seed-{seed}"
        deciding = json.loads(json.dumps(settings.deciding()))  # as a run's results have them
        own = {"seed": seed}
        run = Run(name, script.path, folder / name, {**flags, **own}, deciding | own)
        shown = task or settings.data.own_name or OWN_DATA
        cells.append(Cell(shown, arm, seed, run, is_own=task is None))
    return cells
