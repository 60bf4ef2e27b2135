"""The page of evidence: written from its numbers alone, which are recomputed here."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import glue_stand_in
import pytest
import tiny_task

from finetune import evidence, sweep
from finetune.experiments import analyze, report
from finetune.experiments.analyze import ArmResult, TaskResult, against_baseline
from finetune.studies import ROOT, look, page
from finetune.studies.run import Study, studies

DOCS = ROOT / "docs"
DONE = [study for study in studies() if (DOCS / "evidence" / f"{study.name}.json").is_file()]


@pytest.mark.parametrize(
    "study",
    [pytest.param(x, marks=pytest.mark.full if x in DONE[1:] else ()) for x in studies()],
    ids=lambda study: study.name,
)
def test_a_study_is_an_experiment_that_its_script_takes(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "input.txt"
    text.write_text("First Citizen:\n")
    names = [each.name for each in studies()]
    words = ["--glue", "some/glue", "--ptb", "some/ptb", "--bert", "some/bert"]
    words += ["--shakespeare", str(text), "--runs", str(tmp_path)]
    options = evidence.parser(names).parse_args(words)
    monkeypatch.chdir(ROOT)
    experiment = study.experiment(options)
    grid = experiment.space.grid() if experiment.space else []
    jobs = experiment.jobs([*experiment.arms, *grid])
    arms = {job.arm.name for job in jobs}
    assert len(jobs) == study.seeds * len(arms)
    assert len(arms) > 1
    assert "none" in arms
    for job in jobs:  # what a study did does not change with the scripts' own rate
        rate = job.run.filter.filter_learning_rate
        assert (rate is not None) == job.run.learns_scalars()


def test_the_page_is_written_again_without_any_runs(tmp_path: Path) -> None:
    """From the committed numbers and evidence.yaml, byte for byte, and without the old page."""
    shutil.copytree(DOCS / "evidence", tmp_path / "docs" / "evidence")
    words = ["--report_only", "--runs", str(tmp_path / "runs"), "--docs", str(tmp_path / "docs")]
    assert evidence.main(words) == 0
    assert (tmp_path / "docs/evidence.md").read_bytes() == (DOCS / "evidence.md").read_bytes()
    for path in (DOCS / "evidence").iterdir():
        assert (tmp_path / "docs/evidence" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["choosing.md", "known.md"])
def test_a_page_quotes_what_was_measured(name: str) -> None:
    """Each difference on it, a number with a sign, stands in README or on a page of the studies.

    Those of the table of the field, in per cent, are compared with the studies by test_readme.py.
    """
    lines = (DOCS / name).read_text("utf-8").splitlines()
    page = "\n".join(line for line in lines if not line.startswith(("| All on", "| The same")))
    quoted = re.findall(r"(?<![\w.])[+-]\d+\.\d+", page)
    pages = (ROOT / "README.md", DOCS / "evidence.md", *(DOCS / "evidence").glob("*.md"))
    known = [path.read_text("utf-8") for path in pages]
    assert len(quoted) > 10
    assert [number for number in quoted if not any(number in text for text in known)] == []


@pytest.mark.parametrize("study", DONE, ids=lambda study: study.name)
def test_the_numbers_of_the_page_are_what_their_values_give(study: Study) -> None:
    """Differences and p, as the runs' report kept them; the page computes them again."""
    numbers = json.loads((DOCS / "evidence" / f"{study.name}.json").read_text("utf-8"))
    found = analyze.results_of(numbers)
    kept = numbers.get("tasks") or [{"arms": [numbers["plain"], *numbers["settings"]]}]
    for task, was in zip(found, kept, strict=True):
        for arm, then in zip(task.arms[1:], was["arms"][1:], strict=True):
            if arm.paired is None:  # a study that is not finished
                assert then["paired"] is None
                continue
            differences = {
                int(seed): value for seed, value in then["paired"]["differences"].items()
            }
            assert arm.paired.differences == pytest.approx(differences, abs=1e-12)
            p = (then["paired"]["p"], then["paired"]["corrected_p"])
            assert (arm.paired.p, arm.paired.corrected_p) == pytest.approx(p)
            assert arm.paired.better == then["paired"]["better"]
    assert numbers["runs"] == sum(len(arm.values) for task in found for arm in task.arms)


def row(name: str, title: str) -> Study:
    reported = [{"paper": "GFSA", "setting": "larger", "figure": "1.0"}]
    common = {"script": "lm.py", "seeds": 8, "flags": {}, "arms": "papers", "variants": ["none"]}
    effects = {"plat": [34.1, 33.5, "WikiText"], "laplacian": "drawn"}
    return Study(
        name=name, title=title, paper="Theirs.", reported=reported, effects=effects, **common
    )


def test_no_runs_are_counted_twice() -> None:
    """Arms of one task with the same values have one row in the table at the head."""
    seen: dict[tuple, str] = {}
    for study in (study for study in DONE if study.space is None):
        numbers = json.loads((DOCS / "evidence" / f"{study.name}.json").read_text("utf-8"))
        for task in analyze.results_of(numbers):
            for arm in page.counted(task, study.again):
                pair = {frozenset((task.arms[0].name, arm.name))}
                values = (abs(round(d, 4)) for d in arm.paired.differences.values())
                key = (task.task, *pair, *list(values)[:3])
                assert key not in seen, (study.name, seen.get(key))
                seen[key] = study.name


def task_of(*arms: list[float]) -> TaskResult:
    named = [ArmResult(f"arm{i}", dict(enumerate(values))) for i, values in enumerate(arms)]
    return against_baseline([TaskResult("demo", "eval_perplexity", False, named)])[0]


def test_an_effect_counts_if_it_is_larger_than_the_margin() -> None:
    """1 % of a perplexity: half of it is shown, and no more."""
    plain = [100.0, 101.0, 102.0, 103.0, 104.0, 105.0]
    for share, verdict in ((0.995, "better, within the margin"), (0.98, "better"), (1.02, "worse")):
        task = task_of(plain, [share * value for value in plain])
        assert page.verdict(task, task.arms[1].paired) == verdict
    task = task_of([0.0] * 6, plain)  # of nothing, any change is larger than the margin
    assert page.verdict(task, task.arms[1].paired) == "worse"
    shown = "\n".join(page.lines([(row("study", "Of nothing"), task)]))
    assert "| arm1 | 6 | - | - to - | - | - | worse |" in shown


def test_signal_to_noise_by_hand() -> None:
    task = task_of([1.0, 2.0, 3.0], [3.0, 4.0, 6.0], [1.0, 2.5, 3.0])
    # Means 2, 13/3 and 13/6; plain's deviation 1; of the differences 1/sqrt(3) and 0.5/sqrt(3).
    alone, paired = page.signal_to_noise(task)
    assert alone == pytest.approx(7 / 3)
    assert paired == pytest.approx(7 / 3 * 3**0.5 / 0.75)
    for same in (task_of([1.0], [2.0]), task_of([1.0, 1.5], [2.0, 2.5])):
        assert page.signal_to_noise(same) is None


def test_the_page_shows_a_sweep_and_what_was_kept_before(tmp_path: Path) -> None:
    fake = glue_stand_in.save(tmp_path)
    sweep.main(glue_stand_in.argv(fake, "order: [4, 5, 7]"))
    docs = tmp_path / "docs"
    page.keep("out", fake / "out", docs)
    shutil.copy(DOCS / "evidence" / "char.json", docs / "evidence" / "char.json")
    swept = replace(row("out", "Which K?"), space="orders")
    studies = [swept, row("char", "Kept"), row("other", "Never run")]
    summary = page.write(studies, docs).read_text("utf-8")
    text = (docs / "evidence" / "out.md").read_text("utf-8")
    table = (fake / "out" / "sweep.md").read_text("utf-8").split("\n\n")[0]
    best = "Best of 3: order 5; matthews correlation 0.6050, +0.1000 to none (mean over 2 seeds)."
    assert text.startswith("# Which K?\n")
    assert f"\n\n{table}\n\n- {best}\n- It was chosen among 3" in text
    assert "![Which K?](out.png)\n\n| reported | setting | figure |\n" in text
    assert "| GFSA | larger | 1.0 |\n\nThe papers: Theirs.\n" in text
    kept = (docs / "evidence" / "char.md").read_text("utf-8")
    assert kept.startswith("# Kept\n")
    assert "| task | arm | seeds |" in kept
    assert "\n- [Which K?](evidence/out.md)\n" in summary
    assert "\n## Not run yet\n\n- Never run\n" in summary
    assert not (docs / "evidence" / "other.md").exists()
    numbers = json.loads((docs / "evidence" / "out.json").read_text("utf-8"))
    assert numbers["settings"][1]["values"] == pytest.approx({"0": 0.6, "1": 0.61})
    assert str(tmp_path) not in text + json.dumps(numbers)
    assert (docs / "evidence" / "out.png").stat().st_size > 1000


def test_what_is_published_of_a_comparison_has_no_path_of_the_machine() -> None:
    """Of each arm's flags those that not all arms have."""
    common = {"dataset_name": "/home/somebody/glue"}
    arms = [
        ArmResult("none", {0: 0.5}, {**common, "variant": "none"}),
        ArmResult("gfsa", {0: 0.6}, {**common, "variant": "gfsa", "trainable": ["w_0", "w_K"]}),
    ]
    (task,) = against_baseline([TaskResult("cola", "eval_accuracy", True, arms)])
    numbers = analyze.as_json([task]) | {"command": ["--output_dir", "/home/somebody/runs"]}
    found = page.published(numbers)
    assert "somebody" not in json.dumps(found)
    (again,) = analyze.results_of(json.loads(json.dumps(found)))
    assert report.table([again]) == report.table([task])
    assert (
        report.arms_as_text(again.arms)
        == report.arms_as_text(task.arms)
        == ("Arms: none: --variant none; gfsa: --variant gfsa --trainable w_0 w_K.")
    )


def test_a_look_inside_is_compared_over_its_seeds(tmp_path: Path) -> None:
    """Eight seeds: gfsa's tokens are less alike by the cosine in all, plat's differ either way."""

    def arm(cosine: float) -> dict[str, list[float]]:
        return {"cosine": [0.1, cosine], "high_to_dc": [3.0, 1.0], "effective_rank": [20.0, 9.0]}

    seeds = {
        str(seed): {
            "none": arm(0.6),
            "gfsa": arm(0.5 - 0.01 * seed),
            "plat": arm(0.6 + 0.01 * (-1) ** seed),
        }
        for seed in range(8)
    }
    found = {"sequences": 32, "figures": ["cosine_similarity"], "before": arm(0.3), "seeds": seeds}
    (tmp_path / "study-depth.json").write_text(json.dumps(found))
    text = "\n".join(look.section("study", tmp_path))
    assert "32 rows of the validation set, seeds 0, 1, 2" in text
    assert "| cosine similarity of tokens: before | 0.100 | 0.300 | - | - | - |" in text
    assert "| cosine similarity of tokens: none | 0.100 | 0.600 | - | - | - |" in text
    assert "| cosine similarity of tokens: gfsa | 0.100 | 0.465 | -0.135 | -0.1" in text
    assert " | 0.0156 |" in text  # 2/2^8, of two arms
    assert "Shown here: tokens are less alike in gfsa by cosine similarity of tokens." in text
    for seed in seeds.values():
        seed["gfsa"] = seed["none"]
    (tmp_path / "study-depth.json").write_text(json.dumps(found))
    text = "\n".join(look.section("study", tmp_path))
    assert "Shown here: no difference in any of these." in text
    assert look.section("other", tmp_path) == []


def test_the_look_inside_reads_no_more_than_the_models_can(tmp_path: Path) -> None:
    tiny_task.save_bert(tmp_path / "model")
    runs = {3: dict.fromkeys(("none", "gfsa"), tmp_path / "model")}
    look.look("study", None, runs, ["the red fox " * 99, "the fox"], tmp_path / "docs")
    found = json.loads((tmp_path / "docs" / "study-depth.json").read_text("utf-8"))
    arms = found["seeds"]["3"]
    assert arms["none"] == arms["gfsa"]
    assert len(found["before"]["cosine"]) == len(arms["none"]["cosine"]) == 3  # two layers
    text = "\n".join(look.section("study", tmp_path / "docs"))
    assert "| effective rank: gfsa |" in text
    assert " | +0.000 | - | 1 |" in text  # one seed has no interval
    for figure in found["figures"]:
        assert (tmp_path / "docs" / f"study-{figure}.png").is_file()
