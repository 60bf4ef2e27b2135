"""What is said of arms: verdicts, the correction over tasks and arms, tables, warnings, ties."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import glue_stand_in
import numpy as np
import pytest
from stepwise import made_job

from finetune import compare, sweep
from finetune.experiments import analyze, command_line, plan, report
from finetune.experiments.analyze import ArmResult, Paired, TaskResult
from finetune.experiments.arms import Arm
from finetune.experiments.execute import Job
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


def table_of(values: dict[str, list[float]], *, greater: bool = True, **typical) -> TaskResult:
    """Arms with these values, seed by seed; of a sweep if their names are numbers."""
    results = [
        ArmResult(
            name,
            dict(enumerate(by_seed)),
            {"variant": "gfsa"},
            {"order": int(name)} if name.isdigit() else {},
            typical={"filter_max_moved": typical.get(name)},
        )
        for name, by_seed in values.items()
    ]
    return TaskResult("cola", "eval_matthews_correlation", greater, results)


def predicted_by(folder: Path, arm: str, seed: int, rows: list[str], suffix: str = "") -> Job:
    """A run's folder with the file of its predictions."""
    own = folder / arm / f"seed-{seed}"
    own.mkdir(parents=True, exist_ok=True)
    lines = [f"{i}\t{row}" for i, row in enumerate(rows)]
    text = "\n".join(["index\tprediction\tlabel", *lines]) + "\n"
    (own / f"eval_predictions{suffix}.tsv").write_text(text)
    job = made_job(Path("glue.py"), own, "m", seed)
    return replace(job, arm=Arm(arm, {"variant": "none"}), task="cola")


def test_one_answer_for_all_rows_is_a_warning(tmp_path: Path) -> None:
    jobs = [
        predicted_by(tmp_path, "none", 0, ["1\t0", "0\t1"]),
        predicted_by(tmp_path, "gfsa", 0, ["1\t0", "1\t1"]),
        predicted_by(tmp_path, "gfsa", 2, ["1\t0", "1\t1"]),
        predicted_by(tmp_path, "plat", 0, ["1\t1", "1\t1"]),  # the rows have one label: no fault
        predicted_by(tmp_path, "xsa", 0, ['\ta "quoted" text', "\tb"]),
        predicted_by(tmp_path, "gfsa", 9, ["1\t0", "1\t1"]),  # it has not ended
    ]
    predicted_by(tmp_path, "none", 0, ["1\t0", "1\t1"], "_mm")  # of another split
    found = table_of(
        {"none": [0.1, 0.2], "gfsa": [0.3, 0.1, 0.2], "plat": [0.4], "xsa": [0.5, 0.6]}
    )
    assert [*analyze.warnings([found], jobs)] == [
        "Warning: cola, gfsa, seed 0, 2: every row is predicted as 1; such a run has learned "
        "nothing that this metric could show.",
        "Warning: cola, xsa, seed 0: every row is predicted as no text; such a run has learned "
        "nothing that this metric could show.",
    ]


def test_a_metric_of_zero_in_all_seeds_is_told() -> None:
    found = {"none": [0.0, 0.0], "gfsa": [0.0, 0.1], "plat": [0.0, 0.0]}
    assert [*analyze.warnings([table_of(found)], [])] == [
        "Warning: cola, none, plat: matthews correlation is 0 in all seeds."
    ]
    assert [*analyze.warnings([table_of(found, greater=False)], [])] == []  # no error is no fault


def test_arms_that_tie_exactly_are_told() -> None:
    found = table_of({"none": [0.5, 0.6], "gfsa": [0.5, 0.6], "plat": [0.6, 0.5]}, gfsa=0.0)
    assert [*analyze.warnings([found], [])] == [
        "Warning: cola, none, gfsa: the same matthews correlation in all 2 seeds. Their filters "
        "had no effect, or were not learned, or the metric is too coarse to part them."
    ]


def test_a_tie_for_the_best_names_none() -> None:
    tied = table_of({"2": [0.6, 0.5], "3": [0.5, 0.6], "4": [0.1, 0.2]})
    assert len(analyze.best(tied)) == 2
    assert report.verdicts([tied]) == [
        "None of 3 is best: 2 tie, matthews correlation 0.550 in the mean over the seeds; "
        "order 2; order 3."
    ]
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ by a rounding error.
    rounded = table_of({"2": [0.1, 0.2, 0.3], "3": [0.3, 0.2, 0.1]})
    assert len(analyze.best(rounded)) == 2
    alone = table_of({"2": [0.6, 0.5], "3": [0.5, 0.5]})
    assert analyze.best(alone)[0].name == "2"


def test_a_report_tells_a_tie_and_has_no_command_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = glue_stand_in.save(tmp_path)
    assert sweep.main(glue_stand_in.argv(fake, "order: [4, 6]")) == 0  # as far from order 5
    found = glue_stand_in.report(fake)
    assert found["best"] is None
    assert "None of 2 is best: 2 tie" in found["verdicts"][0]
    assert found["notes"][0].startswith("Warning: cola, order-4, order-6: the same")
    for text in (capsys.readouterr().out, (fake / "out/sweep.txt").read_text()):
        assert found["notes"][0] in text
        assert "compare.py" not in text


@pytest.mark.parametrize(
    ("space", "others"),
    [
        ("{order: [5], w_0: [-0.00001], layers: [[0, -1]]}", ["--filter_learning_rate", "0.1"]),
        ("{order: [5], trainable: [[]]}", ["--weight_decay", "0.0", "--max_length", "16"]),
        ("{learning_rate: [0.5]}", ["--recipe", "{folder}/recipe.yaml"]),
        ("{order: [5]}", ["--metric", "{folder}/own.py", "--recipe", "{folder}/recipe.yaml"]),
        ("{order: [5]}", ["--train_file", "{folder}/my own 'data'.json", "--group_by_length"]),
        ("{order: [5]}", ["--launcher", "accelerate launch --num_processes 2"]),
    ],
)
def test_the_confirming_command_keeps_every_flag(
    tmp_path: Path, space: str, others: list[str]
) -> None:
    """Parsed by compare.py's own parser: the runs have the flags that the sweep's have."""
    fake = glue_stand_in.save(tmp_path)
    glue_stand_in.save_metric(fake)
    recipe = "{learning_rate: 0.01, order: 7, w_0: -0.1, metric: [f1], seed: 9, variant: gfsa}"
    (fake / "recipe.yaml").write_text(recipe)
    argv = glue_stand_in.argv(fake, space, *(word.format(folder=fake) for word in others))
    options, flags = command_line.of_sweep().parse_known_args(argv)
    swept = plan.sweep(options, flags)
    jobs = swept.jobs([*swept.arms, *swept.space.grid()])
    (fake / "out").mkdir()
    setting = jobs[1].arm
    winner = ArmResult(setting.name, {}, setting.flags, setting.setting)
    python, script, *confirming = shlex.split(report.confirmation(winner, swept))
    assert (python, script) == ("python", str(fake / "compare.py"))
    again, flags = command_line.of_comparison().parse_known_args(confirming)
    confirmed = plan.comparison(again, flags)
    new = confirmed.jobs(confirmed.arms)
    assert [job.seed for job in new] == [seed for seed in range(2, 10) for _ in range(2)]
    for before, after in zip(jobs[:2], new[:2], strict=True):
        assert before.arm.name == after.arm.name
        where = {"seed": after.seed, "output_dir": str(after.folder)}
        assert before.run.training(**where) == after.run
    assert (confirmed.metric, again.launcher) == (swept.metric, options.launcher)
    assert compare.main([*confirming, "--dry_run"]) == 0
