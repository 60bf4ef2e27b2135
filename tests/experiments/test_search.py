"""The search by Optuna with a stand-in for the script: resumed, and repeated where it failed."""

from __future__ import annotations

import sys
from pathlib import Path

import glue_stand_in
import pytest
from glue_stand_in import argv, calls, report

from finetune import sweep
from finetune.engine import locks
from finetune.experiments import execute

SPACE = "{order: {low: 2, high: 10}, w_0: {low: -0.1, high: 0.1}, layers: [null, [0, -1]]}"


@pytest.fixture(autouse=True)
def optuna():
    return pytest.importorskip("optuna")


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    return glue_stand_in.save(tmp_path)


def search(folder: Path, trials: int, *others: str, text: str = SPACE) -> int:
    words = argv(folder, text, "--method", "optuna", "--trials", str(trials), *others)
    return sweep.main(words)


def storage_of(folder: Path, optuna):
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "out/optuna/journal.log"))
    return optuna.storages.JournalStorage(backend)


def study_name(folder: Path, optuna) -> str:
    (name,) = optuna.get_all_study_names(storage_of(folder, optuna))
    return name


def trials_of(folder: Path, optuna) -> list:
    name, storage = study_name(folder, optuna), storage_of(folder, optuna)
    return optuna.load_study(study_name=name, storage=storage).trials


def names(folder: Path) -> list[str]:
    return list(dict.fromkeys(line.split()[0] for line in calls(folder)))


def test_a_trial_is_the_mean_over_the_seeds(fake: Path, optuna) -> None:
    assert search(fake, 4) == 0
    found, trials = report(fake), trials_of(fake, optuna)
    assert sorted(trial.value for trial in trials) == sorted(
        setting["mean"] for setting in found["settings"]
    )
    assert names(fake)[0] == "none"
    assert len(calls(fake)) == 2 * 5
    flags = [setting["flags"] for setting in found["settings"]]
    assert all(type(flag["order"]) is int and 2 <= flag["order"] <= 10 for flag in flags)
    assert all(len(f"{abs(flag['w_0']):.10g}".lstrip("0.")) <= 4 for flag in flags)
    assert all(flag["layers"] in (None, [0, -1]) for flag in flags)
    means = [setting["mean"] for setting in found["settings"]]
    assert means == sorted(means, reverse=True)  # ranked
    assert found["best"]["setting"] == found["settings"][0]["setting"]


@pytest.mark.full
def test_a_search_goes_on_as_if_it_had_not_been_stopped(
    fake: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also after the ten trials that TPE draws blindly."""
    other = glue_stand_in.save(tmp_path_factory.mktemp("other"))
    alone = ("--seeds", "1", "--no_baseline")
    search(other, 12, *alone)
    search(fake, 3, *alone)
    search(fake, 12, *alone)
    assert names(fake) == names(other)
    before = calls(fake)
    search(fake, 12, *alone)
    assert calls(fake) == before


def test_failed_and_killed_trials_are_queued_again(
    fake: Path,
    optuna,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (fake / "out").mkdir()
    (fake / "out/stop").touch()
    assert search(fake, 1, "--seeds", "1") == 1
    (first,) = trials_of(fake, optuna)
    assert first.state == optuna.trial.TrialState.FAIL
    (fake / "out/stop").unlink()

    do_all = execute.execute

    def killed(wanted, *args, **others):
        if "/none/" not in wanted[0].name:
            raise KeyboardInterrupt
        return do_all(wanted, *args, **others)

    with monkeypatch.context() as patched:
        patched.setattr(execute, "execute", killed)
        with pytest.raises(KeyboardInterrupt):
            search(fake, 2, "--seeds", "1")
    assert search(fake, 2, "--seeds", "1") == 0
    trials = trials_of(fake, optuna)
    assert [t.state.name for t in trials] == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    assert trials[0].params == trials[1].params == trials[2].params != trials[3].params


def test_a_metric_of_an_own_module_is_searched_in_its_direction(fake: Path, optuna) -> None:
    own = glue_stand_in.save_metric(fake)
    assert search(fake, 3, "--metric", own) == 0
    trials = trials_of(fake, optuna)
    means = [setting["mean"] for setting in report(fake)["settings"]]
    assert sorted(trial.value for trial in trials) == means  # the least first


def test_a_metric_that_does_not_say_its_direction_needs_one(fake: Path) -> None:
    own = glue_stand_in.save_metric(fake, "")
    with pytest.raises(ValueError, match=r"greater_is_better is None.*--metric_for_best_model"):
        search(fake, 1, "--metric", own)
    said = ("--metric_for_best_model", "distance", "--greater_is_better", "true")
    assert search(fake, 2, "--metric", own, *said, "--no_baseline", "--dry_run") == 0


def test_a_second_search_in_the_folder_is_refused(fake: Path) -> None:
    refused = pytest.raises(ValueError, match=r"one search at a time in a folder.*--processes")
    with locks.held(fake / "out/optuna"), refused:
        search(fake, 1, "--no_baseline")
    assert search(fake, 1, "--no_baseline") == 0


def test_what_was_tried_can_be_looked_at(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(fake, 2, "--dry_run", "--no_baseline") == 0
    assert capsys.readouterr().out.split()[:3] == ["#", "and", "more,"]
    assert search(fake, 2, "--report_only", "--no_baseline") == 0
    assert "No run has ended" in capsys.readouterr().out
    assert not (fake / "out").exists()
    search(fake, 2, "--no_baseline", "--processes", "4")  # both trials together
    before = calls(fake)
    capsys.readouterr()
    assert search(fake, 2, "--report_only", "--no_baseline") == 0
    assert "Best of 2: order" in capsys.readouterr().out
    assert calls(fake) == before


@pytest.mark.parametrize(
    ("text", "others", "message"),
    [
        ("[{order: [2]}, {w_0: [0]}]", (), r"space is 'a list'; allowed: one space with optuna"),
        ("order: {low: 0, high: 3}", (), r"Arm order-0: order is 0"),
        ("order: [2]", ("--metric", "f1"), r"metric is 'f1'; allowed: eval_matthews"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    fake: Path,
    text: str,
    others: tuple[str, ...],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        search(fake, 1, "--no_baseline", *others, text=text)


def test_own_files_need_a_metric(fake: Path) -> None:
    words = argv(fake, SPACE, "--method", "optuna", "--trials", "1", "--train_file", "a.csv")
    i = words.index("--task_name")
    with pytest.raises(ValueError, match=r"metric is None; allowed: a name with own files"):
        sweep.main([*words[:i], *words[i + 2 :]])


def test_without_optuna_the_error_says_how_to_get_it(
    fake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match="pip install optuna"):
        search(fake, 1)
    assert not (fake / "out").exists()
