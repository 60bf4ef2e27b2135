"""The list of verified model types: of the installed transformers, and still right.

A type of each pattern of attention is checked again; `make matrix` checks them all.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from columns import Subject
from edges import leading
from matrix import joined, write_list
from tiny import MODELS
from transformers import CONFIG_MAPPING
from zoo.batches import inputs
from zoo.easier import REASONS
from zoo.models import build

import hf_graphattn as ga
from hf_graphattn.architectures import VERIFIED, find, verified_types

VERSION = transformers.__version__
TYPES = verified_types(VERSION)
PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
FILES = sorted((Path(transformers.__file__).parent / "models").glob("*/[!m]*.py"))
FILES += sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py"))
# A class or a function at the top of a file, to where the next begins.
DEFINED = re.compile(r"^(class|def) (\w+)\b.*?(?=^[^\s#)]|\Z)", re.M | re.S)
PARTS = 12  # of the check: a test each, those of the most used patterns first
FIRST = 3  # which `make test` does
MOST = 200  # types that are checked, those whose attention most types have first


def test_the_list_has_a_part_for_the_installed_transformers() -> None:
    assert TYPES, f"{VERIFIED} knows nothing of transformers {VERSION}: run `make matrix`"


def test_the_list_is_sorted_with_a_line_for_each_type() -> None:
    text = VERIFIED.read_text("utf-8")
    found = json.loads(text)
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    assert len(lines) == sum(map(len, found.values()))
    for part in (found, *found.values()):
        assert list(part) == sorted(part)
    for classes in (classes for part in found.values() for classes in part.values()):
        assert classes == sorted(set(classes)) != []


def test_the_table_and_its_page_say_which_types_the_list_has() -> None:
    with PAGE.with_suffix(".csv").open(encoding="utf-8") as file:
        verified = [row["model type"] for row in csv.DictReader(file) if row["verified"] == "yes"]
    text = PAGE.read_text("utf-8")
    types = list(verified_types(re.search(r"transformers\s(\d\S+),", text)[1]))
    assert [name for name in verified if ", " not in name] == types
    assert f"\n| yes | {len(types)} |" in text


def test_the_page_tells_what_tiny_configs_switch_off_each_with_its_reason() -> None:
    _, _, text = PAGE.read_text("utf-8").partition("## What the tiny models leave out")
    rows = re.findall(r"^\| (\S+) \| \d+ \| ([^|]+) \|$", text, re.M)
    assert dict(rows) == REASONS


def test_a_type_is_verified_if_its_second_models_are() -> None:
    row = {"verified": "yes", "why": ""}
    bad = row | {"verified": "no"}
    found = joined({"b": dict(row), "a, more": dict(bad), "a": dict(row), "b, more": dict(row)})
    assert {name: each["verified"] for name, each in found.items()} == {
        "a": "no",
        "a, more": "no",
        "b": "yes",
        "b, more": "yes",
    }
    assert found["a"]["why"] == "see 'a, more'"


def test_the_types_and_their_attention_are_those_of_the_installed_transformers() -> None:
    gone = {each for each in TYPES if each not in CONFIG_MAPPING}
    gone |= {name for classes in TYPES.values() for name in classes if name not in _defined()}
    assert not gone, f"no longer in transformers {VERSION}: {sorted(gone)}; run `make matrix`"


@pytest.mark.parametrize("part", leading(FIRST, range(PARTS)))
def test_a_type_of_each_pattern_of_attention_is_exact(part: int) -> None:
    wrong, chosen = [], _chosen()
    for model_type in chosen[part * len(chosen) // PARTS : (part + 1) * len(chosen) // PARTS]:
        subject = Subject(model_type)
        assert find(subject.model).is_listed, f"{model_type} has other attention: run `make matrix`"
        found = ga.check(subject.model, **subject.batches[-1])
        wrong += [] if found.passed else [f"{model_type}: {found}"]
    assert not wrong, "\n".join(wrong)


def test_a_model_is_listed_by_its_type_all_its_classes_and_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = MODELS["BERT"]()
    assert find(model).is_listed
    with monkeypatch.context() as another:
        another.setattr("importlib.metadata.version", lambda name: "0.0.0")
        assert not find(model).is_listed
    model.config.model_type = "grounding-dino"  # which gives this class masks of its own kind
    assert not find(model).is_listed


def test_a_listed_model_is_patched_saved_and_loaded_without_a_check(tmp_path: Path) -> None:
    model = build("qwen2")
    batch = inputs(model, "right")
    ga.patch_model(model, ga.GFSAConfig(w_K=0.3)).save_pretrained(tmp_path)
    assert torch.equal(ga.from_pretrained(tmp_path)(**batch)[0], model(**batch)[0])
    assert "yes: verified" in str(ga.supported(ga.unpatch_model(model)))


def test_a_cross_attention_that_was_not_seen_is_not_listed() -> None:
    assert not find(MODELS["BERT"](is_decoder=True, add_cross_attention=True)).is_listed


def test_a_class_of_someone_else_is_not_listed() -> None:
    model = MODELS["BERT"]()
    own = type("BertSelfAttention", (type(model.bert.encoder.layer[0].attention.self),), {})
    model.bert.encoder.layer[0].attention.self.__class__ = own
    assert own.__module__ != "transformers"
    assert not find(model).is_listed


def test_a_run_replaces_the_part_of_its_own_version_alone(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    rows = {
        name: {"verified": says, "classes": [f"{name}Attention"]}
        for name, says in {"b": "yes", "a": "yes", "c": "no"}.items()
    }
    write_list(rows, path, "5.1.0")
    write_list({"a": rows["a"]}, path, "5.0.0")
    write_list({"b": rows["b"]}, path, "5.1.0")
    assert path.read_text("utf-8").splitlines() == [
        "{",
        ' "5.0.0": {',
        '  "a": ["aAttention"]',
        " },",
        ' "5.1.0": {',
        '  "b": ["bAttention"]',
        " }",
        "}",
    ]


@cache
def _chosen() -> list[str]:
    """Types that have each pattern of attention between them, the most used patterns first, and of
    each the type with the fewest classes."""
    having = defaultdict(list)
    for model_type, classes in TYPES.items():
        for pattern in {_pattern(name) for name in classes}:
            having[pattern].append(model_type)
    chosen: dict[str, None] = {}
    for pattern in sorted(having, key=lambda each: (-len(having[each]), having[each])):
        if not chosen.keys() & set(having[pattern]):
            chosen[min(having[pattern], key=lambda each: (len(TYPES[each]), each))] = None
    return list(chosen)[:MOST]


@cache
def _defined() -> dict[str, tuple[str, str]]:
    """Each class and function of the modeling files: its name, alone and behind the file's, to the
    file's name and what is written there."""
    return {
        name: (path.stem, match[0])
        for path in FILES
        for match in DEFINED.finditer(path.read_text("utf-8"))
        for name in (match[2], f"{path.stem}.{match[2]}")
    }


def _pattern(name: str) -> str:
    """What the forward of a class and its eager function compute, whatever the class is called."""
    stem, text = _defined()[name]
    (defined,) = ast.parse(text).body
    forward = [each for each in defined.body if getattr(each, "name", "") == "forward"]
    if not forward:
        return _pattern(_name_in(stem, ast.unparse(defined.bases[0])))
    computed = ast.dump(_Bare().visit(forward[0]))
    eager = re.search(r"\w*eager\w*", computed)
    if eager is None or _name_in(stem, eager[0]) not in _defined():
        return computed
    (function,) = ast.parse(_defined()[_name_in(stem, eager[0])][1]).body
    return computed.replace(eager[0], "eager") + ast.dump(_Bare().visit(function))


def _name_in(stem: str, name: str) -> str:
    return f"{stem}.{name}" if f"{stem}.{name}" in _defined() else name


class _Bare(ast.NodeTransformer):
    """Takes names of functions, types and docstrings from a function."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.name, node.returns, node.decorator_list = "", None, []
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node
