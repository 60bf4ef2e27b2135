"""The search by Optuna with a stand-in for the script: continued, and repeated where it failed."""

from __future__ import annotations

from pathlib import Path

import glue_stand_in
import pytest
from glue_stand_in import argv, calls, report

from finetune import sweep

SPACE = "{order: {low: 2, high: 10}, w_0: {low: -0.1, high: 0.1}, layers: [null, [0, -1]]}"
pytest.importorskip("optuna")


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    return glue_stand_in.save(tmp_path)


def search(folder: Path, trials: int, *others: str, text: str = SPACE) -> int:
    words = argv(folder, text, "--method", "optuna", "--trials", str(trials), *others)
    return sweep.main(words)


def names(folder: Path) -> list[str]:
    return list(dict.fromkeys(line.split()[0] for line in calls(folder)))


def test_a_trial_is_a_setting_with_several_seeds(fake: Path) -> None:
    assert search(fake, 4) == 0
    found = report(fake)
    assert names(fake)[0] == "none"
    assert len(calls(fake)) == 2 * 5
    flags = [setting["flags"] for setting in found["settings"]]
    assert [list(flag) for flag in flags] == [["order", "w_0", "layers"]] * 4
    assert all(type(flag["order"]) is int and 2 <= flag["order"] <= 10 for flag in flags)
    assert all(len(f"{abs(flag['w_0']):.10g}".lstrip("0.")) <= 4 for flag in flags)
    assert all(flag["layers"] in (None, [0, -1]) for flag in flags)
    means = [setting["mean"] for setting in found["settings"]]
    assert means == sorted(means, reverse=True)  # ranked
    assert found["best"]["setting"] == found["settings"][0]["setting"]


def test_a_search_goes_on_as_if_it_had_not_been_stopped(
    fake: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also after the ten trials that TPE draws blindly, and where several run together."""
    other = glue_stand_in.save(tmp_path_factory.mktemp("other"))
    alone = ("--seeds", "1", "--no_baseline", "--processes", "4")
    search(other, 14, *alone)
    search(fake, 3, *alone)
    search(fake, 14, *alone)
    assert sorted(names(fake)) == sorted(names(other))
    before = calls(fake)
    search(fake, 14, *alone)
    assert calls(fake) == before
    (fake / "out/calls.txt").unlink()
    assert search(fake, 99, *alone, "--report_only") == 0  # what was tried, of whatever number
    assert len(report(fake)["settings"]) == len(names(other))
    assert calls(fake) == []


def test_values_lead_the_search_in_the_metrics_direction(fake: Path) -> None:
    """The stand-in is best at order 5; of its distance, the same number, less is better."""
    space, alone = "order: {low: 2, high: 200}", ("--seeds", "1", "--no_baseline")
    assert search(fake, 20, *alone, text=space) == 0
    orders = [int(name.removeprefix("order-")) for name in names(fake)]
    first, last = orders[:10], orders[10:]
    assert sum(last) / len(last) < sum(first) / len(first)
    own = glue_stand_in.save_metric(fake)
    for path in (fake / "out").iterdir():
        path.rename(fake / path.name) if path.name != "cola" else path.rename(fake / "before")
    assert search(fake, 20, *alone, "--metric", own, text=space) == 0
    away = [int(name.removeprefix("order-")) for name in names(fake)]
    assert away[:10] == first
    assert sum(away[10:]) / len(away[10:]) > sum(first) / len(first)
    means = [setting["mean"] for setting in report(fake)["settings"]]
    assert means == sorted(means)


@pytest.mark.parametrize("error", ["stopped", "error: order is 4; allowed: others."])
def test_what_failed_is_tried_again(fake: Path, error: str) -> None:
    """A setting that the script refuses does not stop the others: plain attention has ended."""
    script = fake / "glue.py"
    script.write_text(script.read_text().replace("stopped", error))
    (fake / "out").mkdir()
    (fake / "out/stop").touch()
    assert search(fake, 2, "--seeds", "1") == 1
    failed = names(fake)
    assert len(failed) == 3
    (fake / "out/stop").unlink()
    assert search(fake, 2, "--seeds", "1") == 0
    assert names(fake) == failed
    assert [setting["missing"] for setting in report(fake)["settings"]] == [{}, {}]


def test_what_was_tried_can_be_looked_at(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(fake, 2, "--dry_run", "--no_baseline") == 0
    assert capsys.readouterr().out.split()[:3] == ["#", "and", "more,"]
    assert search(fake, 2, "--report_only", "--no_baseline") == 0
    assert "No run has ended" in capsys.readouterr().out
    assert not (fake / "out").exists()


def test_a_metric_that_does_not_say_its_direction_needs_one(fake: Path) -> None:
    own = glue_stand_in.save_metric(fake, "")
    with pytest.raises(ValueError, match=r"greater_is_better is None.*--metric_for_best_model"):
        search(fake, 1, "--metric", own)
    direction = ("--metric_for_best_model", "distance", "--greater_is_better", "true")
    assert search(fake, 2, "--metric", own, *direction, "--no_baseline", "--dry_run") == 0
    assert not (fake / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{order: [2]}, {w_0: [0]}]", r"space is 'a list'; allowed: one space with optuna"),
        ("order: {low: 0, high: 3}", r"Arm order-0: order is 0"),
        ("order: {low: 2.5, high: 9}", r"order is .*allowed: low below high.*whole number"),
        ("w_0: {low: 1, high: -1}", r"w_0 is .*allowed: low below high"),
        ("w_0: {low: 0, high: .inf}", r"w_0 is .*these are no numbers"),
        ("w_0: {low: null, high: 1}", r"w_0 is .*allowed: low below high"),
        ("w_0: {low: 0, high: 1, log: true}", r"w_0 is .*low > 0"),
        ("w_0: {min: 0, max: 1}", r"w_0 is \{'min'.*Write \{low: 1, high: 2\}"),
        ("trainable: {low: 0, high: 1}", r"these are no numbers"),
    ],
)
def test_what_cannot_be_searched_is_refused(fake: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(fake, 1, "--no_baseline", text=text)
    assert not (fake / "out").exists()
