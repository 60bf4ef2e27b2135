"""Sets that must be equal: what is registered, what is tested, what is documented."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from cases import FIRST_LAYER_CASES, TOKEN_CASES, VARIANT_CASES
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tiny import ROWS

import hf_graphattn as ga
from hf_graphattn.architectures import ARCHITECTURES

ROOT = Path(__file__).parents[1]
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/filters.md", "docs/models.md", "docs/api.md")
}

# What the API's page has from docstrings alone: what filters are made of, and the error.
NAMED_BELOW = {"GraphAttentionError", "GraphFilter", "VariantConfig", "setting"}


def test_every_variant_is_tested_with_the_backends_that_it_has() -> None:
    assert set(ga.variant_configs()) == {*VARIANT_CASES, *FIRST_LAYER_CASES, *TOKEN_CASES}
    for name, first in FIRST_LAYER_CASES.items():
        assert type(first.config) is ga.variant_configs()[name]
        assert first.config.build(1).reads_first
    for name, tokens in TOKEN_CASES.items():
        assert type(tokens.config) is ga.variant_configs()[name]
        assert set(tokens.config.trainable) == set(tokens.config.scalars)
    for name, case in VARIANT_CASES.items():
        assert type(case.config) is ga.variant_configs()[name]
        assert case.neutral is None or type(case.neutral) is type(case.config)
        assert set(case.config.trainable) == set(case.config.scalars) == set(case.start(1))
        # Tested in test_backends.py, test_plat_triton.py and test_checking.py:
        elsewhere = {"flash_attention_2", "flex_attention", "triton", "delegate"}
        assert set(case.backends) == set(case.config.build(1).backends) - elsewhere


def test_every_variant_has_a_public_name() -> None:
    configs = {config.__name__: config for config in ga.variant_configs().values()}
    assert {name for name in dir(ga) if name.endswith("Config")} == {
        *configs,
        "VariantConfig",
        "GraphFilterConfig",
    }
    for name, config in configs.items():
        assert getattr(ga, name) is config
    assert not hasattr(ga, "HeatConfig")


@pytest.mark.parametrize("page", ["README.md", "docs/filters.md"])
def test_every_variant_has_a_row(page: str) -> None:
    rows = [line for line in PAGES[page].splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"\b\w+Config\b", row)}
    assert named == {config.__name__ for config in ga.variant_configs().values()}


def test_every_architecture_is_tested_and_named_on_its_page() -> None:
    names = [row.name for row in ARCHITECTURES]
    assert len(names) == len(set(names))
    assert set(names) == set(ROWS)
    page = PAGES["docs/models.md"]
    assert [name for name in names if not re.search(rf"(?<![\w-]){name}\b", page)] == []


def test_every_function_is_on_the_page_of_the_api() -> None:
    named = set(re.findall(r"`ga\.(\w+)", PAGES["docs/api.md"]))
    functions = {name for name in ga.__all__ if callable(getattr(ga, name))}
    assert named == (functions | {"GraphFilterConfig"}) - NAMED_BELOW


def test_every_public_name_exists_and_every_setting_has_its_help() -> None:
    for name in ga.__all__:
        assert getattr(ga, name) is not None
    for config in ga.variant_configs().values():
        for field in dataclasses.fields(config):
            assert len(field.metadata["help"]) > 5, (config, field.name)


def test_the_lowest_versions_allowed_are_those_that_test_floor_installs() -> None:
    """All that users install: not the tools of tests and pages, which are those of CI."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for of_tools in ("dev", "docs", "libraries"):
        groups.remove(project["optional-dependencies"][of_tools])
    lines = (ROOT / "requirements" / "floor.txt").read_text("utf-8").splitlines()
    pins = {Requirement(line).name: line for line in lines if not line.startswith("#")}
    pins = {canonicalize_name(name): line.split("==")[1] for name, line in pins.items()}
    for needed in (Requirement(line) for group in groups for line in group):
        (lowest,) = needed.specifier
        assert lowest.operator == ">="
        assert Version(pins[canonicalize_name(needed.name)]) == Version(lowest.version), needed


def test_no_two_test_files_have_one_name() -> None:
    """Pytest imports them by their names alone, and would collect only one of the two."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert len(names) == len(set(names))
