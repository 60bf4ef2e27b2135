"""From a shell: an error for people is one line and exit code 2; --help, which is read first."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from torch._utils import ExceptionWrapper
from transformers import AutoConfig

import finetune
from finetune import compare, errors, evidence, glue, sweep
from finetune.engine.checkpoints import CheckpointError
from finetune.engine.storage import SaveError
from finetune.experiments.arms import families
from finetune.models import loading
from finetune.settings.groups import ModelArguments
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


def test_a_reading_process_tells_its_error_as_this_one_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """torch raises it here again, with the traceback of that process before its words."""
    try:
        raising(errors.Refused("The image is unreadable."))()
    except errors.Refused:
        caught = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(SystemExit):
        errors.exit_with(caught.reraise)
    assert capsys.readouterr().err == "error: The image is unreadable.\n"


def test_a_defect_keeps_its_traceback() -> None:
    for error in (ValueError("not for people"), OSError("no"), KeyError("x")):
        with pytest.raises(type(error)):
            errors.exit_with(raising(error))


@pytest.mark.parametrize("name", ["accelerate", "datasets"])
def test_a_package_that_is_not_installed_is_told_in_a_line(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; from finetune import glue, errors; "
    code += "errors.exit_with(glue.main)"
    words = ["--model_name_or_path", "m", "--output_dir", "o", "--task_name", "cola"]
    command = [warm.python("torch"), "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parent)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(rf"error: .*{name}.* pip install -e '\.\[finetune\]'.*\n", done.stderr)


def test_a_part_that_a_package_lacks_is_a_defect() -> None:
    for error in (ModuleNotFoundError("no", name="torch.no"), ImportError("no", name="torch")):
        with pytest.raises(type(error)):
            errors.exit_with(raising(error))


def test_with_debug_it_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["glue.py", "--debug"])
    with pytest.raises(SystemExit):
        errors.exit_with(raising(errors.Refused("No.")))
    said = capsys.readouterr().err
    assert re.search(r"Traceback(.|\n)*, in main\n(.|\n)*\nerror: No\.\n$", said)
    # The flag is one of every script's, and no setting of a run.
    words = ["--model_name_or_path", "m", "--output_dir", "o", "--debug"]
    assert "debug" not in glue.SCHEMA.parse(words).flat()


def test_other_processes_leave_the_first_word_to_the_first(
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


@pytest.mark.parametrize(("found", "code"), [({"eval_loss": 1}, 0), (None, 0), (0, 0), (1, 1)])
def test_exit_codes(found: object, code: int) -> None:
    with pytest.raises(SystemExit) as stopped:
        errors.exit_with(lambda: found)
    assert stopped.value.code == code


def test_stopped_it_says_how_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        errors.exit_with(raising(KeyboardInterrupt()))
    assert stopped.value.code == 130
    assert "--resume_from_checkpoint last" in capsys.readouterr().err


def test_as_a_process() -> None:
    words = [sys.executable, str(FOLDER / "glue.py"), "--learning_ratt", "1"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"error: .*--learning_ratt 1\. Did you mean --learning_rate.*\n", done.stderr
    )


@pytest.mark.parametrize(
    "main",
    [
        f"from finetune.errors import exit_with; exit_with(lambda: print('x' * {10**6}))",
        "import sys; sys.argv = ['graphattn', 'report', 'folder']\n"
        "from hf_graphattn.shell import main as command\n"
        f"command._report = lambda options: print('x' * {10**6})\n"
        "command.main()",
    ],
)
def test_nobody_reads_what_is_printed(main: str) -> None:
    """As `head` does once it has its lines: no traceback."""
    program = f"import sys; sys.stdin.readline()\n{main}"  # once the other end is closed
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", program], **streams)
    process.stdout.close()
    _, said = process.communicate(b"\n")
    assert (process.returncode, said) == (141, b"")


def test_an_error_keeps_its_exit_code_where_nobody_reads_what_was_printed_before() -> None:
    program = (
        "import sys; sys.stdin.readline()\n"
        "from finetune import errors\n"
        "def main():\n"
        "    print('before')\n"
        "    raise errors.Refused('Choose another.')\n"
        "errors.exit_with(main)"
    )
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    process = subprocess.Popen([sys.executable, "-c", program], env=buffered, **streams)
    process.stdout.close()
    _, said = process.communicate(b"\n")
    assert (process.returncode, said) == (2, b"error: Choose another.\n")


def test_without_an_output_at_all_a_broken_pipe_is_a_defect_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shell's `>&-` closes it, and Python has None there."""
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(BrokenPipeError):
        errors.exit_with(raising(BrokenPipeError()))


def test_another_pipe_that_breaks_is_a_defect() -> None:
    with pytest.raises(BrokenPipeError):
        errors.exit_with(raising(BrokenPipeError()))


def test_a_path_that_is_mistyped_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a name that could be on the hub as what it may be."""
    (tmp_path / "runs" / "first").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    told = "The folder runs is here, and has no frist. Did you mean first? "
    assert errors.near("runs/frist") == told
    assert errors.near("runs/other") == "The folder runs is here, and has no other. "
    assert errors.near("rums") == "As a folder it is not here. Did you mean runs? "
    assert [errors.near(name) for name in ("bert-base-uncased", "user/bert", "runs/first")] == [
        ""
    ] * 3
    assert errors.near("x" * 300) == ""  # no name of a file
    assert errors.near(f"runs/{'x' * 300}") == ""
    arguments = ModelArguments("runs/frist")
    with pytest.raises(errors.Refused, match=r"has no frist\. Did you mean first\? transformers"):
        loading.pretrained(AutoConfig, "runs/frist", arguments)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_ends_so(script: str) -> None:
    last = ast.parse((FOLDER / f"{script}.py").read_text("utf-8")).body[-1]
    assert isinstance(last, ast.If)
    assert ast.unparse(last.body[0]).endswith("exit_with(main)")


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (compare.main, "--seeds many", "argument --seeds: invalid int value: 'many'. See --help"),
        (sweep.main, "--variant", "argument --variant: expected one argument"),
        (evidence.main, "--studies none", "argument --studies: invalid choice: 'none'"),
        (
            compare.main,
            f"--script {FOLDER}/glue.py --output_dir o --sedes 3",
            "unrecognized arguments: --sedes 3. Did you mean .*--seeds",
        ),
    ],
)
def test_what_runs_scripts_refuses_in_the_same_way(main: Any, words: str, message: str) -> None:
    with pytest.raises(errors.Refused, match=message):
        main(words.split())


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("script", families())
def test_help(script: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    module = importlib.import_module(f"finetune.{script}")
    text = module.SCHEMA.parser().format_help()
    head, _, flags = text.partition("\noptions:\n")
    assert module.__doc__.strip() in head  # with its examples, line by line
    flags, _, others = flags.partition("\nless used, ")
    assert max(map(len, flags.splitlines())) <= width
    named = re.findall(r"^  --(\w+)", flags, re.MULTILINE)
    assert len(named) == len(set(named))
    rare = set(module.SCHEMA.flags()) - set(named)
    assert [name for name in rare if not re.search(rf"\b{name}\b", others)] == []
    titles = re.findall(r"^(\w.*):$", flags, re.MULTILINE)
    assert {"data", "model", "output", "training", "what is trained", "graph filter"} <= set(titles)
    assert len(titles) == len(set(titles))
    assert re.search(r"--learning_rate [^-]*\(default:", flags)
