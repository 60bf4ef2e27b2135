"""What a terminal shows of a run and what a file gets: bars there alone, lines in both."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from glue_runs import flags
from tiny_run import trainer

from finetune import glue, terminal
from finetune.engine import display

STEPS = ("--per_device_train_batch_size", "2", "--num_train_epochs", "2")  # 5 an epoch


@pytest.mark.parametrize(
    ("is_terminal", "disabled", "expected"),
    [(True, None, True), (True, "0", True), (True, "1", False), (False, None, False)],
)
def test_bars_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, disabled: str | None, expected: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    if disabled is not None:
        monkeypatch.setenv("TQDM_DISABLE", disabled)
    assert terminal.is_watched() is expected


def test_a_file_gets_no_bars_and_no_tables(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither our bars nor those of datasets and transformers, nor colours, nor a load report."""
    argv = flags(tmp_path, "mnli")  # whose head is another one than the checkpoint's
    capfd.readouterr()  # making the data has bars
    glue.main(argv)
    out, err = capfd.readouterr()
    assert not {"\r", "\x1b"} & {*out, *err}
    assert "LOAD REPORT" not in out + err
    assert "Loading weights" not in out + err


def test_what_is_new_of_a_model_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        glue.main(flags(tmp_path, "mnli", "--do_eval_only"))
    bert = tmp_path / "bert"
    said = f"weights are new, since {bert} has them in other shapes: classifier"
    assert any(record.message.endswith(said) for record in caplog.records)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.message.split("] ")[-1] for record in caplog.records]
    return [line for line in said if line.startswith("step ")]


def test_the_loss_is_logged_every_so_many_updates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trainer(tmp_path, *STEPS, "--logging_steps", "4")
    with caplog.at_level(logging.INFO):
        run.train()
    found = lines(caplog)
    assert [line.split(":")[0] for line in found] == [
        "step 4 of 10, epoch 0.80",
        "step 8 of 10, epoch 1.60",
    ]
    assert "learning rate 3.00e-05" in found[0]
    assert all(line.endswith(" left") for line in found)


def test_without_a_bar_a_line_comes_when_its_time_has_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for every, is_watched in ((1e9, False), (0.0, False), (0.0, True)):
        monkeypatch.setattr(display, "EVERY", every)
        monkeypatch.setattr(terminal, "is_watched", lambda is_watched=is_watched: is_watched)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            trainer(tmp_path, *STEPS).train()
        counts.append(len(lines(caplog)))
    assert counts == [0, 10, 0]


def test_the_logged_loss_is_the_mean_since_the_last_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trainer(tmp_path, *STEPS, "--logging_steps", "2")
    losses = []
    step = run._display.step
    run._display.step = lambda progress, loss: (losses.append(loss), step(progress, loss))
    with caplog.at_level(logging.INFO):
        run.train()
    means = [f"loss {sum(losses[i : i + 2]) / 2:.4f}," for i in range(0, 10, 2)]
    assert all(mean in line for mean, line in zip(means, lines(caplog), strict=True))


@pytest.mark.parametrize(
    ("name", "level", "said", "expected"),
    [
        ("finetune.engine.run", logging.INFO, "[RANK 0] done", "done"),
        ("finetune.engine.run", logging.WARNING, "[RANK 1] odd", "WARNING: odd"),
        ("transformers.trainer", logging.WARNING, "odd %s", "WARNING: transformers: odd %s"),
    ],
)
def test_a_line_says_who_speaks_where_it_is_another(
    name: str, level: int, said: str, expected: str
) -> None:
    record = logging.LogRecord(name, level, "", 0, said, (), None)
    assert terminal.Lines("%(message)s").format(record) == expected


def test_the_log_is_written_above_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar is taken away, the line written, and the bar drawn again below."""
    root = logging.getLogger()
    shown = logging.StreamHandler(sys.stderr)
    root.addHandler(shown)
    try:
        with terminal.log_shown(True):
            from tqdm import tqdm

            with tqdm(total=3, file=sys.stderr, ncols=60, desc="Training") as bar:
                bar.update()
                logging.getLogger("finetune").warning("a line")
    finally:
        root.removeHandler(shown)
    screen: list[str] = [""]
    for character in capsys.readouterr().err:
        if character == "\n":
            screen.append("")
        elif character == "\r":
            screen[-1] = ""
        else:
            screen[-1] += character
    assert "a line" in screen[0]
    assert "Training" not in screen[0]
    assert screen[1].startswith("Training")


def test_what_asks_for_nothing_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Of other packages' warnings those that come with every run; any other one is shown."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        with terminal.log_shown(True):
            theirs = logging.getLogger("accelerate.utils.other")
            theirs.warning("[RANK 0] Removed shared tensor {'head'} while saving")
            logging.getLogger("transformers").warning("`loss_type=None` was set in the config")
            theirs.warning("something else")
    finally:
        root.handlers = before
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" WARNING: accelerate: something else")
