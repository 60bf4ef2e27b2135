"""The comparison end to end on a tiny BERT: paired runs, tables, figures, refusals, verdicts."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_task
import torch
from sklearn.metrics import matthews_corrcoef
from tiny_run import COLA, trainer

from finetune import compare, glue
from finetune.comparison import (
    command_line,
    evidence_page,
    examples,
    figures,
    results,
    tables,
    verdicts,
)
from finetune.comparison.results import ArmResult, Paired, TaskResult
from finetune.comparison.statistics import bootstrap_interval, holm, permutation_p
from finetune.outputs import EVALUATED
from finetune.progress import LOG

SCRIPT = str(Path(glue.__file__))


def flags(folder: Path, *others: str) -> list[str]:
    return [
        *("--script", SCRIPT, "--output_dir", str(folder / "out"), "--task_name", "cola"),
        *("--dataset_name", str(folder / "data"), "--model_name_or_path", str(folder / "bert")),
        *("--variants", "none", "gfsa", "--learning_rate", "0.02", "--max_length", "32"),
        *("--per_device_train_batch_size", "4", "--num_train_epochs", "2", *others),
    ]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of two arms, of which the second was started after the first."""
    folder = tmp_path_factory.mktemp("compare")
    tiny_task.save_data(COLA, folder / "data", held_out=20)
    tiny_task.save_bert(folder / "bert")
    shared = flags(folder, "--order", "4", "--filter_learning_rate", "0.1")
    assert compare.main([*shared, "--seeds", "1"]) == 0
    first = (folder / "out/cola/none/seed-0/all_results.json").stat().st_mtime_ns
    assert compare.main([*shared, "--seeds", "2"]) == 0
    assert (folder / "out/cola/none/seed-0/all_results.json").stat().st_mtime_ns == first
    return folder


def steps(folder: Path) -> list[dict]:
    lines = [json.loads(x) for x in (folder / "train_log.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def test_runs_of_a_seed_are_paired(compared: Path) -> None:
    """GFSA begins as plain attention: same head, same rows, so the first step's loss is the same.

    Each batch has as many tokens in both arms, so the order of the rows is the same."""
    for seed in (0, 1):
        plain, filtered = (
            steps(compared / "out" / "cola" / arm / f"seed-{seed}") for arm in ("none", "gfsa")
        )
        assert plain[0]["loss"] == pytest.approx(filtered[0]["loss"], abs=1e-6)
        assert [x["tokens"] for x in plain] == [x["tokens"] for x in filtered]
        assert plain[-1]["loss"] != filtered[-1]["loss"]
    first, second = (steps(compared / f"out/cola/none/seed-{seed}") for seed in (0, 1))
    assert first[0]["loss"] != second[0]["loss"]


def test_arms_see_the_same_rows_and_begin_with_the_same_head(tmp_path: Path) -> None:
    orders, heads = [], []
    for variant in (["none"], ["gfsa"], ["plat", "--p", "2.0"]):
        run = trainer(tmp_path, "--variant", *variant, "--seed", "5", count=16)
        heads.append(run.model.classifier.weight.detach().clone())
        windows = [list(run.updates.read(epoch, 0)) for epoch in range(2)]
        batches = [part.batch["input_ids"] for epoch in windows for w in epoch for part in w]
        orders.append([batch.tolist() for batch in batches])
    assert orders[0] == orders[1] == orders[2]
    assert orders[0][:2] != orders[0][2:]  # the epochs differ in their order
    assert all(torch.equal(heads[0], head) for head in heads)


def test_everything_is_written(compared: Path) -> None:
    out = compared / "out"
    names = {path.name for path in out.iterdir()}
    assert names >= {f"comparison.{ending}" for ending in ("txt", "md", "tex", "json")}
    found = json.loads((out / "comparison.json").read_text())
    (task,) = found["tasks"]
    assert (task["task"], task["metric"]) == ("cola", "eval_matthews_correlation")
    assert task["greater_is_better"] is True
    plain, filtered = task["arms"]
    assert (plain["arm"], filtered["arm"]) == ("none", "gfsa")
    assert (plain["filter_scalars"], filtered["filter_scalars"]) == (0, 8)
    for arm in (plain, filtered):
        for seed, value in arm["values"].items():
            run = json.loads((out / f"cola/{arm['arm']}/seed-{seed}/all_results.json").read_text())
            assert run["eval_matthews_correlation"] == value
            assert run["settings"]["seed"] == int(seed)
        assert arm["peak_memory_bytes"] > 1e8
        assert arm["seconds_per_step"] > 0
    expected = [filtered["values"][seed] - plain["values"][seed] for seed in ("0", "1")]
    assert list(filtered["paired"]["differences"].values()) == pytest.approx(expected)
    assert "2 seeds cannot show a difference" in found["verdicts"][0]
    own = "gfsa: --order 4 --filter_learning_rate 0.1 --variant gfsa."
    assert found["method"][-1] == f"Arms: none: --variant none; {own}"
    assert found["machine"]["device"] == "cpu"
    assert found["versions"]["torch"] == torch.__version__
    assert not list(out.rglob("*.safetensors"))


def test_figures_are_drawn(compared: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("differences", "learning_curves-cola"):
        assert (compared / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (compared / "out" / f"{name}.svg").read_text()


def test_predictions_of_the_evaluation_are_what_was_scored(compared: Path) -> None:
    folder = compared / "out/cola/gfsa/seed-1"
    run = json.loads((folder / "all_results.json").read_text())
    found = examples.read(folder / EVALUATED.format(""))
    assert found.labels.tolist() == [i % 2 for i in range(20)]
    expected = matthews_corrcoef(found.labels, found.predictions)
    assert run["eval_matthews_correlation"] == pytest.approx(expected)


def test_other_settings_are_refused_and_nothing_is_run(compared: Path) -> None:
    shared = flags(compared, "--order", "6", "--filter_learning_rate", "0.1", "--seeds", "9")
    with pytest.raises(ValueError, match=r"gfsa/seed-0.*order: 4 -> 6"):
        compare.main(shared)
    assert not (compared / "out/cola/none/seed-2").exists()


def test_a_report_of_what_is_there_says_what_is_missing(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(compared / "out", tmp_path / "out")
    shutil.rmtree(tmp_path / "out/cola/gfsa/seed-1")
    argv = flags(compared, "--order", "4", "--filter_learning_rate", "0.1", "--seeds", "2")
    argv[argv.index("--output_dir") + 1] = str(tmp_path / "out")
    assert compare.main([*argv, "--report_only", "--metric", "loss"]) == 1
    shown = capsys.readouterr().out
    assert "cola, gfsa: without seed 1 (not run)." in shown
    assert "loss ↓" in shown
    assert "no verdict, one seed has no spread" in shown
    for name in ("f1", "seconds_per_step"):  # of seconds nobody says that less is better
        with pytest.raises(ValueError, match=rf"metric is '{name}'; allowed: .*eval_loss"):
            compare.main([*argv, "--report_only", "--metric", name])


def test_the_commands_alone(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = flags(compared, "--order", "4", "--filter_learning_rate", "0.1", "--seeds", "3")
    assert compare.main([*shared, "--dry_run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all("glue.py" in line and "--variant" in line for line in lines)
    assert not (compared / "out/cola/none/seed-2").exists()


def test_two_runs_by_example(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [str(compared / "out/cola" / arm / "seed-0") for arm in ("none", "gfsa")]
    assert compare.main(["--examples", *pair, "--output_dir", str(compared / "pair")]) == 0
    shown = capsys.readouterr().out
    assert "McNemar, exact" in shown
    assert "paired bootstrap" in shown
    found = json.loads((compared / "pair/examples.json").read_text())
    by_metric = {test["metric"]: test for test in found["tests"]}
    assert set(by_metric) == {"accuracy", "f1", "matthews_correlation"}
    with pytest.raises(ValueError, match=r"data.*eval_predictions.tsv.*--do_eval_only"):
        compare.main(["--examples", pair[0], str(compared / "data")])


def test_runs_on_other_rows_are_not_compared_by_example(tmp_path: Path) -> None:
    for name, labels in (("a", "01"), ("b", "00")):
        lines = [f"{i}\t1\t{label}" for i, label in enumerate(labels)]
        (tmp_path / name).mkdir()
        text = "\n".join(["index\tprediction\tlabel", *lines])
        (tmp_path / name / EVALUATED.format("")).write_text(text)
    with pytest.raises(ValueError, match=r"with 2 and 2 rows'; allowed: two runs evaluated on the"):
        examples.compare(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], r"is 'no rows'"), (["0\tnan\t0.5", "1\t0.1\t0.2"], r"a prediction that is not finite")],
)
def test_predictions_that_cannot_be_compared_are_refused(
    tmp_path: Path, rows: list[str], message: str
) -> None:
    text = "\n".join(["index\tprediction\tlabel", *rows])
    (tmp_path / EVALUATED.format("")).write_text(text)
    with pytest.raises(ValueError, match=message):
        examples.compare(tmp_path, tmp_path)


def test_a_refusal_is_one_line() -> None:
    argv = ["--script", SCRIPT, "--output_dir", "out", "--variants", "none", "gfas"]
    with pytest.raises(SystemExit) as stopped:
        command_line.exit_with(lambda: compare.main(argv))
    assert re.fullmatch(r"error: variants is 'gfas'; allowed: none, .*", stopped.value.code)


def task_of(*arms: list[float], greater: bool = True, metric: str = "accuracy") -> TaskResult:
    """A task from the values of the baseline and of the arms, seed by seed."""
    baseline, *others = (
        ArmResult("none" if i == 0 else f"arm{i}", [], dict(enumerate(values)), {}, {})
        for i, values in enumerate(arms)
    )
    found = TaskResult("cola", f"eval_{metric}", greater, [baseline, *others])
    return results._corrected([results._paired(found)])[0]


BASE = [0.50, 0.52, 0.51, 0.53, 0.50, 0.52, 0.54, 0.51]
GAINS = np.array([0.01, 0.02, 0.015, 0.03, 0.01, 0.02, 0.01, 0.025])


def sentence(*gains: np.ndarray, seeds: int = 8, greater: bool = True) -> str:
    arms = [list(np.array(BASE) + gain)[:seeds] for gain in (0 * GAINS, *gains)]
    return verdicts.verdicts([task_of(*arms, greater=greater)])[0]


def test_verdict_of_a_gain() -> None:
    found = sentence(GAINS)
    assert found.startswith("arm1 is better than none: accuracy +0.0175 (95 % interval +0.01")
    assert "better in 8 of 8 seeds, p = 0.0078" in found
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
    nothing = verdicts.verdict(task_of([0.5], []), task_of([0.5], []).arms[1], 0)
    assert nothing == "arm1: no verdict, no seed ended both with it and with none."


def test_correction_is_over_tasks_and_arms_together() -> None:
    values = np.array(BASE)
    first = task_of(list(values), list(values + GAINS))
    second = task_of(list(values), list(values - GAINS), list(values + 0.1 * GAINS - 0.001))
    both = results._corrected([first, second])
    pairs = [arm.paired for task in both for arm in task.arms[1:]]
    assert [p.corrected_p for p in pairs] == pytest.approx(holm([p.p for p in pairs]))
    assert verdicts.comparisons(both) == 3
    assert "Holm's correction over all 3 comparisons" in "\n".join(tables.legend(both))


def test_only_seeds_of_both_are_paired() -> None:
    base = ArmResult("none", [], {0: 0.5, 1: 0.6, 2: 0.7}, {}, {})
    arm = ArmResult("gfsa", [], {1: 0.65, 2: 0.72, 3: 0.9}, {0: "failed"}, {})
    found = results._paired(TaskResult("t", "eval_accuracy", True, [base, arm])).arms[1].paired
    assert found.differences == pytest.approx({1: 0.05, 2: 0.02})
    values = list(found.differences.values())
    assert found == Paired(
        found.differences, bootstrap_interval(values), permutation_p(values), found.p, 2
    )


def test_tables_have_a_row_an_arm_and_escape_names() -> None:
    values = np.array(BASE)
    found = [task_of(list(values), list(values + GAINS), metric="matthews_correlation")]
    text = tables.text(found, ["A note."])
    head, rule, plain, arm, *_ = text.splitlines()
    assert head.split("  ")[0] == "task"
    assert set(rule) == {"-", " "}
    assert re.search(r"none +8 +matthews correlation ↑ +0\.5162 ± 0\.0141 +- ", plain)
    assert re.search(r"arm1 .*\+0\.0175 .* to .*0\.00781 +0\.00781", arm)
    assert text.endswith("A note.\n")
    pipes = tables.markdown(found, []).splitlines()
    assert [line.count("|") for line in pipes[:4]] == [len(tables.HEADINGS) + 1] * 4
    latex = tables.latex(found, ["A note."])
    assert "% A note.\n" in latex
    assert r"95 \% interval" in latex
    assert r"$\uparrow$" in latex
    assert latex.count(r"\\") == 3
    assert latex.count(" & ") == 3 * (len(tables.HEADINGS) - 1)
    columns = re.search(r"begin\{tabular\}\{(\w+)\}", latex)[1]
    assert len(columns) == len(tables.HEADINGS)
    assert tables._latex_row(["a_b", "1 ± 2"]) == r"a\_b & 1 $\pm$ 2 \\"


def test_verdict_says_which_seeds_gave_no_pair() -> None:
    values = np.array(BASE)
    task = task_of(list(values), list(values[:6] + GAINS[:6]))
    plain, arm = task.arms
    arm = dataclasses.replace(arm, missing={6: "failed", 7: "no finite value"})
    (said,) = verdicts.verdicts([dataclasses.replace(task, arms=[plain, arm])])
    assert "2 more seeds gave no pair" in said


def test_loss_curves_of_runs_of_different_lengths_share_their_steps(tmp_path: Path) -> None:
    """Early stopping: a run of 100 steps beside one of 300, the loss being the step."""
    folders = [tmp_path / "short", tmp_path / "long"]
    for folder, last in zip(folders, (100, 300), strict=True):
        folder.mkdir()
        lines = [json.dumps({"step": step, "loss": step}) for step in range(1, last + 1)]
        (folder / LOG).write_text("\n".join(lines), "utf-8")
    (short_steps, short), (long_steps, long) = figures.loss_curves(folders)
    assert np.array_equal(short_steps, long_steps)
    assert np.array_equal(short, long)
    assert short_steps[-1] <= 100
    assert figures.loss_curves([tmp_path / "none"]) == []


def test_the_page_of_evidence_shows_the_table_and_no_path_of_the_machine(
    compared: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "study").symlink_to(compared / "out")
    row = {"paper": "GFSA", "setting": "larger", "figure": "1.0"}
    study = SimpleNamespace(name="study", title="A study", paper="Another setting.", reported=[row])
    missing = SimpleNamespace(name="missing", title="Not run", paper="", reported=[])
    page = evidence_page.write([study, missing], tmp_path / "runs", tmp_path / "docs")
    text = page.read_text("utf-8")
    table = (compared / "out" / "comparison.md").read_text("utf-8").split("\n\n")[0]
    assert "## A study" in text
    assert table in text
    assert "The papers: Another setting." in text
    assert "Not run" not in text
    numbers = (tmp_path / "docs" / "evidence" / "study.json").read_text("utf-8")
    assert str(compared) not in text + numbers
    assert json.loads(numbers)["tasks"][0]["arms"]["none"]["values"]
    assert (tmp_path / "docs" / "evidence" / "study.png").is_file()
