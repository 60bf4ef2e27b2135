"""What each room may cost to read, and each script to call: code lines and flags.

Code lines have no docstrings, comments and blank lines. A room that outgrows its number fails.
Look first for what it can do without. If there is nothing, raise the number in the table below to
the next 50 and write beside it, in the same commit, what the lines are for.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LINES = {  # a folder, or the files that lie in it alone: at most, and what they are for
    "hf_graphattn/*.py": (200, "public names, errors, what saved folders import; TrainerMixin"),
    "hf_graphattn/architectures": (300, "the rule that finds attention; tables of classes"),
    "hf_graphattn/backends": (550, "A x by six ways, each with the reasons why it cannot run"),
    "hf_graphattn/diagnostics": (1000, "numbers, figures, a page"),
    "hf_graphattn/interface": (950, "the attention function, masks, cache; the other ways to act"),
    "hf_graphattn/kernels": (900, "p-LaT and polynomials in blocks and in Triton, with backwards"),
    "hf_graphattn/loading": (700, "models, filters alone, adapters, a method of PEFT"),
    "hf_graphattn/model": (700, "filters, configs, report with cost, training, processes, saving"),
    "hf_graphattn/patching": (600, "patch_model, filters in and out of modules, the check"),
    "hf_graphattn/sharing": (300, "the card, the repository"),
    "hf_graphattn/shell": (300, "graphattn: four commands; texts and images for diagnose"),
    "hf_graphattn/variants": (1000, "eighteen variants, where each is plain, what they share"),
    "finetune/*.py": (450, "the scripts, and their errors and log"),
    "finetune/data": (1500, "files of any origin, checked row by row, and batches"),
    "finetune/demo": (150, "what `make demo` runs"),
    "finetune/engine": (1350, "one run: the loop, exact checkpoints, results, pushing"),
    "finetune/experiments": (1750, "grids, sweeps, searches, clusters, statistics, reports"),
    "finetune/models": (500, "tokenizers, models, and what of them is trained"),
    "finetune/objectives": (350, "a file an objective"),
    "finetune/settings": (850, "flags with transformers' names, recipes, the variants' own flags"),
    "finetune/studies": (400, "the studies of docs/evidence.md, and the pages"),
    "tasks": (1000, "five families of tasks, metrics, and text that needs no network"),
    "tests": (19600, "as many as the library, the scripts and the tasks have, and a third more"),
    "benchmarks": (1500, "speed and memory, on CPU and GPU"),
    "tools": (700, "how the shipped checkpoints and the pictures were made"),
}
FLAGS = {  # at most that `--help` explains; it names the rare ones and the variants' own at its end
    "glue": 52,
    "lm": 57,
    "code_classification": 55,
    "image_classification": 67,
    "speech_recognition": 62,
}
HOW = "Look first for what can go. Else write the new number into tests/test_budget.py, and why."
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def code_lines(source: str) -> int:
    """How many lines of a file hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE | {tokenize.ENDMARKER}:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def size(room: str) -> int:
    pattern = "*.py" if room.endswith("*.py") else "**/*.py"
    files = (ROOT / room.removesuffix("*.py")).glob(pattern)
    return sum(code_lines(path.read_text("utf-8")) for path in files)


def test_code_lines_are_lines_with_code() -> None:
    source = '"""Of\na file."""\n\n# why\ndef f():  # one\n    """Doc."""\n    return """\n\n"""\n'
    assert code_lines(source) == 4


def test_every_room_has_a_number() -> None:
    for package in ("hf_graphattn", "finetune"):
        rooms = {f"{package}/{path.parent.name}" for path in (ROOT / package).glob("*/*.py")}
        assert rooms <= LINES.keys(), f"no number: {sorted(rooms - LINES.keys())}. {HOW}"


@pytest.mark.parametrize("room", LINES)
def test_a_room_keeps_to_its_lines(room: str) -> None:
    most, _ = LINES[room]
    found = size(room)
    assert found <= most, f"{room} has {found} code lines, {most} are allowed. {HOW}"
    assert found > 0, f"{room} has no files: drop its row."


@pytest.mark.parametrize("script", FLAGS)
def test_a_script_keeps_to_its_flags(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module(f"finetune.{script}").SCHEMA.parse(["--help"])
    found = len(re.findall(r"^ +(?:-\w, )?--\w", capsys.readouterr().out, re.MULTILINE))
    assert 0 < found <= FLAGS[script], f"{script}.py has {found} of {FLAGS[script]} flags. {HOW}"
