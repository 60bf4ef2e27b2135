"""What a run prints: rows before and after it, its log, and bars on a terminal alone."""

from __future__ import annotations

import io
import json
import logging
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from glue_runs import ROOT, flags, written
from rich.console import Console
from tiny_run import trainer
from torch.utils.data import DataLoader

from finetune import code_classification, compare, glue, lm, terminal
from finetune.engine import panels, progress
from finetune.engine.results import write_evaluated
from hf_graphattn.shell import main as command
from tasks import Split

GFSA = ("--variant", "gfsa", "--order", "4", "--layers", "0", "--filter_learning_rate", "0.1")
STEPS = ("--per_device_train_batch_size", "2", "--num_train_epochs", "2")  # 5 an epoch


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """The rows that runs print, by the title and their names."""
    found: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(
        terminal, "print_rows", lambda title, rows: found.update({title: dict(rows)})
    )
    return found


def test_before_and_after(tmp_path: Path, printed: dict[str, dict[str, str]]) -> None:
    length = ("--num_train_epochs", "2", "--gradient_accumulation_steps", "2")
    results = glue.main(flags(tmp_path, "mnli", *GFSA, "--do_predict", *length))
    before, after = printed["Training: glue.py"], printed["Results"]
    shown = {
        "task": "mnli; rows: 8 train, 5 validation_matched, 5 validation_mismatched",
        "columns": "text <- premise, text_pair <- hypothesis, label <- label",
        "labels": "entailment ",
        "model": f"{tmp_path / 'bert'}: BertForSequenceClassification, ",
        "filter": "GFSAConfig(trainable=('w_K',), layers=(0,), order=4, w_0=0.0, w_1=1.0, w_K=0.0);"
        " 4 scalars learned in 1 of 2 self-attention modules",
        "steps": "2 epochs, 2 updates of 2 batches of 4 rows",
        "learning rate": "5e-05, of the scalars 0.1; linear",
        "device": "cpu (",
        "output": str(tmp_path / "out"),
    }
    assert before.keys() == shown.keys()
    assert [name for name, text in shown.items() if not before[name].startswith(text)] == []
    assert after["metric"].startswith(f"accuracy {results['eval_accuracy']:.4f} (more is better)")
    assert after["scalars"].startswith("4 moved by 0.")
    assert after["saved"].startswith(f"{tmp_path / 'out'}: the model, all_results.json, eval_pred")
    assert after["saved"].endswith("MNLI-m.tsv, MNLI-mm.tsv")
    # Times have the names of transformers.
    assert written(tmp_path) == json.loads(json.dumps(results))
    names = ("train_samples", "eval_samples", "eval_samples_mm")
    assert [results[name] for name in names] == [8, 5, 5]
    assert 0 < results["eval_runtime"] < results["train_runtime"]
    assert results["train_samples_per_second"] == pytest.approx(16 / results["train_runtime"])
    assert results["train_steps_per_second"] == pytest.approx(2 / results["train_runtime"])
    assert not any("runtime" in name for evaluation in results["history"] for name in evaluation)


def test_columns_and_labels_of_own_files(
    tmp_path: Path, printed: dict[str, dict[str, str]]
) -> None:
    argv = flags(tmp_path, "cola", "--text_column_names", "review")
    file = tmp_path / "own.csv"
    file.write_text("id,review,label\na1,good,positive\na2,bad,negative\na3,worse,negative\n")
    argv = [*argv[4:], "--train_file", str(file), "--validation_file", str(file)]
    results = glue.main(argv)
    rows = printed["Training: glue.py"]
    assert rows["columns"] == "text <- review, label <- label"
    assert rows["labels"] == "negative 2, positive 1"
    assert results["columns"] == {"text": "review", "label": "label"}
    assert results["data"]["train"]["labels"] == {"negative": 2, "positive": 1}
    file.write_text("id,review,score\na1,good,0.5\na2,bad,0.25\n")
    glue.main([*argv, "--label_column_name", "score", "--overwrite_output_dir"])
    assert printed["Training: glue.py"]["labels"] == "numbers: regression"


def test_the_next_commands_are_real_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    others = ("--w_0", "-1e-3", "--seed", "7", "--overwrite_output_dir", "--do_predict")
    results = glue.main(flags(tmp_path, "cola", *GFSA, *others))
    lines = map(shlex.split, capsys.readouterr().out.splitlines())
    (_, script, *arguments), *library = (x for x in lines if x[:1] in (["python"], ["graphattn"]))
    assert (script, len(library)) == ("finetune/compare.py", 2)
    for _, *options in library:
        assert str(tmp_path / "out") in options
        command._parser().parse_args(options)
    assert compare.main([*arguments, "--dry_run", "--seeds", "1"]) == 0
    planned = map(shlex.split, capsys.readouterr().out.splitlines())
    script = str(ROOT / "finetune" / "glue.py")
    plain, filtered = (words[2:] for words in planned if script in words)
    assert plain[plain.index("--variant") + 1] == "none"
    same = glue.SCHEMA.parse(filtered).deciding()
    unlike = {name for name, value in same.items() if value != results["settings"][name]}
    assert unlike == {"seed"}  # each run's own
    assert not (tmp_path / "out-compared").exists()


def test_the_command_keeps_what_the_scripts_own_default_is_not() -> None:
    """max_length is 128 in the class of flags, and 512 in code_classification.py."""
    values = {"model_name_or_path": "m", "output_dir": "out", "variant": "gfsa", "metric": ["f1"]}
    task = SimpleNamespace(family="code_classification")
    for length, is_kept in ((128, True), (512, False)):
        settings = code_classification.SCHEMA.run({**values, "max_length": length})
        run = SimpleNamespace(settings=settings, folder=Path("out"), task=task)
        arguments = panels.compare_command(run)
        assert ("--max_length" in arguments) == is_kept
        assert "--metric" not in arguments  # compare.py's is the one that is compared


def test_an_evaluation_of_other_inputs_than_in_training_warns(tmp_path: Path) -> None:
    trained = '{"block_size": 32, "row_end": "none", "settings": {"block_size": null}}'
    model = ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--task_name", "demo"]
    for text, words, warning in (
        (trained, "--block_size 32 --word_level true", None),  # its own, and one metric more
        (trained, "--block_size 8", "the model was trained with block_size 32, here 8"),
        (trained, "--row_end eos", "the model was trained with row_end none, here eos"),
        ('{"epoch": 3.0}', "--block_size 8", None),  # transformers' Trainer has such a file too
    ):
        (tmp_path / "all_results.json").write_text(text)
        data = (settings := lm.SCHEMA.parse([*model, *words.split()])).data
        facts = {"block_size": data.block_size or 32, "row_end": data.row_end or "none"}
        objective = SimpleNamespace(facts=lambda facts=facts: facts)
        run = SimpleNamespace(settings=settings, objective=objective)
        assert list(panels._other_inputs(run)) == ([("warning", warning)] if warning else [])


def test_a_run_with_one_prediction_for_all_rows_warns(tmp_path: Path) -> None:
    """By the name of its class; scores and texts as they are."""
    results = {"eval_accuracy": 0.5, "eval_runtime": 1.0, "filter_max_moved": None}
    run = SimpleNamespace(
        folder=tmp_path,
        selection=SimpleNamespace(metric="eval_accuracy", greater_is_better=True),
        settings=SimpleNamespace(train=SimpleNamespace(do_eval_only=True, do_predict=False)),
    )
    for names, predictions, labels, answer in (
        (("no", "yes"), [1, 1], [0, 1], "yes"),
        ((), [1.0, 1.0], [0, 1], "1.0"),
        ((), ["", ""], [0, 1], "no text"),
        ((), [1, 1], [1, 1], None),
    ):
        arrays = (np.array(predictions), np.array(labels))
        write_evaluated(Split("validation"), *arrays, tmp_path, names)
        rows = dict(panels.closing(run, results))
        warning = answer and f"every row is predicted as {answer} (eval_predictions.tsv)"
        assert rows.get("warning") == warning


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
    line = "a [line] that is much longer than the terminal " * 3
    with terminal.bar("Training", 2) as advance:
        advance("Training, loss 1.0")
        for _ in terminal.track(DataLoader([1, 2, 3], batch_size=2), "Evaluating"):
            assert terminal.BARS.tasks[-1].total == 2
        assert terminal.BARS.live.is_started
        terminal.BARS.refresh()
        logging.getLogger("finetune").warning(line)
    assert [x for x in ("Training, loss 1.0", line) if x not in screen.getvalue()] == []
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
    with caplog.at_level(logging.INFO):
        run.train()
    logged = map(json.loads, (tmp_path / progress.LOG).read_text().splitlines())
    losses = [values["loss"] for values in logged if "loss" in values]
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


def test_a_line_has_its_level_and_its_package(capsys: pytest.CaptureFixture[str]) -> None:
    for name, level, message in (
        ("finetune.engine.run", logging.INFO, "done"),
        ("accelerate.x", logging.WARNING, "[RANK 1] \x1b[1modd\x1b[0m"),
        ("accelerate.x", logging.WARNING, "[RANK 0] Removed shared tensor {'head'}"),
        ("transformers.x", logging.WARNING, "`loss_type=None` was set in the config"),
    ):
        terminal.Lines().emit(logging.LogRecord(name, level, "", 0, message, (), None))
    printed = [line[len("12:34:56 ") :] for line in capsys.readouterr().err.splitlines()]
    assert printed == ["done", "WARNING: accelerate: odd"]


def test_rows_are_a_table_without_the_empty_ones(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_rows("Results", [("metric", "[f1] 0.5"), ("none", ""), ("saved", "x" * 120)])
    title, metric, *saved = capsys.readouterr().out.splitlines()[1:]
    assert (title, metric.split()) == ("Results", ["metric", "[f1]", "0.5"])
    assert saved[0].startswith("  saved  ")
    assert "".join(saved).count("x") == 120
    assert [terminal.duration(x) for x in (0.66, 200, 7500.4)] == ["0.7 s", "0:03:20", "2:05:00"]
