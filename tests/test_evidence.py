"""The page of evidence: its rows are calls that the scripts take; sweeps and sections that stay."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import glue_stand_in
import pytest
import tiny_task

from finetune import compare, evidence, sweep
from finetune.comparison import depth, depth_page, evidence_page


@pytest.mark.parametrize("study", evidence.studies(), ids=lambda study: study.name)
def test_a_study_is_a_call_that_its_script_takes(
    study: evidence.Comparison | evidence.Sensitivity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = argparse.Namespace(
        glue="some/glue", ptb="some/ptb", bert="some/bert", threads=1, runs=tmp_path
    )
    given.report_only, given.docs = False, tmp_path
    for module in (compare, sweep):
        main = module.main
        monkeypatch.setattr(module, "main", lambda argv, main=main: main([*argv, "--dry_run"]))
    monkeypatch.chdir(evidence.ROOT)
    assert study.run(given) == 0
    runs = capsys.readouterr().out.splitlines()
    arms = {run.partition("--output_dir ")[2].split("/")[-2] for run in runs}
    assert len(runs) == study.seeds * len(arms)
    assert len(arms) > 2
    assert "none" in arms


def test_the_page_shows_a_sweep_and_keeps_what_it_has_no_runs_of(tmp_path: Path) -> None:
    fake = glue_stand_in.save(tmp_path)
    sweep.main(glue_stand_in.argv(fake, "order: [4, 5, 7]"))
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "evidence.md").write_text("# Old head\n\n## Kept\n\nAn older table.\n\n## Gone\n\nx\n")
    names = {"out": "Which K?", "kept": "Kept", "other": "Never run"}
    studies = [
        SimpleNamespace(name=name, title=title, paper="Theirs.", reported=[])
        for name, title in names.items()
    ]
    for _ in range(2):  # the second time from its own page
        text = evidence_page.write(studies, fake, docs).read_text("utf-8")
        table = (fake / "out" / "sweep.md").read_text("utf-8").split("\n\n")[0]
        best = (
            "Best of 3: order 5; matthews correlation 0.6050, +0.1000 to none (mean over 2 seeds)."
        )
        assert f"## Which K?\n\n{table}\n\n- {best}\n- It was chosen among 3" in text
        assert text.endswith("\n## Kept\n\nAn older table.\n")
        assert "Gone" not in text
        assert "Never run" not in text
    numbers = json.loads((docs / "evidence" / "out.json").read_text("utf-8"))
    assert numbers["settings"][1]["values"] == pytest.approx({"0": 0.6, "1": 0.61})
    assert str(tmp_path) not in text + json.dumps(numbers)
    assert (docs / "evidence" / "out.png").stat().st_size > 1000


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
    text = "\n".join(depth_page.section("study", tmp_path))
    assert "32 texts of the validation set, seeds 0, 1, 2" in text
    assert "| cosine similarity of tokens: before | 0.100 | 0.300 | - | - | - |" in text
    assert "| cosine similarity of tokens: none | 0.100 | 0.600 | - | - | - |" in text
    assert "| cosine similarity of tokens: gfsa | 0.100 | 0.465 | -0.135 | -0.1" in text
    assert " | 0.0156 |" in text  # 2/2^8, of two arms
    assert "Shown here: tokens are less alike in gfsa by cosine similarity of tokens." in text
    for seed in seeds.values():
        seed["gfsa"] = seed["none"]
    (tmp_path / "study-depth.json").write_text(json.dumps(found))
    text = "\n".join(depth_page.section("study", tmp_path))
    assert "Shown here: no difference in any of these." in text
    assert depth_page.section("other", tmp_path) == []


def test_the_look_inside_reads_no_more_than_the_models_can(tmp_path: Path) -> None:
    tiny_task.save_bert(tmp_path / "model")
    runs = {3: dict.fromkeys(("none", "gfsa"), tmp_path / "model")}
    depth.look("study", None, runs, ["the red fox " * 99, "the fox"], tmp_path / "docs")
    found = json.loads((tmp_path / "docs" / "study-depth.json").read_text("utf-8"))
    arms = found["seeds"]["3"]
    assert arms["none"] == arms["gfsa"]
    assert len(found["before"]["cosine"]) == len(arms["none"]["cosine"]) == 3  # two layers
    text = "\n".join(depth_page.section("study", tmp_path / "docs"))
    assert "| effective rank: gfsa |" in text
    assert " | +0.000 | - | 1 |" in text  # one seed has no interval
    for figure in found["figures"]:
        assert (tmp_path / "docs" / f"study-{figure}.png").is_file()
