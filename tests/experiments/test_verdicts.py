"""What is said of arms: verdicts, the correction over tasks and arms, tables that show them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from finetune.experiments import analyze, report
from finetune.experiments.analyze import ArmResult, Paired, TaskResult
from finetune.experiments.report import Table
from finetune.experiments.statistics import holm, permutation_p, t_interval


def task_of(*arms: list[float], greater: bool = True, metric: str = "accuracy") -> TaskResult:
    """A task from the values of the baseline and of the arms, seed by seed."""
    found = [
        ArmResult("none" if i == 0 else f"arm{i}", dict(enumerate(values)))
        for i, values in enumerate(arms)
    ]
    return analyze.against_baseline([TaskResult("cola", f"eval_{metric}", greater, found)])[0]


BASE = [0.50, 0.52, 0.51, 0.53, 0.50, 0.52, 0.54, 0.51]
GAINS = np.array([0.01, 0.02, 0.015, 0.03, 0.01, 0.02, 0.01, 0.025])


def sentence(*gains: np.ndarray, seeds: int = 8, greater: bool = True) -> str:
    arms = [list(np.array(BASE) + gain)[:seeds] for gain in (0 * GAINS, *gains)]
    return report.verdicts([task_of(*arms, greater=greater)])[0]


def test_verdict_of_a_gain() -> None:
    found = sentence(GAINS)
    assert found.startswith("arm1 is better than none: accuracy +0.0175 (95 % interval +0.01")
    assert "), +3.39 % of 0.5162, better in 8 of 8 seeds, p = 0.0078" in found
    assert "comparisons" not in found


def test_verdict_follows_the_metrics_direction() -> None:
    assert sentence(GAINS, greater=False).startswith("arm1 is worse than none: accuracy +0.0175")
    assert sentence(-GAINS, greater=False).startswith("arm1 is better than none: accuracy -0.0175")


def test_verdict_without_a_difference_says_what_would_go_unseen() -> None:
    found = sentence(GAINS * [1, -1, 1, -1, 1, -1, 1, -1])
    assert "no difference from none that 8 seeds can show" in found
    least = float(re.search(r"below about (\d\.\d+) does not reach p = 0\.05", found)[1])
    # A constant added to every difference that lifts their mean just above it gives p < 0.05.
    gains = GAINS * [1, -1, 1, -1, 1, -1, 1, -1]
    assert "better than" in sentence(gains - gains.mean() + 1.1 * least)
    assert "no difference" in sentence(gains - gains.mean() + 0.9 * least)
    # Among three comparisons it takes more, and six seeds show nothing whatever comes out.
    three = sentence(gains, gains, gains)
    among = re.search(r"below about (\d\.\d+) does not reach p = 0\.05 among 3", three)
    assert float(among[1]) > least
    moved = gains - gains.mean() + 1.1 * float(among[1])
    assert "better than" in sentence(moved, gains, gains)
    few = sentence(gains, gains, gains, seeds=6)
    assert few.endswith("(7 seeds are needed to show one among 3).")


def test_verdict_of_too_few_seeds() -> None:
    found = sentence(GAINS, seeds=5)
    assert "no verdict, 5 seeds cannot show a difference from none" in found
    assert "needs 6" in found
    assert "better in 5 of 5" in found
    assert "no verdict, one seed has no spread" in sentence(GAINS, seeds=1)


def test_verdict_after_correction() -> None:
    """p = 2/64 alone; among three comparisons of six seeds not."""
    found = sentence(GAINS, GAINS - 0.02, 0.5 * GAINS - 0.01, seeds=6)
    assert "better than none taken alone, but not among 3 comparisons, so not shown" in found
    assert "p = 0.031, 0.094 corrected for 3 comparisons (7 seeds are needed" in found
    nothing = report.verdict(task_of([0.5], []), task_of([0.5], []).arms[1], 0)
    assert nothing == "arm1: no verdict, no seed ended both with it and with none."


def test_correction_is_over_tasks_and_arms_together() -> None:
    values = np.array(BASE)
    first = task_of(list(values), list(values + GAINS))
    second = task_of(list(values), list(values - GAINS), list(values + 0.1 * GAINS - 0.001))
    both = analyze.against_baseline([first, second])
    pairs = [arm.paired for task in both for arm in task.arms[1:]]
    assert [p.corrected_p for p in pairs] == pytest.approx(holm([p.p for p in pairs]))
    assert report.comparisons(both) == 3
    assert "Holm's correction over all 3 comparisons" in "\n".join(report.legend(both))


def test_only_seeds_of_both_are_paired() -> None:
    base = ArmResult("none", {0: 0.5, 1: 0.6, 2: 0.7})
    arm = ArmResult("gfsa", {1: 0.65, 2: 0.72, 3: 0.9}, missing={0: "failed"})
    task = TaskResult("t", "eval_accuracy", True, [base, arm])
    found = analyze.against_baseline([task])[0].arms[1].paired
    assert found.differences == pytest.approx({1: 0.05, 2: 0.02})
    assert "; 2 more seeds gave no pair." in report.verdicts(analyze.against_baseline([task]))[0]
    values = list(found.differences.values())
    assert found == Paired(found.differences, t_interval(values), permutation_p(values), found.p, 2)


def test_a_table_has_three_forms() -> None:
    rows = [{"name": "a_b", "95 % interval": "1 ± 2"}, {"name": "c|d", "95 % interval": "↑"}]
    table = Table(rows)
    assert table.text() == [
        *("name  95 % interval", "----  -------------", "a_b   1 ± 2", "c|d   ↑"),
    ]
    assert table.markdown() == [
        *("| name | 95 % interval |", "| --- | --- |", "| a_b | 1 ± 2 |", r"| c\|d | ↑ |"),
    ]
    latex = table.latex()
    assert r"name & 95 \% interval \\" in latex
    assert r"a\_b & 1 $\pm$ 2 \\" in latex
    assert r"c|d & $\uparrow$ \\" in latex


def test_an_arm_of_several_passes_is_held_against_degree_1_too() -> None:
    """GFSA is better than plain, and no better than the one pass that is as good."""

    def arm(name: str, values: np.ndarray, **flags: object) -> ArmResult:
        return ArmResult(name, dict(enumerate(values.tolist())), {"variant": name, **flags})

    values, rate = np.array(BASE), {"filter_learning_rate": 1e-2}
    arms = [
        arm("none", values),
        arm("gfsa", values + GAINS, **rate, order=3),
        arm("shallow", values + GAINS, variant="gfsa", order=1),  # which is one pass
        arm("plat", values + GAINS, **rate, p=[1.5, 2.5]),
        arm("twicing", values + 2 * GAINS, variant="polynomial", coefficients=[0, 2, -1]),
    ]
    degree1 = arm("degree1", values + GAINS, w_0=0, w_1=1, **rate)
    (task,) = analyze.against_baseline(
        [TaskResult("cola", "eval_accuracy", True, [*arms, degree1])]
    )
    said = report.verdicts([task])
    assert [line.split()[0].rstrip(":") for line in said[5:]] == ["gfsa", "twicing"]
    assert said[0].startswith("gfsa is better than none: ")
    assert said[5].startswith("gfsa: no difference from degree1 that 8 seeds can show: ")
    assert said[6].startswith("twicing is better than degree1: accuracy +0.0175 (95 % interval ")
    assert said[6].endswith(", 0.016 corrected for 2 comparisons.")
    assert "gfsa, twicing: of several passes" in "\n".join(report.legend([task]))
    without = analyze.against_baseline([TaskResult("cola", "eval_accuracy", True, arms)])
    assert analyze.against_degree_1(without) == []
    # Of two arms of degree 1, that of the same rate, or both; none where it is the baseline.
    fast = arm("fast", values, variant="polynomial", coefficients=[0, 1], filter_learning_rate=0.1)
    each = analyze.against_degree_1(
        [TaskResult("c", "eval_accuracy", True, [*arms, fast, degree1])]
    )
    assert [[arm.name for arm in task.arms] for task in each] == [
        ["fast", "twicing"],
        ["degree1", "gfsa", "twicing"],
    ]
    assert (
        analyze.against_degree_1([TaskResult("c", "eval_accuracy", True, [degree1, *arms])]) == []
    )
