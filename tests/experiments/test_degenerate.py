"""Warnings where a table's numbers say nothing, and what a sweep says of a tie for the best."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import glue_stand_in
import pytest
from stepwise import made_job

from finetune import compare, sweep
from finetune.experiments import analyze, command_line, plan, report
from finetune.experiments.analyze import ArmResult, TaskResult
from finetune.experiments.arms import Arm
from finetune.experiments.execute import Job
from finetune.experiments.report import verdicts


def task_of(values: dict[str, list[float]], *, greater: bool = True, **typical) -> TaskResult:
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


def job_of(folder: Path, arm: str, seed: int, rows: list[str], suffix: str = "") -> Job:
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
        job_of(tmp_path, "none", 0, ["1\t0", "0\t1"]),
        job_of(tmp_path, "gfsa", 0, ["1\t0", "1\t1"]),
        job_of(tmp_path, "gfsa", 2, ["1\t0", "1\t1"]),
        job_of(tmp_path, "plat", 0, ["1\t1", "1\t1"]),  # the rows have one label: no fault
        job_of(tmp_path, "xsa", 0, ['\ta "quoted" text', "\tb"]),
        job_of(tmp_path, "gfsa", 9, ["1\t0", "1\t1"]),  # it has not ended
    ]
    job_of(tmp_path, "none", 0, ["1\t0", "1\t1"], "_mm")  # of another split
    found = task_of({"none": [0.1, 0.2], "gfsa": [0.3, 0.1, 0.2], "plat": [0.4], "xsa": [0.5, 0.6]})
    assert [*analyze.warnings([found], jobs)] == [
        "Warning: cola, gfsa, seed 0, 2: every row is predicted as 1; such a run has learned "
        "nothing that this metric could show.",
        "Warning: cola, xsa, seed 0: every row is predicted as no text; such a run has learned "
        "nothing that this metric could show.",
    ]


def test_a_metric_of_zero_in_all_seeds_is_told() -> None:
    found = {"none": [0.0, 0.0], "gfsa": [0.0, 0.1], "plat": [0.0, 0.0]}
    assert [*analyze.warnings([task_of(found)], [])] == [
        "Warning: cola, none, plat: matthews correlation is 0 in all seeds."
    ]
    assert [*analyze.warnings([task_of(found, greater=False)], [])] == []  # no error is no fault


def test_arms_that_tie_exactly_are_told() -> None:
    found = task_of({"none": [0.5, 0.6], "gfsa": [0.5, 0.6], "plat": [0.6, 0.5]}, gfsa=0.0)
    assert [*analyze.warnings([found], [])] == [
        "Warning: cola, none, gfsa: the same matthews correlation in all 2 seeds. Their filters "
        "had no effect, or were not learned, or the metric is too coarse to part them."
    ]


def test_a_tie_for_the_best_names_none() -> None:
    tied = task_of({"2": [0.6, 0.5], "3": [0.5, 0.6], "4": [0.1, 0.2]})
    assert len(analyze.best(tied)) == 2
    assert verdicts([tied]) == [
        "None of 3 is best: 2 tie, matthews correlation 0.550 in the mean over the seeds; "
        "order 2; order 3."
    ]
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ by a rounding error.
    rounded = task_of({"2": [0.1, 0.2, 0.3], "3": [0.3, 0.2, 0.1]})
    assert len(analyze.best(rounded)) == 2
    alone = task_of({"2": [0.6, 0.5], "3": [0.5, 0.5]})
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
