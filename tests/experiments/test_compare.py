"""The comparison end to end on a tiny BERT: paired runs, tables, figures, refusals, verdicts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny_task
import warm
from tiny_run import COLA, trainer

import hf_graphattn as ga
from finetune import compare, glue
from finetune.experiments import analyze, arms, examples, report
from finetune.models.loading import filter_statistics
from finetune.settings import recipes

SCRIPT = str(Path(glue.__file__))


def flags(folder: Path, *others: str) -> list[str]:
    return [
        *("--script", SCRIPT, "--output_dir", str(folder / "out"), "--task_name", "cola"),
        *("--dataset_name", str(folder / "data"), "--model_name_or_path", str(folder / "bert")),
        *("--variants", "none", "gfsa", "--learning_rate", "0.02", "--max_length", "32"),
        *("--per_device_train_batch_size", "4", "--num_train_epochs", "2"),
        *("--launcher", warm.python("finetune"), *others),
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


FIELD = arms.read(str(Path(SCRIPT).with_name("arms") / "field.yaml"))


@pytest.mark.parametrize("name", FIELD)
def test_an_arm_of_the_field_begins_as_plain_attention_and_learns(
    tmp_path: Path, name: str
) -> None:
    plain = trainer(tmp_path)
    words = recipes.argv({"variant": name, **FIELD[name]})
    run = trainer(tmp_path, *words, "--max_train_steps", "1")
    if name == "twicing":
        assert run.settings.variant == ga.PolynomialConfig.twicing()
    else:
        assert run.evaluate() == pytest.approx(plain.evaluate(), abs=1e-6)
    run.train()
    moved = filter_statistics(run.model, run.first_scalars)["filter_max_moved"]
    assert (moved or 0.0) > 0.0 or name in ("none", "twicing")


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
    assert plain["flags"]["variant"] == "none"
    assert filtered["flags"]["order"] == 4
    assert "seed" not in filtered["flags"]
    own = "gfsa: --variant gfsa --filter_learning_rate 0.1 --order 4."
    assert found["method"][-1] == f"Arms: none: --variant none; {own}"
    assert (found["seeds"], found["runs"]) == ([0, 1], 4)
    assert 0 < found["hours"] < 1
    assert (found["machine"]["device"], "torch" in found["versions"]) == ("cpu", True)
    assert not list(out.rglob("*.safetensors"))


def test_the_tables_can_be_written_again_from_the_numbers(compared: Path) -> None:
    numbers = json.loads((compared / "out/comparison.json").read_text())
    found = analyze.results_of(numbers)
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        assert (compared / f"out/differences.{kind}").read_bytes().startswith(start)
    table = report.table(found)
    for text, ending in (
        ("\n".join(table.text()), "txt"),
        ("\n".join(table.markdown()), "md"),
        (table.latex(), "tex"),
    ):
        assert text in (compared / f"out/comparison.{ending}").read_text()
    assert report.verdicts(found) == numbers["verdicts"]
    assert report.legend(found) == numbers["method"]
    assert {name: numbers[name] for name in ("tasks", "seeds")} == json.loads(
        json.dumps(analyze.as_json(found))
    )


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


def test_two_runs_by_example(
    compared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "RESAMPLES", 99)
    pair = [str(compared / "out/cola" / arm / "seed-0") for arm in ("none", "gfsa")]
    assert compare.main(["--examples", *pair, "--output_dir", str(compared / "pair")]) == 0
    shown = capsys.readouterr().out
    assert "McNemar, exact" in shown
    assert "paired permutation" in shown
    found = json.loads((compared / "pair/examples.json").read_text())
    by_metric = {test["metric"]: test for test in found["tests"]}
    assert set(by_metric) == {"accuracy", "matthews_correlation"}
    assert found["resamples"] == 99
    with pytest.raises(ValueError, match=r"data.*eval_predictions.tsv.*--do_eval_only"):
        compare.main(["--examples", pair[0], str(compared / "data")])
