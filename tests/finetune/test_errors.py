"""From a shell: an error for people is one line and exit code 2, any other has its traceback."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from torch._utils import ExceptionWrapper

import finetune
from finetune import compare, errors, evidence, glue, sweep
from finetune.engine.checkpoints import CheckpointError
from finetune.engine.storage import SaveError
from finetune.experiments.arms import families
from hf_graphattn import GraphAttentionError
from tasks.refusals import TaskError

SCRIPTS = (*families(), "compare", "sweep", "evidence")
FOLDER = Path(finetune.__file__).parent


def raising(error: BaseException) -> Callable[[], Any]:
    def main() -> Any:
        raise error

    return main


@pytest.mark.parametrize(
    "error",
    [
        errors.refusal("seed", -1, "0 or more", "Give one."),
        errors.DivergedError("Lower it."),
        errors.MissingError("Install it."),
        CheckpointError("Start anew."),
        SaveError("Free some space."),
        GraphAttentionError("Choose another."),
        TaskError("Choose\n  another."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_for_people_is_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        errors.exit_with(raising(error))
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {' '.join(str(error).split())}\n"


@pytest.mark.parametrize("package", errors.EXTRAS)
def test_the_extra_that_is_named_has_the_package(package: str) -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    names = "\n".join(extras["optional-dependencies"][errors.EXTRAS[package]])
    assert {"PIL": "pillow"}.get(package, package) in names
    assert errors.EXTRAS.keys() >= {"distributed", "submitit", "optuna"}


def test_the_error_of_a_process_that_reads_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """torch raises it here again, with the traceback of that process before its message."""
    try:
        raising(errors.Refused("The image is unreadable."))()
    except errors.Refused:
        caught = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(SystemExit):
        errors.exit_with(caught.reraise)
    assert capsys.readouterr().err == "error: The image is unreadable.\n"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("not for people"),
        ModuleNotFoundError("a part of a package", name="torch.no"),
        ImportError("another version", name="torch"),
        BrokenPipeError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_defect_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        errors.exit_with(raising(error))


def test_a_package_that_is_not_installed_is_one_line() -> None:
    code = "import sys; sys.modules['accelerate'] = None; from finetune import glue, errors; "
    code += "errors.exit_with(glue.main)"
    arguments = ["--model_name_or_path", "m", "--output_dir", "o", "--task_name", "cola"]
    command = [warm.python("torch"), "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parent)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(r"error: .*accelerate.* pip install -e '\.\[finetune\]'.*\n", done.stderr)


def test_debug_prints_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["glue.py", "--debug"])
    with pytest.raises(SystemExit):
        errors.exit_with(raising(errors.Refused("No.")))
    printed = capsys.readouterr().err
    assert re.search(r"Traceback(.|\n)*, in main\n(.|\n)*\nerror: No\.\n$", printed)
    arguments = ["--model_name_or_path", "m", "--output_dir", "o", "--debug"]
    assert "debug" not in glue.SCHEMA.parse(arguments).flat()  # it is no setting of a run


def test_the_first_process_prints_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(errors.time, "sleep", waited.append)
    for rank, times in (("0", 0), ("1", 1)):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            errors.exit_with(raising(errors.Refused("No.")))
        assert len(waited) == times
        assert capsys.readouterr().err == "error: No.\n"


@pytest.mark.parametrize(("result", "code"), [({"eval_loss": 1}, 0), (None, 0), (1, 1)])
def test_exit_codes(result: object, code: int) -> None:
    with pytest.raises(SystemExit) as stopped:
        errors.exit_with(lambda: result)
    assert stopped.value.code == code


def test_an_interrupt_says_how_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        errors.exit_with(raising(KeyboardInterrupt()))
    assert stopped.value.code == 130
    assert "--resume_from_checkpoint last" in capsys.readouterr().err


def test_as_a_process() -> None:
    command = [sys.executable, str(FOLDER / "glue.py"), "--learning_ratt", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"error: .*--learning_ratt 1\. Did you mean --learning_rate.*\n", done.stderr
    )


@pytest.mark.parametrize(
    ("main", "code", "printed"),
    [
        ("lambda: print('x' * 10**6)", 141, b""),  # as `head` does once it has its lines
        ("lambda: (print('x'), 1 / 0)", 1, b"ZeroDivisionError: division by zero\n"),
    ],
)
def test_nobody_reads_what_is_printed(main: str, code: int, printed: bytes) -> None:
    program = (
        f"import sys; sys.stdin.readline()\n"
        f"from finetune.errors import exit_with; exit_with({main})"
    )
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    process = subprocess.Popen([sys.executable, "-c", program], env=buffered, **streams)
    process.stdout.close()
    _, text = process.communicate(b"\n")
    assert process.returncode in (code, 120 if code == 1 else code)  # 120: Python flushes again
    assert printed in text
    assert code == 1 or text == b""


def test_a_mistyped_path_has_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert errors.near("runs/frist") == "Did you mean first? "
    for name in ("runs/other", "runs/first", "user/bert", "x" * 300, f"runs/{'x' * 300}"):
        assert errors.near(name) == ""


def test_names_like_others() -> None:
    known = ["num_train_epochs", "learning_rate", "eval_steps", "logging_steps", "save_steps"]
    assert errors.did_you_mean(["epochs"], known, sign="--") == "Did you mean --num_train_epochs?"
    assert errors.did_you_mean(["learning_ratt"], known) == "Did you mean learning_rate?"
    assert errors.did_you_mean(["x"], known, "Choose one.") == "Choose one."


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_ends_so(script: str) -> None:
    last = ast.parse((FOLDER / f"{script}.py").read_text("utf-8")).body[-1]
    assert isinstance(last, ast.If)
    assert ast.unparse(last.body[0]).endswith("exit_with(main)")


@pytest.mark.parametrize("main", [compare.main, evidence.main, sweep.main])
def test_flags_of_what_runs_scripts(main: Any) -> None:
    with pytest.raises(errors.Refused, match=r"expected one argument\. See --help"):
        main(["--seeds" if main is not evidence.main else "--runs"])


@pytest.mark.parametrize("script", families())
def test_help(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    module = importlib.import_module(f"finetune.{script}")
    head, _, flags = module.SCHEMA.parser().format_help().partition("\noptions:\n")
    assert module.__doc__.strip() in head  # with its examples, line by line
    flags, _, others = flags.partition("\nless used, ")
    assert max(map(len, flags.splitlines())) <= 80
    named = re.findall(r"^  --(\w+)", flags, re.MULTILINE)
    assert len(named) == len(set(named))
    rare = set(module.SCHEMA.flags()) - set(named)
    assert [name for name in rare if not re.search(rf"\b{name}\b", others)] == []
    titles = re.findall(r"^(\w.*):$", flags, re.MULTILINE)
    assert {"data", "model", "output", "training", "what is trained", "graph filter"} <= set(titles)
    assert len(titles) == len(set(titles))
