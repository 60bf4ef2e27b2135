"""What a page of Markdown shows: its blocks of code, run, and its commands, read as they would be.

A block of Python is run unless a comment before it says why not, `<!-- not run: ... -->`. A block
of text after it is what it prints, or the error that it ends with; `...` stands for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from packaging.requirements import Requirement

from finetune import compare, evidence, sweep
from finetune.experiments.scripts import Script, families
from finetune.studies.run import studies
from hf_graphattn.shell import main as command

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^(?P<before>[^\n]*\n)```(?P<language>[\w{}-]*)\n(?P<code>.*?)^```$", re.M | re.S
)
DECIMAL = re.compile(r"-?\d+\.\d+")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
COMPARISONS = {"finetune/compare.py": compare, "finetune/sweep.py": sweep}
COMMANDS = ("bash", "")  # the languages of blocks that hold commands


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its code, and whether it is said why it is not run."""

    language: str
    code: str
    is_run: bool


def blocks(text: str) -> list[Block]:
    found = BLOCK.finditer(text)
    return [
        Block(match["language"], match["code"], not match["before"].startswith("<!-- not run: "))
        for match in found
    ]


def run(text: str, page: str) -> None:
    """Run the Python of a page from top to bottom, and compare what is printed."""
    module = types.ModuleType("a_page")
    found = blocks(text)
    for block, following in zip(found, [*found[1:], Block("", "", False)], strict=True):
        if block.language != "python":
            continue
        code = compile(block.code, page, "exec")
        if not block.is_run:
            continue
        ends = following.language == "text" and "Error: " in following.code
        printed = _printed(code, module, ends)
        if following.language == "text":
            shown = f"{page} shows\n{following.code}\nand this is printed:\n{printed}"
            assert _is_shown(printed, following.code), shown


def _is_shown(printed: str, expected: str) -> bool:
    """Whether it is what is expected; without `...` its decimals may be others by a hundredth."""
    if doctest.OutputChecker().check_output(expected, printed, OPTIONS):
        return True
    found, wanted = ([float(x) for x in DECIMAL.findall(text)] for text in (printed, expected))
    words = [DECIMAL.sub("#", text).split() for text in (printed, expected)]
    return words[0] == words[1] and found == pytest.approx(wanted, rel=0.01)


def _printed(code: types.CodeType, module: types.ModuleType, may_end: bool) -> str:
    """What a block prints, and the error that it ends with where the page shows one."""
    out = io.StringIO()
    sys.modules[module.__name__] = module  # where dataclasses look
    with contextlib.redirect_stdout(out):
        try:
            exec(code, vars(module))
        except Exception as error:
            if not may_end:
                raise
            print(f"{type(error).__name__}: {error}")
        finally:
            del sys.modules[module.__name__]
    return out.getvalue()


def has_commands(text: str) -> bool:
    return any(block.language in COMMANDS for block in blocks(text))


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command that a page shows; `...` are those of the last without them."""
    last: dict[str, list[str]] = {}
    for block in blocks(text):
        if block.language not in COMMANDS:
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "..." in words:
                place = words.index("...")
                words = [*last[words[1]], *words[place + 1 :]]
            elif len(words) > 1:
                last[words[1]] = words
            if words:
                yield words


def read(words: list[str]) -> None:
    """Have a command's words read by what would read them; an error says what is wrong."""
    program, *rest = words
    if program == "accelerate":
        assert rest[0] == "launch", words
        given = launch_command_parser().parse_args(rest[1:])
        program, rest = "python", [given.training_script, *given.training_script_args]
    if program == "make":
        assert f"\n{rest[0]}:" in (ROOT / "Makefile").read_text("utf-8"), words
    elif program == "pip":
        _read_installation(rest)
    elif program == "graphattn":
        command._parser().parse_args(rest)
    else:
        assert program == "python", words
        _read_script(rest[0], rest[1:])


def _read_installation(words: list[str]) -> None:
    assert words[:2] == ["install", "-e"], words
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = Requirement(words[2].replace(".", project["name"], 1))
    assert asked.extras <= set(project["optional-dependencies"]), words


def _read_script(path: str, words: list[str]) -> None:
    assert (ROOT / path).is_file(), path
    if path in COMPARISONS:
        with contextlib.redirect_stdout(io.StringIO()):
            COMPARISONS[path].main([*words, "--dry_run"])
    elif Path(path).stem in families():
        Script(Path(path)).schema.parse(words)
    elif path == "finetune/evidence.py":
        evidence.parser([study.name for study in studies()]).parse_args(words)
    else:  # a script of few flags, which stand in it
        text = (ROOT / path).read_text("utf-8")
        flags = [word for word in words if word.startswith("--")]
        assert [flag for flag in flags if f'"{flag}"' not in text] == [], path
