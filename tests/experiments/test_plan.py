"""Arms, spaces and common flags become runs; what cannot be compared is refused."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
from stepwise import made_job

import hf_graphattn as ga
from finetune.experiments import arms, plan
from finetune.experiments.arms import Script, families
from finetune.experiments.execute import Job
from finetune.experiments.plan import Experiment, greater_is_better, metric_name
from hf_graphattn.diagnostics.drawing import PRESETS

GLUE = Script(Path(plan.__file__).parents[1] / "glue.py")
COMMON = ("--model_name_or_path", "m", "--learning_rate", "1e-3")


def chosen(script: Script = GLUE, **options) -> list:
    given = {"variants": None, "arms": None, "baseline": None} | options
    own = dict(line.split(": ") for line in given.pop("variant_flags", []))
    flags = {name: script.schema.read(words.split()) for name, words in own.items()}
    return arms.chosen(argparse.Namespace(**given), script, flags)


def planned(folder: Path, *common: str, tasks=(), seeds: int = 2, **options) -> list[Job]:
    given = argparse.Namespace(task_names=tasks, first_seed=3, seeds=seeds, output_dir=folder)
    flags = plan.common_flags(GLUE, [*COMMON, *common])
    own = chosen(**options)
    return Experiment(given, GLUE, own, flags).jobs(own)


def test_the_grid_goes_seed_by_seed_and_pairs_differ_in_their_arm_alone(tmp_path: Path) -> None:
    jobs = planned(tmp_path, variants=["gfsa", "none"], tasks=("cola", "mrpc"))
    assert [job.name for job in jobs] == [
        f"{task}/{arm}/seed-{seed}"
        for seed in (3, 4)
        for task in ("cola", "mrpc")
        for arm in ("none", "gfsa")
    ]
    plain, filtered = (job.run.deciding() for job in jobs[:2])
    different = {n for n in plain | filtered if plain.get(n) != filtered.get(n)}
    own = {name for name, value in filtered.items() if name not in plain and value is not None}
    assert different == {"variant", *own}
    assert {"order", "w_K"} <= own
    assert (plain["seed"], plain["learning_rate"]) == (3, 1e-3)
    assert jobs[0].folder == tmp_path / "cola" / "none" / "seed-3"
    assert "output_dir" not in plain
    assert [job.main_metric for job in jobs[:3:2]] == ["eval_matthews_correlation", "eval_f1"]


def test_common_settings_of_a_variant_go_to_its_arms_alone(tmp_path: Path) -> None:
    common = ("--task_name", "cola", "--order", "5", "--p", "1.9", "--filter_learning_rate", "0.1")
    jobs = planned(tmp_path, *common, variants=["none", "gfsa", "plat", "laplacian"])
    found = {job.arm.name: job.run.deciding() for job in jobs[:4]}
    assert found["gfsa"]["order"] == 5
    assert found["plat"]["p"] in (1.9, [1.9])
    assert "order" not in found["plat"]
    rates = {name: settings["filter_learning_rate"] for name, settings in found.items()}
    assert rates == {"none": None, "gfsa": 0.1, "plat": None, "laplacian": None}


@pytest.mark.parametrize(
    ("flag", "value", "name"),
    [
        ("train_file", "data/cola.csv", "cola"),  # a task has that name, too
        ("dataset_name", "user/reviews", "reviews"),
        ("dataset_name", "data/reviews/", "reviews"),
    ],
)
def test_own_data_are_called_by_their_name(
    tmp_path: Path, flag: str, value: str, name: str
) -> None:
    job, *_ = planned(tmp_path, f"--{flag}", value, variants=["none", "gfsa"])
    assert (job.task, job.name, job.main_metric) == (name, "run/none/seed-3", None)


def test_a_recipe_gives_common_flags_and_the_arms_own_win(tmp_path: Path) -> None:
    recipe, other = tmp_path / "recipe.yaml", tmp_path / "other.yaml"
    recipe.write_text(
        "{variant: gfsa, order: 4, w_0: -0.01, seed: 9, output_dir: x, task_name: cola,"
        " learning_rate: 0.5, filter_learning_rate: 0.2}"
    )
    other.write_text("{variant: gfsa, order: 8, weight_decay: 0.3}")
    common = ["--model_name_or_path", "m", "--recipe", str(recipe), "--weight_decay", "0.1"]
    flags = plan.common_flags(GLUE, common)
    assert not flags.keys() & {"variant", "seed", "output_dir", "recipe"}
    lines = ["gfsa: --w_0 0.5", f"wide: --variant gfsa --recipe {other}"]
    own = chosen(variants=["none", "gfsa", "plat", "wide"], variant_flags=lines)
    options = argparse.Namespace(task_names=(), first_seed=3, seeds=1, output_dir=tmp_path)
    jobs = Experiment(options, GLUE, own, flags).jobs(own)
    found = {job.arm.name: job.run.deciding() for job in jobs}
    assert {(job.task, job.seed) for job in jobs} == {("cola", 3)}
    assert [found["gfsa"][name] for name in ("order", "w_0")] == [4, 0.5]
    assert [found["wide"][name] for name in ("order", "weight_decay")] == [8, 0.3]
    assert [found["none"][n] for n in ("weight_decay", "learning_rate")] == [0.1, 0.5]
    rates = [settings["filter_learning_rate"] for settings in found.values()]
    assert rates == [None, 0.2, None, 0.2]
    recipe.write_text("push_to_hub: true")
    with pytest.raises(ValueError, match=r"--push_to_hub is 'given'"):
        plan.common_flags(GLUE, common)


def test_arms_of_a_file_and_of_flags(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text(
        "plain: {variant: none}\ngfsa: {variant: null, order: 7}\nplat: {p: 2.0, trainable: p}\n"
    )
    lines = ["wide: --variant gfsa --order 9 --w_0 -1e-3", "plat: --eps 0.1"]
    names = ["plat", "plain", "gfsa", "wide"]
    jobs = planned(
        *(tmp_path, "--task_name", "cola"), variants=names, arms=str(path), variant_flags=lines
    )
    found = {job.arm.name: job.run.deciding() for job in jobs[:4]}
    assert list(found) == ["plain", "plat", "gfsa", "wide"]  # the baseline first
    assert (found["plat"]["trainable"], found["plat"]["eps"]) == (["p"], 0.1)
    assert (found["gfsa"]["order"], found["wide"]["order"], found["wide"]["w_0"]) == (7, 9, -0.001)


@pytest.mark.parametrize(
    ("lines", "baseline", "names"),
    [
        (["gfsa: --order 4"], None, ["none", "gfsa"]),
        (["deep: --variant gfsa --order 4", "plat: --p 1.5"], None, ["none", "deep", "plat"]),
        (["mine: --variant none --weight_decay 0.1", "gfsa: --order 4"], None, ["mine", "gfsa"]),
        (["mine: --variant none", "gfsa: --order 4"], "none", ["none", "mine", "gfsa"]),
        (["gfsa: --order 4", "plat: --p 1.5"], "plat", ["plat", "gfsa"]),
        ([], None, ["none", *ga.variant_configs()]),
    ],
)
def test_arms_named_by_their_flags_alone_are_all_there_are(
    lines: list[str], baseline: str | None, names: list[str]
) -> None:
    assert [arm.name for arm in chosen(variant_flags=lines, baseline=baseline)] == names


@pytest.mark.parametrize(
    ("options", "common", "message"),
    [
        ({"variants": ["none", "gfas"]}, (), r"variants is 'gfas'; allowed: none, .*gfsa"),
        ({"variants": ["none"]}, (), r"two or more different names"),
        ({"variants": ["none", "none"]}, (), r"two or more different names"),
        ({"variants": ["none", "gfsa"], "baseline": "plat"}, (), r"baseline is 'plat'"),
        ({"variant_flags": ["heat: --step 1"]}, (), r"variants is 'heat'.*'heat: --variant"),
        ({"arms": "missing.yaml"}, (), r"arms is 'missing.yaml'; allowed: an existing YAML"),
        ({}, ("--seed", "3"), r"--seed is 'given'; allowed: flags that all runs can have"),
        ({}, ("--overwrite_output_dir",), r"--overwrite_output_dir is 'given'"),
        ({}, ("--epochs", "3"), r"unrecognized arguments: --epochs 3"),
        ({}, ("--lr_scheduler_kwargs", '{"num_cycles": 1}'), r"Arm none: lr_scheduler_kwargs of l"),
        (
            {"variants": ["none", "plat"], "variant_flags": ["plat: --filter_learning_rate 0.1"]},
            (),
            r"Arm plat: filter_learning_rate with variant plat is 0.1.*--trainable",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, options: dict, common: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, "--task_name", "cola", *common, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("none: {order: [}", "arms is .*arms.yaml'; allowed: valid YAML"),
        ("[none, gfsa]", "the file is .*allowed: `name: {flag: value}`"),
        (
            "none: {}\ngfsa: {ordr: 2}",
            r"arm gfsa, flag ordr is .* Did you mean order",
        ),
        ("none: {}\na/b: {variant: gfsa}", "an arm's name is 'a/b'"),
        ("none: {}\ndeep: {variant: null}", "variants is 'deep'; allowed: none, deep"),
    ],
)
def test_a_file_that_holds_no_arms_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "arms.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        chosen(arms=str(tmp_path / "arms.yaml"))


def test_an_unknown_script_is_refused() -> None:
    with pytest.raises(ValueError, match=r"script is 'train.py'; allowed: .*finetune/glue.py"):
        Script(Path("train.py"))


@pytest.mark.parametrize("path", sorted((GLUE.path.parent / "arms").glob("*.yaml")))
@pytest.mark.parametrize("family", families())
def test_shipped_arms_are_taken_by_every_script(path: Path, family: str) -> None:
    script = Script(GLUE.path.with_name(f"{family}.py"))
    for arm in chosen(script, arms=str(path)):
        run = script.run(arm, {"task_name": "demo", "model_name_or_path": "m"})
        assert run.deciding()["variant"] == arm.flags["variant"]
        assert arm.name in (arm.flags["variant"], *PRESETS)


def test_the_child_gets_one_file_that_its_script_reads_as_asked(tmp_path: Path) -> None:
    lines = ["gfsa: --w_0 -1e-5 --trainable w_0 w_K --layers 0 -1", "plat: --p 1.5 2.5"]
    common = ("--task_name", "cola", "--mixed_precision", "no", "--pad_to_max_length")
    names = ["none", "gfsa", "plat"]
    for job in planned(tmp_path, *common, seeds=1, variants=names, variant_flags=lines):
        job.folder.mkdir(parents=True)
        job.write_settings()
        _, script, *words = job.command()
        assert (script, words[0], len(words)) == (str(GLUE.path), "--recipe", 2)
        for argv in (words, job.command(in_full=True)[2:]):
            found = GLUE.schema.parse(argv)
            assert found == job.run
            assert found.train.output_dir == str(job.folder)


# Which number of a run is compared, and which way it is better: its results have both.
MNLI = {
    **{"eval_accuracy_mm": 0.5, "eval_loss": 0.7, "eval_tokens": 90, "train_loss": 0.1},
    **{"test_accuracy_mm": 0.4, "best": {"metric": "eval_loss"}, "settings": {}},
    "greater_is_better": {"eval_accuracy_mm": True, "eval_loss": False, "eval_f1": True},
}
JOB = made_job(Path("glue.py"), Path("folder"), "m", 0)


def test_the_main_metric_is_the_tasks_or_of_own_files_the_runs() -> None:
    of_task = replace(JOB, main_metric="eval_accuracy_mm")
    assert metric_name(None, of_task, MNLI) == "eval_accuracy_mm"
    assert metric_name(None, JOB, MNLI) == "eval_loss"


def test_counts_and_seconds_are_no_metrics() -> None:
    for name, key in (
        ("loss", "eval_loss"),
        ("eval_accuracy_mm", "eval_accuracy_mm"),
        ("test_accuracy_mm", "test_accuracy_mm"),
    ):
        assert metric_name(name, JOB, MNLI) == key
    for name in ("tokens", "train_loss", "f1"):
        with pytest.raises(ValueError, match=rf"metric is '{name}'; allowed: eval_accuracy_mm"):
            metric_name(name, JOB, MNLI)
    assert greater_is_better("test_accuracy_mm", MNLI) is True
    assert greater_is_better("loss", MNLI) is False


def test_a_silent_metrics_direction_is_that_of_the_flag() -> None:
    silent = {"greater_is_better": {"eval_own": None}}
    with pytest.raises(ValueError, match=r"--metric_for_best_model own --greater_is_better true"):
        greater_is_better("own", silent | {"settings": {}})
    flags = {"metric_for_best_model": "own", "greater_is_better": False}
    assert greater_is_better("eval_own", silent | {"settings": flags}) is False
