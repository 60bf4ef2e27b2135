"""The list of verified model types: of the installed transformers, and still right."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from pathlib import Path

import pytest
import torch
import transformers
from columns import Subject, line
from edges import leading
from matrix import joined
from refusals import refused, untouched
from tiny import MODELS
from transformers import CONFIG_MAPPING
from zoo.batches import inputs
from zoo.models import build

import hf_graphattn as ga
from hf_graphattn.architectures import VERIFIED, find, verified_types

VERSION = transformers.__version__
TYPES = verified_types(VERSION)
PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"


def test_the_list_has_a_part_for_the_installed_transformers() -> None:
    assert TYPES, f"{VERIFIED} knows nothing of transformers {VERSION}: run `make matrix`"
    assert TYPES.keys() <= set(CONFIG_MAPPING)


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


def test_the_table_names_no_temporary_folder() -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert line(OSError(f"{folder!r} is empty")) == "OSError: 'FOLDER' is empty"
    assert tempfile.gettempdir() not in PAGE.with_suffix(".csv").read_text("utf-8")


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


@pytest.mark.parametrize("part", leading(3, range(36)))
def test_the_types_are_still_exact(part: int) -> None:
    """Some of them, and half of them in `make test-full`; `make matrix` does all."""
    wrong = []
    for model_type in list(TYPES)[part::72]:
        subject = Subject(build(model_type))
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
    assert not find(MODELS["BERT"](is_decoder=True, add_cross_attention=True)).is_listed
    model = MODELS["BERT"]()  # someone else's class of the same name
    layer = model.bert.encoder.layer[0].attention.self
    layer.__class__ = type("BertSelfAttention", (type(layer),), {})
    assert not find(model).is_listed


def test_a_listed_model_is_patched_saved_and_loaded_without_a_check(tmp_path: Path) -> None:
    model = build("qwen2")
    batch = inputs(model, "right")
    ga.patch_model(model, ga.GFSAConfig(w_K=0.3)).save_pretrained(tmp_path)
    assert torch.equal(ga.from_pretrained(tmp_path)(**batch)[0], model(**batch)[0])
    assert "yes: verified" in str(ga.supported(ga.unpatch_model(model)))


def test_a_model_of_a_type_that_was_tried_and_is_not_listed_needs_a_check() -> None:
    """Its classes are in the table: in a model of another type they may be given other masks."""
    model = build("grounding-dino")
    with (
        untouched(model, inputs(model)),
        refused("not verified", "BertSelfAttention"),
    ):
        ga.patch_model(model, ga.GFSAConfig(w_K=0.3))
    assert {row.says for row in ga.supported(model).rows if row.kind == "self"} == {
        "after a check (check=...)"
    }
