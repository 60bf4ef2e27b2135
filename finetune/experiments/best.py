"""The best of many settings, and how good it would look if all of them were equally good."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from finetune.experiments.gather import ArmResult, TaskResult
from finetune.experiments.grid import Cell
from finetune.settings import recipes
from finetune.settings.variants import NO_VARIANT

CONFIRMING_SEEDS = 8
METRIC = "metric"  # the flag by which runs are told to measure more


def best(task: TaskResult) -> ArmResult | None:
    """The arm with the best mean among complete settings; the first of equal ones."""
    sign = 1 if task.greater_is_better else -1
    return max(_complete(task.settings), key=lambda arm: sign * arm.mean, default=None)


def ranked(task: TaskResult) -> TaskResult:
    """The task with its best setting first, and settings without values last."""
    sign = -1 if task.greater_is_better else 1
    settings = sorted(
        task.settings, key=lambda arm: (not arm.values, sign * arm.mean if arm.values else 0)
    )
    return replace(task, arms=[*(arm for arm in task.arms if not arm.setting), *settings])


def expected_maximum(count: int) -> float:
    """The expected greatest of so many independent standard normal values."""
    x = np.linspace(-12, 12, 24_001)
    return float(np.trapezoid(x * count * stats.norm.pdf(x) * stats.norm.cdf(x) ** (count - 1), x))


def optimism(settings: Sequence[ArmResult]) -> float | None:
    """How far the best mean is expected above the average of all, if all settings are equal.

    The spread of a setting's mean is what setting and seed leave over, ``x_ij - x_i. - x_.j +
    x_..``, since a seed's luck is shared by all settings. None for fewer than two complete
    settings, or fewer than two seeds.
    """
    whole = _complete(settings)
    if len(whole) < 2 or len(whole[0].values) < 2:
        return None
    x = np.asarray([[arm.values[seed] for seed in whole[0].values] for arm in whole])
    rest = x - x.mean(axis=1, keepdims=True) - x.mean(axis=0) + x.mean()
    count, seeds = x.shape
    variance = float((rest**2).sum()) / ((count - 1) * (seeds - 1))
    return math.sqrt(variance / seeds) * expected_maximum(count)


def confirmation(name: str, cells: Sequence[Cell], metric: str | None, launcher: str) -> str:
    """The command that compares a setting with plain attention, with seeds not used yet.

    Args:
        name: of the setting's arm.
        cells: all runs of the sweep.
        metric: what is compared; None is the task's main metric.
        launcher: words before the script.
    """
    cell = next(cell for cell in cells if cell.arm.name == name)
    arm, run = cell.arm, cell.run
    measured = [*([metric] if metric else []), *run.flags.get(METRIC, ())]
    optional = {METRIC: measured[-1:], "launcher": [launcher] if launcher else []}
    flags = {
        "script": str(run.script),
        "variants": [NO_VARIANT, arm.name],
        "variant_flags": f"{arm.name}: {shlex.join(recipes.words(arm.flags))}",
        "first_seed": max(each.seed for each in cells) + 1,
        "seeds": CONFIRMING_SEEDS,
        **{flag: words for flag, words in optional.items() if words},
        "output_dir": f"{run.folder.parents[2]}-confirm",  # of <folder>/<task>/<arm>/seed-<n>
    }
    own = {"seed", METRIC, *arm.flags}
    common = {flag: value for flag, value in run.flags.items() if flag not in own}
    compare = str(run.script.with_name("compare.py"))
    return shlex.join(["python", compare, *recipes.words({**flags, **common})])


def _complete(arms: Sequence[ArmResult]) -> list[ArmResult]:
    return [arm for arm in arms if arm.values and not arm.missing]
