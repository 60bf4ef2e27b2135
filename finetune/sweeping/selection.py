"""The best of many settings, and how good the best would look if all of them were equally good."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

import numpy as np
from scipy import stats

from finetune.arguments import NO_VARIANT
from finetune.comparison.results import ArmResult, TaskResult
from finetune.sweeping.plan import Sweep
from finetune.sweeping.space import Setting

CONFIRMING_SEEDS = 8


def best(task: TaskResult, arms: Sequence[ArmResult]) -> ArmResult | None:
    """That with the best mean, of those with a value of every seed; the first of equal ones."""
    whole = [arm for arm in arms if arm.values and not arm.missing]
    sign = 1 if task.greater_is_better else -1
    return max(whole, key=lambda arm: sign * arm.mean, default=None)


def expected_maximum(count: int) -> float:
    """Of so many independent standard normal values, the expectation of the greatest."""
    x = np.linspace(-12, 12, 24_001)
    return float(np.trapezoid(x * count * stats.norm.pdf(x) * stats.norm.cdf(x) ** (count - 1), x))


def optimism(arms: Sequence[ArmResult]) -> float | None:
    """How far the best mean is expected above the average of all, if all settings are equal.

    The spread of a setting's mean is what setting and seed leave over, ``x_ij - x_i. - x_.j +
    x_..``: a seed's luck is shared by all settings. None below two settings or two seeds.
    """
    whole = [arm for arm in arms if arm.values and not arm.missing]
    if len(whole) < 2 or len(whole[0].values) < 2:
        return None
    x = np.asarray([[arm.values[seed] for seed in whole[0].values] for arm in whole])
    rest = x - x.mean(axis=1, keepdims=True) - x.mean(axis=0) + x.mean()
    settings, seeds = x.shape
    variance = float((rest**2).sum()) / ((settings - 1) * (seeds - 1))
    return math.sqrt(variance / seeds) * expected_maximum(settings)


def confirmation(sweep: Sweep, setting: Setting, launcher: str) -> str:
    """The command that compares the setting with plain attention, with seeds not used yet."""
    arm = setting.arm(sweep.variant)
    words = ["python", str(sweep.script.path.with_name("compare.py"))]
    words += ["--script", str(sweep.script.path), "--variants", NO_VARIANT, arm.name]
    words += ["--variant_flags", f"{arm.name}: {shlex.join(arm.flags)}"]
    words += ["--first_seed", str(sweep.seeds[-1] + 1), "--seeds", str(CONFIRMING_SEEDS)]
    words += ["--launcher", launcher] if launcher else []
    return shlex.join([*words, "--output_dir", f"{sweep.folder}-confirm", *sweep.common])
