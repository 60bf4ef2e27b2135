"""The site that `make docs` builds: without a warning, of every public name, from nowhere else."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from sphinx.cmd.build import main

import hf_graphattn as ga

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("*.md"))

pytestmark = pytest.mark.full  # `make docs` builds it too, which fails on a warning


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    trees = tmp_path_factory.mktemp("trees")
    words = ["--fail-on-warning", "--keep-going", "--quiet", "-d", trees, DOCS, folder]
    assert main([str(word) for word in words]) == 0
    return folder


def test_it_reads_without_a_network(site: Path) -> None:
    for page in PAGES:
        text = (site / f"{page}.html").read_text("utf-8")
        loaded = re.findall(r'\bsrc="([^"]+)"|<link\b[^>]*?\bhref="([^"]+)"', text)
        assert len(loaded) > 3
        assert [pair for pair in loaded if re.match(r"\w+:|//", "".join(pair))] == []
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert not any(re.search(r"@import|url\(\s*[\"']?(https?:)?//", style) for style in styles)


def test_the_table_of_model_types_is_on_its_page_with_a_search_field(site: Path) -> None:
    page = (site / "architectures.html").read_text("utf-8")
    with (DOCS / "architectures.csv").open(encoding="utf-8") as file:
        names = [row["model type"] for row in csv.DictReader(file)]
    assert re.findall(r"<tbody><tr><td>([^<]+)</td>", page) == names
    assert page.count('<input type="search" name="type">') == 1
    assert (site / "_static" / "search.js").is_file()


def test_it_has_every_public_name_with_its_docstring(site: Path) -> None:
    text = (site / "api.html").read_text("utf-8")
    names = set(re.findall(r'\bid="([^"]+)"', text))
    public = {name for name in dir(ga) if not name.startswith("_")}
    documented = {name for name in public if getattr(getattr(ga, name), "__module__", "")}
    assert {f"hf_graphattn.{name}" for name in documented} <= names
    for config in ga.variant_configs().values():
        assert config.__dataclass_fields__["layers"].metadata["help"][:40] in text
