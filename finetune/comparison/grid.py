"""Every arm with every seed on every task, as runs; seed by seed, so that pairs are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finetune.arguments import Settings
from finetune.comparison.arms import Arm, flags_for, grouped, name_of
from finetune.comparison.runs import Run
from finetune.comparison.scripts import Script, deciding
from finetune.flags import refusal

OWN_DATA = "run"  # where a task's name would be, of one's own files
# What is said per run here, and what would make runs that cannot be compared.
NOT_COMMON = (
    *("variant", "seed", "output_dir", "resume_from_checkpoint", "do_eval_only"),
    *("push_to_hub", "hub_model_id", "hub_private_repo"),
)


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    task: str
    arm: str
    seed: int
    run: Run


def plan(
    script: Script,
    arms: Sequence[Arm],
    seeds: Sequence[int],
    task_names: Sequence[str],
    common: Sequence[str],
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
        common: flags of all runs.
        folder: theirs are ``<task>/<arm>/seed-<n>`` in it.

    Raises ``ValueError`` for flags that the script would refuse, or that cannot be common.
    """
    for name in map(name_of, grouped(common)):
        if name in NOT_COMMON:
            raise refusal(
                f"--{name}", "given", "flags that all runs can have", "Drop it; see --help."
            )
    flags, settings = {}, {}
    for task in task_names or [None]:
        chosen = [] if task is None else ["--task_name", task]
        for arm in arms:
            try:
                words = flags_for(arm, [*common, *chosen], script)
                flags[arm, task] = words
                settings[arm, task] = script.settings([*words, "--seed", str(seeds[0])])
            except ValueError as error:
                raise ValueError(f"Arm {arm.name}: {error}") from error
    return [
        _cell(script, key[0], seed, words, settings[key], folder)
        for seed in seeds
        for key, words in flags.items()
    ]


def _cell(
    script: Script, arm: Arm, seed: int, flags: Sequence[str], settings: Settings, folder: Path
) -> Cell:
    task = settings.data.task_name or OWN_DATA
    name = f"{task}/{arm.name}/seed-{seed}"
    words = (*flags, "--seed", str(seed))
    run = Run(name, script.path, folder / name, words, deciding(settings) | {"seed": seed})
    return Cell(task, arm.name, seed, run)
