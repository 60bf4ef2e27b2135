"""The best of many settings, and how good it would look if all of them were equally good."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from finetune.experiments import command_line
from finetune.experiments.experiment import Experiment
from finetune.experiments.gather import ArmResult, TaskResult
from finetune.experiments.grid import Cell
from finetune.experiments.runs import METRIC
from finetune.settings import recipes
from finetune.settings.variants import NO_VARIANT

CONFIRMING_SEEDS = 8
HOW = ("launcher", "executor", "executor_options", "processes", "threads", "keep_models")


def best(task: TaskResult) -> ArmResult | None:
    """The arm with the best mean among complete settings; None if there is none, or several."""
    first = leaders(task)
    return first[0] if len(first) == 1 else None


def leaders(task: TaskResult) -> list[ArmResult]:
    """All complete settings with the best mean; rounding of a sum parts none of them."""
    sign = 1 if task.greater_is_better else -1
    complete = _complete(task.settings)
    most = max((sign * arm.mean for arm in complete), default=0.0)
    return [arm for arm in complete if math.isclose(sign * arm.mean, most, rel_tol=1e-12)]


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


def confirmation(name: str, asked: Experiment, cells: Sequence[Cell]) -> str:
    """The command that compares a setting with plain attention, with seeds not used yet.

    It keeps every flag of the sweep's runs, and how they were run.

    Args:
        name: of the setting's arm.
        asked: the sweep.
        cells: all of its runs.
    """
    cell = next(cell for cell in cells if cell.arm.name == name)
    arm, run, common = cell.arm, cell.run, dict(asked.common)
    # compare.py takes one metric; those that a recipe adds stay in the recipe.
    recipe = recipes.value_of(asked.words, "recipe") if common.pop(METRIC, None) else None
    measured = [*asked.measure.flags.get(METRIC, ())][-1:] or [asked.given.metric]
    flags = {
        "script": str(run.script),
        "variants": [NO_VARIANT, arm.name],
        "variant_flags": f"{arm.name}: {shlex.join(recipes.words(arm.flags))}",
        "first_seed": max(each.seed for each in cells) + 1,
        "seeds": CONFIRMING_SEEDS,
        METRIC: measured[0],
        **{name: getattr(asked.given, name) for name in HOW},
        "output_dir": f"{run.folder.parents[2]}-confirm",  # of <folder>/<task>/<arm>/seed-<n>
        "recipe": recipe,
    }
    default = command_line.of_comparison(None).get_default
    said = {name: value for name, value in flags.items() if value != default(name)}
    said = {name: [] if value is True else value for name, value in said.items()}
    compare = str(run.script.with_name("compare.py"))
    return shlex.join(["python", compare, *recipes.words({**said, **common})])


def _complete(arms: Sequence[ArmResult]) -> list[ArmResult]:
    return [arm for arm in arms if arm.values and not arm.missing]
