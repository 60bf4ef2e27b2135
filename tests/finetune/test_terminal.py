"""What a terminal shows of a run and what a file gets: bars there alone, rows and lines in both."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from glue_runs import flags
from rich.console import Console
from tiny_run import trainer
from torch.utils.data import DataLoader

from finetune import glue, terminal
from finetune.engine import progress

STEPS = ("--per_device_train_batch_size", "2", "--num_train_epochs", "2")  # 5 an epoch


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is written to a terminal, with bars."""
    stream, disabled = io.StringIO(), terminal.BARS.disable
    console = Console(file=stream, force_terminal=True, width=100, markup=False, highlight=False)
    monkeypatch.setattr(terminal, "CONSOLE", console)
    monkeypatch.setattr(terminal.BARS.live, "console", console)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    terminal.show_log(is_main_process=True)
    yield stream
    terminal.BARS.disable = disabled


def test_a_file_gets_no_bars_and_no_colours(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither ours nor those of datasets and transformers."""
    argv = flags(tmp_path, "mnli")  # whose head is another one than the checkpoint's
    capfd.readouterr()  # making the data has bars
    glue.main(argv)
    out, err = capfd.readouterr()
    assert not {"\r", "\x1b"} & {*out, *err}
    assert "Loading weights" not in out + err


def test_bars_are_one_in_another_with_the_log_above(screen: io.StringIO) -> None:
    with terminal.bar("Training", 2) as advance:
        advance("Training, loss 1.0")
        for _ in terminal.track(DataLoader([1, 2, 3], batch_size=2), "Evaluating"):
            assert terminal.BARS.tasks[-1].total == 2
        assert terminal.BARS.live.is_started
        terminal.BARS.refresh()
        logging.getLogger("finetune").warning("a [line] that is much longer than the terminal " * 3)
    text = screen.getvalue()
    assert "Training, loss 1.0" in text
    assert "a [line] that is much longer than the terminal " * 3 in text
    assert not terminal.BARS.tasks
    assert not terminal.BARS.live.is_started
    screen.truncate(0)
    terminal.show_log(is_main_process=False)  # of another process
    assert list(terminal.track(iter("ab"), "Reading", 2)) == ["a", "b"]
    assert screen.getvalue() == ""


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.message.startswith("step ")]


def test_the_mean_loss_is_logged_every_so_many_updates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trainer(tmp_path, *STEPS, "--logging_steps", "4")
    losses, write = [], run._log.write
    run._log.write = lambda values: (losses.append(values.get("loss")), write(values))
    with caplog.at_level(logging.INFO):
        run.train()
    losses = [loss for loss in losses if loss is not None]
    first, second = lines(caplog)
    assert first.startswith(f"step 4 of 10, epoch 0.80: loss {sum(losses[:4]) / 4:.4f}, ")
    assert second.startswith(f"step 8 of 10, epoch 1.60: loss {sum(losses[4:8]) / 4:.4f}, ")
    assert "learning rate 3.00e-05" in first
    assert first.endswith(" left")


def test_without_a_bar_a_line_comes_when_its_time_has_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for every, has_bar in ((1e9, False), (0.0, False), (0.0, True)):
        monkeypatch.setattr(progress, "EVERY", every)
        run = trainer(tmp_path, *STEPS)
        caplog.clear()
        monkeypatch.setattr(terminal.BARS, "disable", not has_bar)
        monkeypatch.setattr(terminal.BARS, "start", lambda: None)
        with caplog.at_level(logging.INFO):
            run.train()
        counts.append(len(lines(caplog)))
    assert counts == [0, 10, 0]


@pytest.mark.parametrize(
    ("name", "level", "message", "expected"),
    [
        ("finetune.engine.run", logging.INFO, "done", "done"),
        ("accelerate.x", logging.WARNING, "[RANK 1] \x1b[1modd\x1b[0m", "WARNING: accelerate: odd"),
        ("accelerate.x", logging.WARNING, "[RANK 0] Removed shared tensor {'head'}", None),
        ("transformers.x", logging.WARNING, "`loss_type=None` was set in the config", None),
    ],
)
def test_a_line_has_its_level_and_its_package(
    name: str, level: int, message: str, expected: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.Lines().emit(logging.LogRecord(name, level, "", 0, message, (), None))
    printed = capsys.readouterr().err.splitlines()
    assert [line[len("12:34:56 ") :] for line in printed] == ([expected] if expected else [])


def test_rows_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_rows("Results", [("metric", "[f1] 0.5"), ("none", ""), ("saved", "x" * 120)])
    title, metric, *saved = capsys.readouterr().out.splitlines()[1:]
    assert (title, metric.split()) == ("Results", ["metric", "[f1]", "0.5"])
    assert saved[0].startswith("  saved  ")
    assert "".join(saved).count("x") == 120
    assert max(map(len, saved)) <= terminal.WIDTH
    assert [terminal.duration(x) for x in (0.66, 200, 7500.4)] == ["0.7 s", "0:03:20", "2:05:00"]
