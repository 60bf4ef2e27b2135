"""Sweeps by grid: spaces, runs with a stand-in for the script, tables, refusals, a real one."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import glue_stand_in
import pytest
from glue_stand_in import argv, calls, report

import hf_graphattn as ga
from finetune import compare, sweep
from finetune.experiments import arms
from finetune.experiments.arms import Script, Space
from finetune.settings import recipes

GLUE = Script(Path(sweep.__file__).with_name("glue.py"))


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    return glue_stand_in.save(tmp_path)


def test_a_grid_is_run_once_beside_plain_attention(fake: Path) -> None:
    assert sweep.main(argv(fake, "order: [4, 5, 7]")) == 0
    names = ["none", "order-4", "order-5", "order-7"]
    assert calls(fake) == [f"{name} {seed}" for seed in (0, 1) for name in names]
    found = report(fake)
    assert found["plain"]["mean"] == pytest.approx(0.505)
    means = {s["flags"]["order"]: s["mean"] for s in found["settings"]}
    assert means == pytest.approx({4: 0.595, 5: 0.605, 7: 0.565})
    five = found["settings"][1]
    assert five["values"] == pytest.approx({"0": 0.6, "1": 0.61})
    assert (five["least"], five["greatest"]) == pytest.approx((0.6, 0.61))
    assert five["standard_deviation"] == pytest.approx(0.01 / math.sqrt(2))
    assert five["paired"]["mean"] == pytest.approx(0.1)
    assert (found["best"]["setting"], found["best"]["settings_tried"]) == ("order-5", 3)
    # The stand-in's seed adds the same to all, so no luck is left over.
    assert found["best"]["optimism"] == pytest.approx(0, abs=1e-12)
    for kind in ("png", "svg"):
        assert (fake / f"out/sweep.{kind}").stat().st_size > 1000
    before = calls(fake)
    assert sweep.main(argv(fake, "order: [4, 5, 7]")) == 0
    assert calls(fake) == before


def test_more_values_and_seeds_run_only_what_is_new(fake: Path) -> None:
    sweep.main(argv(fake, "order: [4, 5]"))
    before = len(calls(fake))
    sweep.main(argv(fake, "order: [5, 6]", "--seeds", "3", "--no_baseline"))
    assert calls(fake)[before:] == ["order-6 0", "order-6 1", "order-5 2", "order-6 2"]
    found = report(fake)
    assert found["plain"] is None
    assert all(setting["paired"] is None for setting in found["settings"])
    assert "difference" not in (fake / "out/sweep.txt").read_text().splitlines()[0]


def test_what_failed_is_missing_and_then_run_again(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fake / "out").mkdir()
    (fake / "out/stop").touch()
    assert sweep.main(argv(fake, "order: [4, 5]")) == 1
    shown = capsys.readouterr().out
    assert "cola, order-4: without seed 0, 1 (failed)." in shown
    assert "No setting has a value of every seed yet" in shown
    (fake / "out/stop").unlink()
    before = len(calls(fake))
    assert sweep.main(argv(fake, "order: [4, 5]")) == 0
    assert len(calls(fake)) == before + 4


def test_the_report_alone_and_the_commands_alone(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main(argv(fake, "order: [4, 5]", "--dry_run")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    script, *words = shlex.split(lines[1])[1:]
    asked = GLUE.schema.read(words)
    out = str(fake / "out/cola/order-4/seed-0")
    assert script == str(fake / "glue.py")
    assert asked == {
        **{"task_name": "cola", "model_name_or_path": "m", "variant": "gfsa", "order": 4},
        **{"seed": 0, "output_dir": out},
    }
    assert sweep.main(argv(fake, "order: [4, 5]", "--report_only")) == 1
    assert "No run has ended" in capsys.readouterr().out
    assert not (fake / "out").exists()


def test_the_best_is_named_with_a_warning_and_a_command_that_works(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space_text = "{order: [4, 5], w_0: [-0.02, 0.02]}"
    sweep.main(argv(fake, space_text, "--filter_learning_rate", "0.1"))
    text = (fake / "out/sweep.txt").read_text()
    assert "Best of 4: order 5, w_0 0.02; matthews correlation 0.6050, +0.1000 to none" in text
    assert "It was chosen among 4 by these rows and seeds, so its number is optimistic" in text
    words = shlex.split(report(fake)["best"]["confirm"])
    assert words[:2] == ["python", str(fake / "compare.py")]
    capsys.readouterr()
    assert compare.main([*words[2:], "--dry_run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 16
    assert {re.search(r"--seed (\d+)", line)[1] for line in lines} == set("23456789")
    assert sum("--order 5 --w_0 0.02" in line and "gfsa" in line for line in lines) == 8
    assert f"--output_dir {fake}/out-confirm/cola/order-5_w_0-0.02/seed-2" in lines[1]


def test_a_metric_of_an_own_module_is_measured_by_the_runs_and_compared(fake: Path) -> None:
    own = glue_stand_in.save_metric(fake)
    assert sweep.main(argv(fake, "order: [4, 5]", "--metric", own)) == 0
    found = report(fake)
    assert (found["metric"], found["greater_is_better"]) == ("eval_distance", False)
    assert found["best"]["setting"] == "order-4"
    recipe = recipes.load("recipe", str(fake / "out/cola/order-4/seed-0/settings.yaml"), "")
    assert recipe["metric"] == [own]
    # Runs that are asked for less are as good; a report needs the value's name alone.
    assert sweep.main(argv(fake, "order: [4, 5]")) == 0
    assert report(fake)["metric"] == "eval_matthews_correlation"
    assert sweep.main(argv(fake, "order: [4, 5]", "--metric", "distance", "--report_only")) == 0
    assert report(fake)["metric"] == "eval_distance"
    with pytest.raises(ValueError, match=r"seed-0.*metric: \[.*own.py'\] -> \['f1'\]"):
        sweep.main(argv(fake, "order: [4, 5]", "--metric", "f1"))


@pytest.mark.parametrize(
    ("text", "others", "message"),
    [
        (
            "ordr: [2]",
            (),
            r"flag ordr is \[2\]; allowed: .*learning_rate, .*order, .*w_K.* Did you mean order",
        ),
        ("4: [2]", (), r"flag 4 is \[2\]; allowed: "),
        ("p: [2.0]", (), r"flag p is \[2.0\]; allowed: .*w_0.* It is a setting of plat"),
        ("order: []", (), r"order is \[\]; allowed: one or more values"),
        ("order: {low: 2, high: 10}", (), r"a list with method grid.*--method optuna --trials"),
        ("order", (), r"space is 'order'; allowed: `flag: \[value, ...\]`"),
        ("order: [2]", ("--order", "3"), r"--order is 'given, and swept'"),
        ("order: [0]", (), r"Arm order-0: order is 0"),
        ("order: [2]", ("--seeds", "0"), r"seeds is 0; allowed: a number of at least 1"),
        ("order: [2]", ("--trials", "3"), r"trials is 3; allowed: a number with method optuna"),
        ("order: [2]", ("--method", "optuna"), r"trials is None; allowed: a number with method"),
        ("order: [2]", ("--metric", "recal"), r"metric is 'recal'; allowed: accuracy, f1, .*hub"),
        ("order: [2]", ("--task_name", "cora"), r"task_name is 'cora'; known tasks .*cola"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    fake: Path, text: str, others: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sweep.main(argv(fake, text, *others))
    assert not (fake / "out").exists()


@pytest.mark.parametrize(
    ("values", "name", "words"),
    [
        ({"order": 4, "w_0": -0.01}, "order-4_w_0--0.01", "--order 4 --w_0 -0.01"),
        ({"p": [1.5, 2.5]}, "p-1.5+2.5", "--p 1.5 2.5"),
        ({"layers": None, "order": 2}, "layers-default_order-2", "--order 2"),
        ({"trainable": []}, "trainable-none", "--trainable none"),
        ({"tokenizer_name": "a/b c"}, "tokenizer_name-a-b-c", "--tokenizer_name a/b c"),
        ({"pad_to_max_length": True}, "pad_to_max_length-true", "--pad_to_max_length true"),
    ],
)
def test_a_setting_is_an_arm(values: dict, name: str, words: str) -> None:
    arm = Space("gfsa", ()).arm(values)
    assert (arm.name, arm.setting) == (name, values)
    assert " ".join(recipes.argv(arm.flags)) == f"--variant gfsa {words}"


def test_long_names_are_cut_and_still_differ() -> None:
    settings = [{"layers": list(range(60)), "order": order} for order in (2, 3)]
    names = [Space("gfsa", ()).arm(setting).name for setting in settings]
    assert [len(name) for name in names] == [arms.LONGEST] * 2
    assert names[0][:-8] == names[1][:-8]
    assert names[0] != names[1]


def test_spaces_are_read_by_the_flags_types() -> None:
    space = arms.read_space("[{w_0: [0, 1e-3]}, {trainable: [w_0, [w_0, w_K]]}]", GLUE, "gfsa")
    expected = [{"w_0": 0.0}, {"w_0": 0.001}, {"trainable": ["w_0"]}, {"trainable": ["w_0", "w_K"]}]
    assert [arm.setting for arm in space.grid()] == expected


@pytest.mark.parametrize("path", sorted(arms.SPACES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_spaces_are_taken_by_the_script(path: Path, tmp_path: Path) -> None:
    first = path.stem.partition("-")[0]
    variant = first if first in ga.variant_configs() else "gfsa"
    assert f"--variant {variant} " in path.read_text()
    words = argv(tmp_path, str(path), "--dry_run")
    words[words.index("gfsa")] = variant
    words[1] = str(GLUE.path)
    assert sweep.main(words) == 0
